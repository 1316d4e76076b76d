use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use crate::error::ApiError;
use crate::failure::DependencyFailure;

/// The reason why a page cannot be shown. [`guard`](super::guard) renders it.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) status: StatusCode,
    pub(super) title: &'static str,
    pub(super) message: String,
    /// The dependency that caused the failure, for the log.
    pub(super) dependency: Option<DependencyFailure>,
}

impl Failure {
    pub(super) fn new(status: StatusCode, title: &'static str, message: impl Into<String>) -> Self {
        Self { status, title, message: message.into(), dependency: None }
    }

    pub(super) fn no_page() -> Self {
        let message = "There is nothing at this address.";
        Self::new(StatusCode::NOT_FOUND, "Not found", message)
    }

    pub(super) fn no_subscription() -> Self {
        let message = "There is no such subscription.";
        Self::new(StatusCode::NOT_FOUND, "No such subscription", message)
    }

    pub(super) fn no_record() -> Self {
        let message = "There are no such limits. They may have been deleted: see the changes.";
        Self::new(StatusCode::NOT_FOUND, "No such limits", message)
    }

    pub(super) fn foreign_form() -> Self {
        let message = "This form was not sent from a page of this site. Nothing was changed. \
                       Go back, load the page again, and send the form from there.";
        Self::new(StatusCode::FORBIDDEN, "Refused", message)
    }

    pub(super) fn login_through_proxy() -> Self {
        let message = "This console accepts logins only from its own machine, at localhost, 127.0.0.1 or \
                       [::1]. For others, set the origin at which browsers see it, such as \
                       https://limits.example.com: RL_ADMIN_ORIGIN of rl-admin, or origin in the \
                       file of the decision server. The cookie then needs TLS.";
        Self::new(StatusCode::FORBIDDEN, "Not from this machine", message)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

impl<E: Into<ApiError>> From<E> for Failure {
    fn from(error: E) -> Self {
        let mut error: ApiError = error.into();
        let dependency = error.take_failure();
        let title = match error.status() {
            StatusCode::FORBIDDEN => "Not allowed",
            StatusCode::SERVICE_UNAVAILABLE => "Not available at present",
            _ => "That did not work",
        };
        let mut letters = error.message().chars();
        let first = letters.next().map(|letter| letter.to_ascii_uppercase());
        let message: String = first.into_iter().chain(letters).chain(['.']).collect();
        Self { dependency, ..Self::new(error.status(), title, message) }
    }
}
