use std::collections::BTreeMap;
use std::fmt;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use rl_core::{FailureKind, ResetError, StoreError};
use rl_records::{ChangeError, DatabaseError, InvalidField};
use serde::Serialize;
use utoipa::openapi::{self, ContentBuilder, Ref, RefOr, ResponseBuilder};
use utoipa::{IntoResponses, ToSchema};

use crate::access::{Role, TooManyAttempts};
use crate::failure::{Dependency, DependencyFailure};
use crate::field_hints::{example, nearest};

/// An error response: a status, a message, and the invalid field if there is one.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiError {
    status: StatusCode,
    // Boxed to keep results small: most functions can return this error, but few requests fail.
    body: Box<Problem>,
    // The current revision, if the request expected another one.
    revision: Option<i64>,
    // The seconds until the client may retry.
    retry_after: Option<u64>,
    // The dependency whose failure caused the error, for the log.
    failure: Option<Box<DependencyFailure>>,
}

/// The body of an error response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Problem {
    /// The status, as in the status line.
    code: u16,
    /// A message for people.
    message: String,
    /// The field, parameter or header that is invalid.
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
    /// The expected value.
    #[serde(skip_serializing_if = "Option::is_none")]
    expected: Option<String>,
    /// All missing fields, if any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    missing: Vec<String>,
}

