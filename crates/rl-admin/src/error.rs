use std::fmt;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use rl_core::store::StoreError;
use rl_records::{ChangeError, DatabaseError, InvalidField};
use serde::Serialize;
use utoipa::ToSchema;

use crate::Role;

/// An answer other than success: a status, a sentence, and the field it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    status: StatusCode,
    body: Problem,
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Problem {
    /// The status once more.
    code: u16,
    /// A sentence for people.
    message: String,
    /// The field, parameter or header that cannot be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
    /// What was expected of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    expected: Option<String>,
}

impl ApiError {
    /// An answer of this status.
    #[must_use]
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        let code = status.as_u16();
        Self {
            status,
            body: Problem { code, message: message.into(), field: None, expected: None },
        }
    }

    /// 400: what was given in `field` is not what was expected.
    #[must_use]
    pub fn invalid(field: &str, expected: &str) -> Self {
        let mut error = Self::new(StatusCode::BAD_REQUEST, format!("{field}: expected {expected}"));
        error.body.field = Some(field.to_owned());
        error.body.expected = Some(expected.to_owned());
        error
    }

    /// 401.
    pub(crate) fn not_logged_in() -> Self {
        let message = "OBP-20001: not logged in: expected credentials that are known here";
        Self::new(StatusCode::UNAUTHORIZED, message)
    }

    /// 503: it cannot be found out who asks.
    pub(crate) fn no_answer_who() -> Self {
        let message = "it cannot be found out at present who is asking";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, message)
    }

    /// 403.
    pub(crate) fn missing_role(role: Role) -> Self {
        let message = format!("OBP-20006: UserHasMissingRoles: {role}");
        Self::new(StatusCode::FORBIDDEN, message)
    }

    /// 404.
    pub(crate) fn not_found(what: impl fmt::Display) -> Self {
        Self::new(StatusCode::NOT_FOUND, format!("{what} not found"))
    }

    /// The status.
    #[must_use]
    pub const fn status(&self) -> StatusCode {
        self.status
    }

    /// The sentence.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.body.message
    }

    /// The field it is about, if it is about one.
    #[must_use]
    pub fn field(&self) -> Option<&str> {
        self.body.field.as_deref()
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.body.message)
    }
}

impl std::error::Error for ApiError {}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body)).into_response();
        let headers = response.headers_mut();
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<InvalidField> for ApiError {
    fn from(error: InvalidField) -> Self {
        Self::invalid(error.field(), error.expected())
    }
}

impl From<DatabaseError> for ApiError {
    fn from(error: DatabaseError) -> Self {
        let cause = std::error::Error::source(&error).map(tracing::field::display);
        tracing::warn!(target: "rl_admin", kind = error.kind().as_str(), cause, "{error}");
        Self::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        tracing::warn!(target: "rl_admin", kind = error.kind().as_str(), "{error}");
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "the counters cannot be reached")
    }
}

impl<T> From<ChangeError<T>> for ApiError {
    fn from(error: ChangeError<T>) -> Self {
        match error {
            ChangeError::Invalid(error) => error.into(),
            ChangeError::Database(error) => error.into(),
            ChangeError::NotFound => Self::not_found("limit"),
            other => Self::new(StatusCode::PRECONDITION_FAILED, other.to_string()),
        }
    }
}
