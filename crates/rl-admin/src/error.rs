use std::collections::BTreeMap;
use std::fmt;
use std::sync::LazyLock;
use std::time::Duration;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use rl_core::FailureKind;
use rl_core::StoreError;
use rl_core::observe::Transition;
use rl_records::{ChangeError, DatabaseError, InvalidField};
use serde::Serialize;
use utoipa::openapi::{self, ContentBuilder, Ref, RefOr, ResponseBuilder};
use utoipa::{IntoResponses, ToSchema};

use crate::Role;
use crate::access::TooManyAttempts;

/// An answer other than success: a status, a sentence, and the field it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    status: StatusCode,
    // Boxed, because most functions return this error type and few requests fail.
    body: Box<Problem>,
    // Of what is there, if the client has seen another one.
    revision: Option<i64>,
    // Seconds until a retry.
    retry_after: Option<u64>,
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
    /// All fields that are missing, if any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    missing: Vec<String>,
}

impl ApiError {
    /// An answer of this status.
    #[must_use]
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        let code = status.as_u16();
        let (message, missing) = (message.into(), Vec::new());
        let body = Box::new(Problem { code, message, field: None, expected: None, missing });
        Self { status, body, revision: None, retry_after: None }
    }

    /// 400: what was given in `field` is not what was expected.
    #[must_use]
    pub fn invalid(field: &str, expected: &str) -> Self {
        let mut error = Self::new(StatusCode::BAD_REQUEST, format!("{field}: expected {expected}"));
        error.body.field = Some(field.to_owned());
        error.body.expected = Some(expected.to_owned());
        error
    }

    /// 400: the same with a message of its own.
    pub(crate) fn invalid_as(field: &str, expected: &str, message: String) -> Self {
        let mut error = Self::invalid(field, expected);
        error.body.message = message;
        error
    }

    /// 400: the value was not expected. The message repeats it, so it must not be secret.
    pub(crate) fn invalid_value(field: &str, value: &str, expected: &str) -> Self {
        let value: String = value.chars().take(80).collect();
        let message = format!("{field} {value:?}: expected {expected}");
        Self::invalid_as(field, expected, message)
    }

    /// 400: fields that are not known, and those that are missing.
    pub(crate) fn fields(unknown: &[&str], missing: &[&str], known: &[&str]) -> Self {
        let listed = |names: &[&str], kind: &str| {
            let plural = if names.len() == 1 { "" } else { "s" };
            let names: Vec<String> =
                names.iter().take(20).map(|name| name.chars().take(80).collect()).collect();
            (!names.is_empty()).then(|| format!("{kind} field{plural}: {}", names.join(", ")))
        };
        let field = unknown.iter().chain(missing).next().copied().unwrap_or_default();
        let field: String = field.chars().take(80).collect();
        let expected = match (missing, known) {
            ([], [one]) => (*one).to_owned(),
            ([], known) => format!("one of {}", known.join(", ")),
            (missing, _) => format!("a value of {}", missing.join(", ")),
        };
        let is_complete = missing.is_empty();
        let names = missing.iter().map(|name| (*name).to_owned()).collect();
        let (unknown, missing) = (listed(unknown, "unknown"), listed(missing, "missing"));
        let hint = is_complete.then(|| format!("expected {expected}"));
        let parts: Vec<String> = [unknown, missing, hint].into_iter().flatten().collect();
        let mut error = Self::invalid_as(&field, &expected, parts.join("; "));
        error.body.missing = names;
        error
    }

    /// 400, in the words that clients of such systems know.
    pub(crate) fn invalid_hour(given: &str) -> Self {
        const FORMAT: &str =
            "YYYY-MM-DD-HH in UTC (e.g. 2025-12-31-13 for hour 13:00-13:59 UTC on Dec 31, 2025)";
        let given: String = given.chars().take(80).collect();
        let message = format!("Current date format is: {given}. Please use this format: {FORMAT}");
        Self::invalid_as("DATE_WITH_HOUR", FORMAT, message)
    }

    /// 412: the precondition names another revision than the current one.
    pub(crate) fn not_as_seen(name: &str, revision: i64) -> Self {
        let message = format!(
            "If-Match does not name the current revision: it is {revision} and was written by {name:?}; \
             read it and try again"
        );
        let mut error = Self::new(StatusCode::PRECONDITION_FAILED, message);
        error.revision = Some(revision);
        error
    }

    /// 412: the client has sent a precondition, but there is nothing to change.
    pub(crate) fn nothing_to_match() -> Self {
        let message = "If-Match was sent, but there is nothing to change";
        Self::new(StatusCode::PRECONDITION_FAILED, message)
    }

    /// 428: the client must say what it has seen.
    pub(crate) fn without_if_match() -> Self {
        let mut error = Self::invalid("If-Match", "the ETag of what is to be changed");
        error.set_status(StatusCode::PRECONDITION_REQUIRED);
        error
    }

    /// The same about another status.
    pub(crate) fn set_status(&mut self, status: StatusCode) {
        (self.status, self.body.code) = (status, status.as_u16());
    }

    /// 401.
    pub(crate) fn not_logged_in() -> Self {
        let message = "OBP-20001: not logged in: expected credentials that are known here";
        Self::new(StatusCode::UNAUTHORIZED, message)
    }

    /// 429: the client's address has sent too many wrong credentials.
    pub(crate) fn too_many_attempts(TooManyAttempts { retry_after }: TooManyAttempts) -> Self {
        let message = format!(
            "OBP-10061: too many failed authentications from this address. Try again in {retry_after} \
             seconds."
        );
        let mut error = Self::new(StatusCode::TOO_MANY_REQUESTS, message);
        error.retry_after = Some(retry_after);
        error
    }

    /// 400: there are several `Authorization` lines.
    pub(crate) fn ambiguous_credentials() -> Self {
        Self::invalid("Authorization", "one line")
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

    /// Returns the seconds until the client may try again, if waiting helps.
    #[must_use]
    pub const fn retry_after(&self) -> Option<u64> {
        self.retry_after
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
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some(revision) = self.revision {
            headers.insert(header::ETAG, etag(revision));
        }
        response
    }
}

