use std::fmt;

use crate::decision::Decision;
use crate::denial::{Denial, DenialBody, DenialReason, Protocol};
use crate::headers::{HeaderLines, Headers};
use crate::model::Subject;

/// A denial that a handler returns as its response, with the decision behind it.
///
/// The adapters convert it into a response of their framework.
#[derive(Clone)]
pub struct Denied(Box<DeniedParts>);

#[derive(Clone)]
struct DeniedParts {
    decision: Decision,
    denial: Denial,
    headers: Headers,
}

impl Denied {
    /// Creates the response to a request of `subject` that `decision` denies, in the default form
    /// and with the default headers.
    #[must_use]
    pub fn new(decision: Decision, subject: &Subject) -> Self {
        let headers = Headers::default();
        let reason = DenialReason::Decision { decision: &decision, subject, rule: None };
        let denial =
            DenialBody::default().denial(reason, headers.governing_limit(), Protocol::Http);
        Self::with_headers(decision, denial, headers)
    }

    /// Returns `decision` if it allows the request of `subject`.
    ///
    /// # Errors
    ///
    /// Returns the response to send if `decision` denies the request.
    pub fn check(decision: Decision, subject: &Subject) -> Result<Decision, Self> {
        if decision.is_forwarded() { Ok(decision) } else { Err(Self::new(decision, subject)) }
    }

    pub(super) fn with_headers(decision: Decision, denial: Denial, headers: Headers) -> Self {
        Self(Box::new(DeniedParts { decision, denial, headers }))
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

    /// Returns the decision, the denial, and the header lines for the decision.
    pub fn into_parts(self) -> (Decision, Denial, HeaderLines) {
        let DeniedParts { decision, denial, headers } = *self.0;
        let lines = headers.lines(&decision);
        (decision, denial, lines)
    }
}

debug_as_display!(Denied);

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the rate limiter denied the request with status {}", self.0.denial.status)
    }
}

impl std::error::Error for Denied {}
