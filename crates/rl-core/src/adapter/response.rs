//! The response to a counted request: its final cost, its headers, and the decision for outer
//! layers.

use std::fmt;
use std::sync::Arc;

use crate::decision::Decision;
use crate::headers::{HeaderLines, Headers, ResponseInfo};
use crate::limiter::Permit;
use crate::model::Cost;

/// The extensions of a request or response: values that layers pass to each other, found by their
/// type.
pub trait Extensions {
    /// Returns the value of type `T`.
    fn get<T: Send + Sync + 'static>(&self) -> Option<&T>;

    /// Inserts a value, and replaces an earlier one of the same type.
    fn insert<T: Clone + Send + Sync + 'static>(&mut self, value: T);

    /// Removes the value of type `T`, and returns it.
    fn remove<T: Clone + Send + Sync + 'static>(&mut self) -> Option<T>;
}

/// The status, headers and extensions of a response that an adapter is about to send.
pub trait ResponseHead: ResponseInfo {
    /// Adds header lines. If the field is a list, a line is added to existing lines of the same
    /// name. Otherwise it replaces them.
    fn add_headers(&mut self, lines: &HeaderLines);

    /// Returns the extensions of the response.
    fn extensions(&mut self) -> impl Extensions;
}

type CostOfResponse = dyn Fn(&dyn ResponseInfo) -> Option<Cost> + Send + Sync;
type IsRefunded = dyn Fn(&dyn ResponseInfo) -> bool + Send + Sync;

/// How a response determines the final cost of its request.
#[derive(Clone)]
pub(super) enum FinalCost {
    /// The function returns the cost, or `None` to leave the cost unchanged.
    OfResponse(Arc<CostOfResponse>),
    /// A request that satisfies the predicate is refunded.
    RefundIf(Arc<IsRefunded>),
}

impl FinalCost {
    /// Sets the final cost of the request that got this response.
    fn apply(&self, permit: &Permit, response: &dyn ResponseInfo) {
        match self {
            Self::OfResponse(cost) => {
                if let Some(cost) = cost(response) {
                    permit.set_own_cost(cost);
                }
            }
            Self::RefundIf(predicate) => {
                if predicate(response) {
                    permit.refund_all_parts();
                }
            }
        }
    }
}

/// The settings that apply to the response.
#[derive(Clone, Default)]
pub(super) struct ResponseSettings {
    pub(super) headers: Headers,
    pub(super) cost: Option<FinalCost>,
    pub(super) exposes_decision: bool,
}

/// A counted request whose response is not complete yet.
///
/// [`HttpLimiter::apply`](super::HttpLimiter::apply) returns it. The adapter calls
/// [`finish`](Self::finish) when it has the head of the response.
#[must_use]
pub struct CountedRequest {
    lines: HeaderLines,
    // The decision for outer layers; `None` if they do not need it.
    decision: Option<Box<Decision>>,
    // In a box, because most requests hold none, and every request moves this struct several times.
    held: Option<Box<PermitOfResponse>>,
}

/// The permit of a request, and how the response determines the final cost.
struct PermitOfResponse {
    permit: Permit,
    final_cost: Option<FinalCost>,
}

impl CountedRequest {
    /// Creates the state of a request from its `decision`, which names the decision of an outer
    /// limiter.
    pub(super) fn new(decision: &Decision, settings: &ResponseSettings) -> Self {
        // An outer `HttpLimiter` needs the decision to merge the headers.
        let leaves_decision = settings.exposes_decision || decision.outer().is_some();
        Self {
            lines: settings.headers.lines(decision),
            decision: leaves_decision.then(|| Box::new(decision.clone())),
            held: None,
        }
    }

    /// Holds `permit` until the response is complete, and sets its cost to `final_cost` of the
    /// response.
    pub(super) fn hold(&mut self, permit: Permit, final_cost: Option<FinalCost>) {
        self.held = Some(Box::new(PermitOfResponse { permit, final_cost }));
    }

    /// Completes the head of the response, and returns the permit of the request.
    ///
    /// Reads the final cost from the response, charges it, and adds the rate limit headers. If
    /// limiters are nested, it leaves the stricter decision in the extensions of the response for
    /// outer layers.
    ///
    /// The adapter holds the permit until the body of the response has ended.
    pub fn finish(mut self, response: &mut impl ResponseHead) -> Option<Permit> {
        let permit = self.held.map(|held| {
            let PermitOfResponse { permit, final_cost } = *held;
            permit.set_costs_of_response(response);
            if let Some(cost) = &final_cost {
                cost.apply(&permit, response);
            }
            permit.charge_cost_of_head();
            permit
        });
        // If the inner decision is at least as strict, its header lines stay. This limiter only
        // adds its list fields.
        let inner = response.extensions().remove::<Decision>().filter(is_at_least_as_strict);
        if inner.is_some() {
            self.lines.retain_lists();
        }
        response.add_headers(&self.lines);
        if let Some(own) = self.decision {
            let left = match inner {
                Some(inner) => inner.inside(own.outer().cloned()),
                None => *own,
            };
            response.extensions().insert(left);
        }
        permit
    }
}

/// Returns whether the decision of an inner limiter is at least as strict as the decision of the
/// limiter around it.
///
/// A decision that a handler has made itself names no outer decision, and is taken as the stricter.
fn is_at_least_as_strict(inner: &Decision) -> bool {
    inner.outer().is_none_or(|outer| !outer.is_stricter_than(inner))
}

impl fmt::Debug for CountedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CountedRequest").field("lines", &self.lines).finish_non_exhaustive()
    }
}