/// The tag of a revision.
pub(crate) fn etag(revision: i64) -> HeaderValue {
    HeaderValue::try_from(format!("\"{revision}\"")).expect("digits and quotes")
}

/// For the document: what any operation may answer.
pub(crate) struct Refusals;

/// And what a change may answer besides.
pub(crate) struct ChangeRefusals;

impl IntoResponses for Refusals {
    fn responses() -> BTreeMap<String, RefOr<openapi::Response>> {
        problems(&[
            ("400", "Something that was given cannot be used"),
            ("401", "It is not known who asks"),
            ("403", "The role is missing"),
            ("404", "It is not there"),
            ("429", "Too many wrong credentials came from this address"),
            ("503", "The database or the counters cannot be reached"),
        ])
    }
}

impl IntoResponses for ChangeRefusals {
    fn responses() -> BTreeMap<String, RefOr<openapi::Response>> {
        let mut all = problems(&[
            ("408", "The body took too long"),
            ("409", "It is not clear what is meant, or there is one already"),
            ("412", "The current revision is not one that If-Match names"),
            ("413", "The body is too long"),
            ("415", "The body is not JSON"),
            ("428", "The request does not say which revision it is about"),
        ]);
        all.extend(Refusals::responses());
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
        Self::invalid(error.field(), error.expected())
    }
}

/// The time without a failure after which the next one begins another outage, with a log line of its own.
const CALM: Duration = Duration::from_secs(10);

/// Notes a failure. Returns whether it begins an outage, so that an outage is one line in the log.
fn is_first(failing: &Transition) -> bool {
    failing.ended();
    failing.occurred()
}

impl From<DatabaseError> for ApiError {
    fn from(error: DatabaseError) -> Self {
        static FAILING: LazyLock<Transition> = LazyLock::new(|| Transition::new(CALM));
        if is_first(&FAILING) {
            let (kind, cause) = (error.kind().as_str(), tracing::field::display(&error));
            tracing::warn!(target: "rl_admin", kind, cause, "database failing");
        }
        Self::new(StatusCode::SERVICE_UNAVAILABLE, error.summary())
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        static FAILING: LazyLock<Transition> = LazyLock::new(|| Transition::new(CALM));
        if is_first(&FAILING) {
            let (kind, cause) = (error.kind().as_str(), tracing::field::display(&error));
            tracing::warn!(target: "rl_admin", kind, cause, "counters failing");
        }
        let message = match error.kind() {
            FailureKind::Corrupt => {
                "the counters of this subject are damaged; reset them to repair them"
            }
            _ => "the counters cannot be reached",
        };
        Self::new(StatusCode::SERVICE_UNAVAILABLE, message)
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