impl ApiError {
    /// Creates an error with this status and message.
    #[must_use]
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        let code = status.as_u16();
        let message = message.into();
        let body =
            Box::new(Problem { code, message, field: None, expected: None, missing: Vec::new() });
        Self { status, body, revision: None, retry_after: None, failure: None }
    }

    /// Creates a 400 for a field whose value is not the expected one.
    #[must_use]
    pub fn invalid(field: &str, expected: &str) -> Self {
        let mut error = Self::new(StatusCode::BAD_REQUEST, format!("{field}: expected {expected}"));
        error.body.field = Some(field.to_owned());
        error.body.expected = Some(expected.to_owned());
        error
    }

    /// Creates a 400 like [`invalid`](Self::invalid), but with the given message.
    pub(crate) fn invalid_as(field: &str, expected: &str, message: String) -> Self {
        let mut error = Self::invalid(field, expected);
        error.body.message = message;
        error
    }

    /// Creates a 400 whose message quotes the value, which must not be secret.
    pub(crate) fn invalid_value(field: &str, value: &str, expected: &str) -> Self {
        let value: String = value.chars().take(80).collect();
        let message = format!("{field} {value:?}: expected {expected}");
        Self::invalid_as(field, expected, message)
    }

    /// Returns the error with another name for the field, if it is about `field`.
    pub(crate) fn renamed(mut self, field: &str, name: &str) -> Self {
        if self.body.field.as_deref() == Some(field) {
            self.body.field = Some(name.to_owned());
            self.body.message = self.body.message.replacen(field, name, 1);
        }
        self
    }

    /// Creates a 400 that names all unknown and all missing fields.
    pub(crate) fn fields(unknown: &[&str], missing: &[&str], known: &[&str]) -> Self {
        let listed = |names: &[&str], kind: &str| {
            let plural = if names.len() == 1 { "" } else { "s" };
            let names: Vec<String> =
                names.iter().take(20).map(|name| name.chars().take(80).collect()).collect();
            (!names.is_empty()).then(|| format!("{kind} field{plural}: {}", names.join(", ")))
        };
        let field = unknown.iter().chain(missing).next().copied().unwrap_or_default();
        let field: String = field.chars().take(80).collect();
        let meant = unknown.first().and_then(|name| nearest(name, known));
        let expected = match (meant, unknown, known) {
            (Some(meant), ..) => meant.to_owned(),
            (None, [], _) => format!("a value such as {}", example(missing)),
            (None, _, [one]) => (*one).to_owned(),
            (None, _, known) => format!("one of {}", known.join(", ")),
        };
        let is_complete = missing.is_empty();
        let names = missing.iter().map(|name| (*name).to_owned()).collect();
        let (unknown, missing) = (listed(unknown, "unknown"), listed(missing, "missing"));
        let hint = match meant {
            Some(meant) => Some(format!("did you mean {meant}?")),
            None => is_complete.then(|| format!("expected {expected}")),
        };
        let parts: Vec<String> = [unknown, missing, hint].into_iter().flatten().collect();
        let mut error = Self::invalid_as(&field, &expected, parts.join("; "));
        error.body.missing = names;
        error
    }

    /// Creates a 400 for an invalid hour, with the message that clients of open banking systems
    /// expect.
    pub(crate) fn invalid_hour(given: &str) -> Self {
        const FORMAT: &str =
            "YYYY-MM-DD-HH in UTC (e.g. 2025-12-31-13 for hour 13:00-13:59 UTC on Dec 31, 2025)";
        let given: String = given.chars().take(80).collect();
        let message = format!("Current date format is: {given}. Please use this format: {FORMAT}");
        Self::invalid_as("DATE_WITH_HOUR", FORMAT, message)
    }

    /// Creates a 412 for a precondition that does not match the current revision.
    pub(crate) fn revision_mismatch(name: &str, revision: i64) -> Self {
        let message = format!(
            "If-Match does not name the current revision: it is {revision} and was written by {name:?}; \
             read it and try again"
        );
        let mut error = Self::new(StatusCode::PRECONDITION_FAILED, message);
        error.revision = Some(revision);
        error
    }

    /// Creates a 412 for a precondition on an object that does not exist.
    pub(crate) fn nothing_to_match() -> Self {
        let message = "If-Match was sent, but there is nothing to change";
        Self::new(StatusCode::PRECONDITION_FAILED, message)
    }

    /// Creates a 428 for a change that lacks the required precondition.
    pub(crate) fn missing_if_match() -> Self {
        let mut error = Self::invalid("If-Match", "the ETag of the object to change");
        error.status = StatusCode::PRECONDITION_REQUIRED;
        error.body.code = error.status.as_u16();
        error
    }

    /// Creates a 401 for missing or wrong credentials.
    pub(crate) fn unauthenticated() -> Self {
        let message = "OBP-20001: not logged in: expected valid credentials";
        Self::new(StatusCode::UNAUTHORIZED, message)
    }

    /// Creates a 429 for an address that has sent too many wrong credentials.
    pub(crate) fn too_many_attempts(TooManyAttempts { retry_after }: TooManyAttempts) -> Self {
        let message = format!(
            "OBP-10061: too many failed authentications from this address. Try again in {retry_after} \
             seconds."
        );
        let mut error = Self::new(StatusCode::TOO_MANY_REQUESTS, message);
        error.retry_after = Some(retry_after);
        error
    }

    /// Creates a 400 for several `Authorization` lines.
    pub(crate) fn ambiguous_credentials() -> Self {
        Self::invalid("Authorization", "one line")
    }

    /// Creates a 503 for credentials that cannot be checked now.
    pub(crate) fn authentication_unavailable() -> Self {
        let message = "the credentials cannot be checked at present";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, message)
    }

    /// Creates a 403 that names the missing role.
    pub(crate) fn missing_role(role: Role) -> Self {
        let message = format!("OBP-20006: UserHasMissingRoles: {role}");
        Self::new(StatusCode::FORBIDDEN, message)
    }

    /// Creates a 403 for a change of an object that is not the actor's own.
    pub(crate) fn not_owned(expected: &str) -> Self {
        let message = format!("this token is of some applications only: expected {expected}");
        Self::new(StatusCode::FORBIDDEN, message)
    }

    /// Creates a 503 for limits that a source cannot look up.
    pub(crate) fn limits_unavailable(kind: FailureKind) -> Self {
        let message = format!("the limits of this subject cannot be looked up ({})", kind.as_str());
        Self::new(StatusCode::SERVICE_UNAVAILABLE, message)
    }

    /// Creates a 404 for a reset that had nothing to reset.
    pub(crate) fn nothing_reset(reason: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, format!("nothing was reset: {reason}"))
    }

    /// Returns the error with the name of the rule that it is about.
    pub(crate) fn under_rule(mut self, rule: &str) -> Self {
        self.body.message = format!("rule {rule}: {}", self.body.message);
        self
    }

    /// Returns the error of a reset with the names of the rules under which counters were reset,
    /// and of those under which they were not.
    pub(crate) fn partly_done(mut self, reset: &[&str], not_reset: &[&str]) -> Self {
        let reset = match reset {
            [] => String::new(),
            reset => format!("; reset under {}", reset.join(", ")),
        };
        let not_reset = not_reset.join(", ");
        self.body.message = format!("{}; not reset under {not_reset}{reset}", self.body.message);
        self
    }

    /// Creates a 404 for an object that does not exist.
    pub(crate) fn not_found(object: impl fmt::Display) -> Self {
        Self::new(StatusCode::NOT_FOUND, format!("{object} not found"))
    }

    /// Returns the status.
    #[must_use]
    pub const fn status(&self) -> StatusCode {
        self.status
    }

    /// Removes and returns the failure that caused this error, for the log.
    pub(crate) fn take_failure(&mut self) -> Option<DependencyFailure> {
        self.failure.take().map(|failure| *failure)
    }

    /// Returns the seconds until the client may try again, if waiting helps.
    #[must_use]
    pub const fn retry_after(&self) -> Option<u64> {
        self.retry_after
    }

    /// Returns the message.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.body.message
    }

    /// Returns the invalid field, if the error is about a field.
    #[must_use]
    pub fn field(&self) -> Option<&str> {
        self.body.field.as_deref()
    }
}

