//! The response to a counted request: its final cost, its headers, and the decision for outer
//! layers.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use crate::decision::Decision;
use crate::headers::{HeaderLine, Headers, ResponseInfo};
use crate::limiter::Permit;
use crate::maybe_ready::MaybeReady;
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
    /// Adds a header line. If the field is a list, the line is added to existing lines of the same
    /// name. Otherwise it replaces them.
    fn add_header(&mut self, line: HeaderLine<'_>);

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
///
/// Each request in flight holds a clone of these settings, and not of the whole limiter. Otherwise
/// all threads would contend for the limiter's reference count.
#[derive(Clone, Default)]
pub(super) struct ResponseSettings {
    pub(super) headers: Headers,
    pub(super) cost: Option<FinalCost>,
    pub(super) hides_decision: bool,
}

/// A counted request whose response is not complete yet.
///
/// [`HttpLimiter::decide`](super::HttpLimiter::decide) returns it. The adapter
/// [applies](super::HttpLimiter::apply) its decision, and calls [`finish`](Self::finish) when it
/// has the head of the response.
///
/// The steps change the decision in place, because moving it would copy more than 200 bytes.
#[must_use]
pub struct CountedRequest {
    decision: MaybeReady<Decision>,
    settings: ResponseSettings,
    permit: Option<Permit>,
}

impl CountedRequest {
    pub(super) const fn new(decision: MaybeReady<Decision>, settings: ResponseSettings) -> Self {
        Self { decision, settings, permit: None }
    }

    /// Returns the decision, if it is ready.
    #[must_use]
    pub const fn decision(&self) -> Option<&Decision> {
        match &self.decision {
            MaybeReady::Ready(decision) => decision.as_ref(),
            MaybeReady::Boxed(_) => None,
        }
    }

    /// Waits for the decision.
    pub fn poll_decision(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let MaybeReady::Boxed(pending) = &mut self.decision {
            self.decision = MaybeReady::ready(ready!(pending.as_mut().poll(cx)));
        }
        Poll::Ready(())
    }

    pub(super) const fn decision_mut(&mut self) -> &mut Decision {
        match &mut self.decision {
            MaybeReady::Ready(Some(decision)) => decision,
            _ => panic!("the decision is not ready, or the response is complete"),
        }
    }

    /// Holds `permit` until the response is complete.
    pub(super) fn hold(&mut self, permit: Permit) {
        self.permit = Some(permit);
    }

    /// Completes the head of the response, and returns the permit of the request.
    ///
    /// Reads the final cost from the response, and adds the rate limit headers. If limiters are
    /// nested, it leaves the stricter decision in the extensions of the response for outer layers.
    ///
    /// The adapter holds the permit until the body of the response has ended.
    ///
    /// # Panics
    ///
    /// Panics if the decision is not ready, or if an earlier call has moved it into a response.
    pub fn finish<R: ResponseHead>(&mut self, response: &mut R) -> Option<Permit> {
        if let Some(permit) = &self.permit {
            permit.set_costs_of_response(response);
            if let Some(cost) = &self.settings.cost {
                cost.apply(permit, response);
            }
        }
        let permit = self.permit.take();
        let Self { decision: MaybeReady::Ready(slot), settings, .. } = self else {
            panic!("the decision is not ready")
        };
        let decision = slot.as_mut().expect("the response is not complete");
        // An outer `HttpLimiter` merges the headers. It needs this decision, even if the settings
        // hide decisions.
        let leaves_decision = !settings.hides_decision || decision.outer().is_some();
        let headers = &settings.headers;
        let inner = response.extensions().remove::<Decision>();
        match inner {
            // The inner decision is at least as strict, so its header lines stay. This decision
            // only adds its list fields.
            Some(inner) if !decision.is_stricter_than(&inner) => {
                headers.write(decision, &mut |line| {
                    if line.is_list {
                        response.add_header(line);
                    }
                });
                *decision = inner;
            }
            _ => {
                headers.write(decision, &mut |line| response.add_header(line));
                decision.remove_outer();
            }
        }
        if leaves_decision && let Some(decision) = slot.take() {
            response.extensions().insert(decision);
        }
        permit
    }
}

impl fmt::Debug for CountedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CountedRequest").field("decision", &self.decision).finish_non_exhaustive()
    }
}
