use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use crate::ApiError;

/// A page that cannot be shown, and why. [`guard`](super::guard) draws it.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) status: StatusCode,
    pub(super) title: &'static str,
    pub(super) message: String,
}

impl Failure {
    pub(super) fn new(status: StatusCode, title: &'static str, message: impl Into<String>) -> Self {
        Self { status, title, message: message.into() }
    }

    pub(super) fn no_page() -> Self {
        let message = "There is nothing at this address.";
        Self::new(StatusCode::NOT_FOUND, "Not found", message)
    }

    pub(super) fn no_record() -> Self {
        let message = "There is no such record. Somebody may have deleted it: the changes tell.";
        Self::new(StatusCode::NOT_FOUND, "No such record", message)
    }

    pub(super) fn foreign() -> Self {
        let message = "This form was not sent from a page of this console. Nothing was changed. \
                       Go back, load the page again, and send the form from there.";
        Self::new(StatusCode::FORBIDDEN, "Refused", message)
    }

    pub(super) fn through_a_proxy() -> Self {
        let message = "This console takes logins from its own machine alone, at localhost, 127.0.0.1 or \
                       [::1], unless it is told where browsers see it, such as \
                       RL_ADMIN_ORIGIN=https://limits.example.com: the cookie then needs TLS.";
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
        let error: ApiError = error.into();
        let title = match error.status() {
            StatusCode::FORBIDDEN => "Not allowed",
            StatusCode::SERVICE_UNAVAILABLE => "Not available at present",
            _ => "That did not work",
        };
        let mut letters = error.message().chars();
        let first = letters.next().map(|letter| letter.to_ascii_uppercase());
        let message: String = first.into_iter().chain(letters).chain(['.']).collect();
        Self::new(error.status(), title, message)
    }
}
