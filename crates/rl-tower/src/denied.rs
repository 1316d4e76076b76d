use std::fmt;

use http::Response;
use rl_core::adapter::{self, ResponseHead};
use rl_core::{Decision, Subject};

use crate::response::{self, HttpResponse};

/// The response to a denied decision, for handlers that call the limiter themselves.
///
/// It converts into a [`Response`] with any body that can be made from text, and axum can send it
/// as a response. Outer layers find the decision in its extensions. The
/// [crate](crate#decisions-in-handlers) has an example.
/// [`RateLimitLayer::denied`](crate::RateLimitLayer::denied) creates one with the form and the
/// headers of a layer.
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

impl<B: From<String>> From<Denied> for Response<B> {
    fn from(Denied(denied): Denied) -> Self {
        let (decision, denial, lines) = denied.into_parts();
        let mut response = response::with_body(denial, |body| B::from(body.into_owned()));
        HttpResponse(&mut response).add_headers(&lines);
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

rl_core::debug_as_display!(Denied);

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Denied {}
