use std::fmt;

use actix_web::http::StatusCode;
use actix_web::{HttpRequest, HttpResponse, Responder, ResponseError};
use rl_core::{Decision, Subject, gate};

use crate::{headers, response};

/// The response to a denied decision, for handlers that ask the limiter themselves.
///
/// It is a [`Responder`], and a [`ResponseError`] for `?`. Outer middlewares find the decision in the
/// extensions of the response. The [crate](crate#decisions-in-handlers) shows how it is used;
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

impl ResponseError for Denied {
    fn status_code(&self) -> StatusCode {
        response::status_of(self.0.denial())
    }

    fn error_response(&self) -> HttpResponse {
        let (decision, denial) = self.0.clone().into_parts();
        let mut response = response::boxed(denial);
        self.0.write_headers(&mut |line| headers::add(response.headers_mut(), line));
        response.extensions_mut().insert(decision);
        response
    }
}

impl Responder for Denied {
    type Body = actix_web::body::BoxBody;

    fn respond_to(self, _: &HttpRequest) -> HttpResponse {
        self.error_response()
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
