//! The body of an error response.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

/// An error response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct Problem {
    /// The status, as in the status line.
    code: u16,
    /// A message for people.
    message: String,
    /// The field, parameter or header that is not valid.
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
}

impl Problem {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { code: status.as_u16(), message: message.into(), field: None }
    }

    /// Creates a 400 for a field, parameter or header.
    pub(super) fn invalid(field: &str, message: impl Into<String>) -> Self {
        let problem = Self::new(StatusCode::BAD_REQUEST, message);
        Self { field: Some(field.to_owned()), ..problem }
    }

    /// Creates a 400 for a field whose value is not the expected one. The value must not be secret.
    pub(super) fn unexpected(field: &str, value: &str, expected: &str) -> Self {
        let value: String = value.chars().take(80).collect();
        Self::invalid(field, format!("{field} {value:?}: expected {expected}"))
    }

    /// Creates a 404 for a path that does not exist.
    pub(super) fn no_such_path() -> Self {
        Self::new(StatusCode::NOT_FOUND, "there is nothing at this path")
    }

    /// Creates a 405.
    pub(super) fn no_such_method() -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "this path has no such method")
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.code).unwrap_or(StatusCode::BAD_REQUEST);
        let mut response = (status, Json(self)).into_response();
        if status == StatusCode::UNAUTHORIZED {
            let scheme = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
        }
        response
    }
}
