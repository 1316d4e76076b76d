use std::fmt;
use std::sync::Arc;

use crate::decision::Decision;
use crate::headers::{HeaderLine, Headers};
use crate::limiter::Permit;
use crate::model::Cost;

/// A response as the limiter sees it, whatever the framework.
pub trait ResponseInfo {
    /// The status.
    fn status(&self) -> u16;

    /// Calls `each` with the value of every header line called `name` (in lower case), in order.
    fn header_lines<'a>(&'a self, name: &str, each: &mut dyn FnMut(&'a [u8]));
}

pub(super) type ResponseCostOf = Arc<dyn Fn(&dyn ResponseInfo) -> Option<Cost> + Send + Sync>;

/// What a [`Gate`](super::Gate) does with the response to a request that it has counted: for adapters,
/// who keep a clone until the response is there. A gate that all threads count the holders of would be
/// what they wait for.
#[derive(Clone, Default)]
pub struct ResponseRules {
    pub(super) headers: Headers,
    pub(super) cost: Option<ResponseCostOf>,
    pub(super) hides_decision: bool,
}

impl ResponseRules {
    /// Finds in the head of the response what the request did cost.
    pub fn read_cost(&self, permit: &Permit, response: &dyn ResponseInfo) {
        if let Some(cost) = self.cost.as_ref().and_then(|cost| cost(response)) {
            permit.set_own_cost(cost);
        }
    }

    /// Calls `each` with the header lines of a response. `inner` is the decision that a limiter
    /// further in has left in the response's extensions. `decision` becomes the one to leave there for
    /// what is further out, the stricter of the two; whether it is to be left is the answer, and
    /// [a setting](super::Gate::decision_in_response).
    ///
    /// A line of a list is to be added to those that are there; another replaces them. If `inner`
    /// is the stricter decision, its lines stay, and only lists are added to.
    #[must_use]
    pub fn write_headers(
        &self,
        decision: &mut Decision,
        inner: Option<Decision>,
        each: &mut dyn FnMut(HeaderLine<'_>),
    ) -> bool {
        // The limiter around this one has to know.
        let is_left = !self.hides_decision || decision.outer().is_some();
        match inner {
            Some(inner) if !decision.is_stricter_than(&inner) => {
                self.headers.write(decision, &mut |line| {
                    if line.is_list {
                        each(line);
                    }
                });
                *decision = inner;
            }
            _ => {
                self.headers.write(decision, each);
                decision.remove_outer();
            }
        }
        is_left
    }
}

impl fmt::Debug for ResponseRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseRules").field("headers", &self.headers).finish_non_exhaustive()
    }
}