rl_core::debug_as_display!(ApiError);

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
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some(revision) = self.revision {
            headers.insert(header::ETAG, etag(revision));
        }
        if let Some(failure) = self.failure {
            response.extensions_mut().insert(*failure);
        }
        response
    }
}

/// Returns the entity tag of a revision.
pub(crate) fn etag(revision: i64) -> HeaderValue {
    HeaderValue::try_from(format!("\"{revision}\"")).expect("digits and quotes")
}

/// The error responses of every operation, for the OpenAPI document.
pub(crate) struct ErrorResponses;

/// The error responses of every change, for the OpenAPI document.
pub(crate) struct ChangeErrorResponses;

impl IntoResponses for ErrorResponses {
    fn responses() -> BTreeMap<String, RefOr<openapi::Response>> {
        problems(&[
            ("400", "A value is invalid"),
            ("401", "The credentials are missing or wrong"),
            ("403", "The role is missing"),
            ("404", "The object does not exist"),
            ("429", "Too many wrong credentials came from this address"),
            ("503", "The database or the counters are unavailable"),
        ])
    }
}

impl IntoResponses for ChangeErrorResponses {
    fn responses() -> BTreeMap<String, RefOr<openapi::Response>> {
        let mut all = problems(&[
            ("408", "The body took too long"),
            ("409", "Several objects match, or the object exists already"),
            ("412", "If-Match does not name the current revision"),
            ("413", "The body is too long"),
            ("415", "The body is not JSON"),
            ("428", "The request has no If-Match, which is required"),
        ]);
        all.extend(ErrorResponses::responses());
        all
    }
}

fn problems(answers: &[(&str, &'static str)]) -> BTreeMap<String, RefOr<openapi::Response>> {
    let answers = answers.iter().map(|(status, description)| {
        let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
        let response = ResponseBuilder::new().description(*description);
        ((*status).to_owned(), response.content("application/json", content).build().into())
    });
    answers.collect()
}

impl From<InvalidField> for ApiError {
    fn from(error: InvalidField) -> Self {
        match error.field() {
            "limits" => Self::invalid_value("limits", error.value(), error.expected()),
            field => Self::invalid(field, error.expected()),
        }
    }
}

impl From<DatabaseError> for ApiError {
    fn from(error: DatabaseError) -> Self {
        let mut converted = Self::new(StatusCode::SERVICE_UNAVAILABLE, error.summary());
        converted.failure = Some(Box::new(DependencyFailure {
            dependency: Dependency::Database,
            kind: error.kind().as_str(),
            cause: error.to_string(),
        }));
        converted
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        let message = match error.kind() {
            FailureKind::Corrupt => {
                "the counters of this subject are damaged; reset them to repair them"
            }
            _ => "the counters cannot be reached",
        };
        let message = match (error.kind(), error.detail()) {
            (FailureKind::Unsupported, Some(detail)) => format!("{message}: {detail}"),
            _ => message.to_owned(),
        };
        let mut converted = Self::new(StatusCode::SERVICE_UNAVAILABLE, message);
        // A damaged counter is not an outage, because the store has replied. Neither is a store
        // that has no counters.
        if !matches!(error.kind(), FailureKind::Corrupt | FailureKind::Unsupported) {
            converted.failure = Some(Box::new(DependencyFailure {
                dependency: Dependency::Counters,
                kind: error.kind().as_str(),
                cause: error.to_string(),
            }));
        }
        converted
    }
}

impl From<ResetError> for ApiError {
    fn from(error: ResetError) -> Self {
        match error {
            ResetError::Store(error) => error.into(),
            error => Self::not_found(error.to_string()),
        }
    }
}

impl<T> From<ChangeError<T>> for ApiError {
    fn from(error: ChangeError<T>) -> Self {
        match error {
            ChangeError::Invalid(error) => error.into(),
            ChangeError::Database(error) => error.into(),
            ChangeError::NotFound => Self::not_found("the object to change"),
            ChangeError::MayNotBlock => Self::missing_role(Role::CanCreateRateLimits),
            ChangeError::MayNotUnblock => Self::missing_role(Role::CanDeleteRateLimits),
            ChangeError::Several { ids } => {
                let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
                let message = format!(
                    "the consumer has several limits with this api_name, api_version and bank_id: {}; \
                     change or delete one of them by its id, at /consumer/rate-limits/{{RATE_LIMITING_ID}}",
                    ids.join(", ")
                );
                Self::new(StatusCode::CONFLICT, message)
            }
            other => Self::new(StatusCode::CONFLICT, other.to_string()),
        }
    }
}
