use std::fmt;

use crate::decision::Decision;
use crate::denial::{Denial, DenialBody, DenialReason};
use crate::headers::{HeaderLine, Headers};
use crate::model::Subject;

/// A denied decision that a handler returns, with everything that its response needs.
///
/// The adapters turn it into a response: `rl_tower::Denied`, `rl_actix::Denied`. It has the default
/// form and headers; [`Gate::denied`](crate::Gate::denied) makes one with those of a gate.
#[derive(Clone)]
pub struct Denied(Box<Parts>);

#[derive(Clone)]
struct Parts {
    decision: Decision,
    denial: Denial,
    headers: Headers,
}

impl Denied {
    /// Makes the response to a request of `subject` that `decision` denies.
    #[must_use]
    pub fn new(decision: Decision, subject: &Subject) -> Self {
        let headers = Headers::default();
        let reason = DenialReason::Decision { decision: &decision, subject };
        let denial = DenialBody::default().denial(reason, headers.followed(), false);
        Self::with(decision, denial, headers)
    }

    /// Returns `decision` if it allows the request.
    ///
    /// # Errors
    ///
    /// Returns the response to send if `decision` denies the request.
    pub fn unless_allowed(decision: Decision, subject: &Subject) -> Result<Decision, Self> {
        if decision.is_forwarded() { Ok(decision) } else { Err(Self::new(decision, subject)) }
    }

    pub(super) fn with(decision: Decision, denial: Denial, headers: Headers) -> Self {
        Self(Box::new(Parts { decision, denial, headers }))
    }

    /// Returns the decision.
    #[must_use]
    pub fn decision(&self) -> &Decision {
        &self.0.decision
    }

    /// Returns the status, the body and the headers.
    #[must_use]
    pub fn denial(&self) -> &Denial {
        &self.0.denial
    }

    /// Calls `each` with the header lines of the decision, which the denial does not include: for
    /// adapters.
    pub fn write_headers(&self, each: &mut dyn FnMut(HeaderLine<'_>)) {
        self.0.headers.write(&self.0.decision, each);
    }

    /// Returns the decision and the denial: for adapters.
    #[must_use]
    pub fn into_parts(self) -> (Decision, Denial) {
        (self.0.decision, self.0.denial)
    }
}

impl fmt::Debug for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Denied")
            .field("decision", &self.0.decision)
            .field("status", &self.0.denial.status)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the rate limiter denied the request with status {}", self.0.denial.status)
    }
}

impl std::error::Error for Denied {}
