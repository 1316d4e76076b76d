use std::fmt;

use http::Response;
use rl_core::{Decision, Subject, gate};

use crate::{headers, response};

/// The response to a denied decision, for handlers that ask the limiter themselves.
///
/// It is a response of `http` with any body made from text, and one of axum. Outer layers find the
/// decision in its extensions. The [crate](crate#decisions-in-handlers) shows how it is used;
/// [`Gate::denied`](rl_core::Gate::denied) makes one in the form and with the headers of a gate.
#[derive(Clone)]
pub struct Denied(gate::Denied);

impl Denied {
    /// Makes the response to a request of `subject` that `decision` denies, in the default form.
    #[must_use]
    pub fn new(decision: Decision, subject: &Subject) -> Self {
        Self(gate::Denied::new(decision, subject))
    }

    /// Returns `decision` if it allows the request.
    ///
    /// # Errors
    ///
    /// Returns the response to send if `decision` denies the request.
    pub fn unless_allowed(decision: Decision, subject: &Subject) -> Result<Decision, Self> {
        gate::Denied::unless_allowed(decision, subject).map_err(Self)
    }

    /// Returns the decision.
    #[must_use]
    pub fn decision(&self) -> &Decision {
        self.0.decision()
    }
}

/// Keeps the form and the headers of the gate: `Err(gate.denied(decision, &subject))?`.
impl From<gate::Denied> for Denied {
    fn from(denied: gate::Denied) -> Self {
        Self(denied)
    }
}

impl<B: From<String>> From<Denied> for Response<B> {
    fn from(Denied(denied): Denied) -> Self {
        let mut lines = http::HeaderMap::new();
        denied.write_headers(&mut |line| headers::add(&mut lines, line));
        let (decision, denial) = denied.into_parts();
        let mut response = response::with_body(denial, |body| B::from(body.into_owned()));
        response.headers_mut().extend(lines);
        response.extensions_mut().insert(decision);
        response
    }
}

#[cfg(feature = "axum")]
impl axum::response::IntoResponse for Denied {
    fn into_response(self) -> axum::response::Response {
        self.into()
    }
}

impl fmt::Debug for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Denied {}
