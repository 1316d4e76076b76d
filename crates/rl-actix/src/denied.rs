use std::fmt;

use actix_web::http::StatusCode;
use actix_web::{HttpRequest, HttpResponse, Responder, ResponseError};
use rl_core::adapter::{self, ResponseHead};
use rl_core::{Decision, Subject};

use crate::response::{self, ActixResponse};

/// The response to a denied decision, for handlers that call the limiter themselves.
///
/// It is a [`Responder`], and a [`ResponseError`] for `?`. Outer middlewares find the decision in
/// the extensions of the response. The [crate](crate#decisions-in-handlers) has an example.
/// [`RateLimit::denied`](crate::RateLimit::denied) creates a denial with the form and the headers
/// of that middleware.
#[derive(Clone)]
pub struct Denied(adapter::Denied);

impl Denied {
    /// Creates the response to a request of `subject` that `decision` denies, in the default form.
    #[must_use]
    pub fn new(decision: Decision, subject: &Subject) -> Self {
        Self(adapter::Denied::new(decision, subject))
    }

    /// Returns `decision` if it allows the request of `subject`.
    ///
    /// # Errors
    ///
    /// Returns the response to send if `decision` denies the request.
    pub fn check(decision: Decision, subject: &Subject) -> Result<Decision, Self> {
        adapter::Denied::check(decision, subject).map_err(Self)
    }

    /// Returns the decision.
    #[must_use]
    pub fn decision(&self) -> &Decision {
        self.0.decision()
    }
}

impl From<adapter::Denied> for Denied {
    fn from(denied: adapter::Denied) -> Self {
        Self(denied)
    }
}

impl ResponseError for Denied {
    fn status_code(&self) -> StatusCode {
        response::status_of(self.0.denial())
    }

    fn error_response(&self) -> HttpResponse {
        let (decision, denial, lines) = self.0.clone().into_parts();
        let mut response = response::boxed(denial);
        ActixResponse(&mut response).add_headers(&lines);
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

rl_core::debug_as_display!(Denied);

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
