use std::borrow::Cow;
use std::fmt::Write;

use super::words::{PushId, Reason, push_json, push_plain};
use super::{Denial, DenialReason, grpc, json};
use crate::decision::GoverningLimit;

/// The form of the answers to clients that are turned away.
///
/// Defaults to [`DenialBody::open_bank`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct DenialBody {
    form: Form,
    prefix: Cow<'static, str>,
    problem_types: Cow<'static, str>,
    no_store: bool,
    names_consumer: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    OpenBank,
    Problem,
    Text,
    Empty,
}

impl DenialBody {
    /// Where the types of problems are defined unless [set](DenialBody::problem_types) otherwise:
    /// `quota-exceeded` and `temporary-reduced-capacity` of the IETF draft on rate limit fields.
    ///
    /// Provisional: the draft is not published, and the registry does not list them yet.
    pub const PROVISIONAL_TYPES: &'static str = "https://iana.org/assignments/http-problem-types#";

    /// JSON as the Open Bank Project sends it: `{"code":429,"message":"Too Many Requests. …"}`.
    pub const fn open_bank() -> Self {
        Self::of(Form::OpenBank)
    }

    /// Problem details (RFC 9457), with the names of all limits that deny. A `detail` is added where the
    /// other members do not say enough: for a block, for a cost that is never granted, and for a limit
    /// that does not count requests.
    ///
    /// ```json
    /// {"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",
    ///  "title":"Request cannot be satisfied as assigned quota has been exceeded",
    ///  "status":429,
    ///  "violated-policies":["minute"]}
    /// ```
    pub const fn problem() -> Self {
        Self::of(Form::Problem)
    }

    /// One sentence of plain text.
    pub const fn text() -> Self {
        Self::of(Form::Text)
    }

    /// No body.
    pub const fn empty() -> Self {
        Self::of(Form::Empty)
    }

    const fn of(form: Form) -> Self {
        let problem_types = Cow::Borrowed(Self::PROVISIONAL_TYPES);
        let (prefix, no_store, names_consumer) = (Cow::Borrowed(""), true, false);
        Self { form, prefix, problem_types, no_store, names_consumer }
    }

    /// Text before every message, such as `OBP-10018: `.
    ///
    /// Defaults to none. Problem details have no message.
    pub fn prefix(mut self, prefix: impl Into<Cow<'static, str>>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Where the types of problems are defined: a URI to which `quota-exceeded`,
    /// `temporary-reduced-capacity`, `missing-key` or `ambiguous-key` is appended, or `about:blank`, which is
    /// used alone and means that the status says everything.
    ///
    /// Defaults to [`DenialBody::PROVISIONAL_TYPES`], which has neither of the last two; there they are
    /// `about:blank`.
    pub fn problem_types(mut self, base: impl Into<Cow<'static, str>>) -> Self {
        self.problem_types = base.into();
        self
    }

    /// Whether answers carry `Cache-Control: no-store`. Caches must not store a 429 anyway; this is
    /// for those that do.
    ///
    /// Defaults to `true`.
    pub fn no_store(mut self, no_store: bool) -> Self {
        self.no_store = no_store;
        self
    }

    /// Sets whether the message of [`DenialBody::open_bank`] names the consumer that is over a limit or
    /// blocked, as newer versions of the Open Bank Project do: `… for this Consumer (consumer_id: …).`
    ///
    /// Defaults to `false`. Only the id of a subject in [`Realm::Consumer`](crate::Realm::Consumer) is
    /// named, never that of a key, an address or a person. Control characters in it are replaced.
    pub fn names_consumer(mut self, names_consumer: bool) -> Self {
        self.names_consumer = names_consumer;
        self
    }

    /// Returns the answer to a request that is rejected for `reason`.
    ///
    /// The message names the limit that governs under `follow`. `grpc` is for requests that
    /// [are gRPC](super::is_grpc).
    #[must_use]
    pub fn denial(&self, reason: DenialReason<'_>, follow: GoverningLimit, grpc: bool) -> Denial {
        let reason = Reason::new(reason, follow);
        if grpc {
            let message = (self.form != Form::Empty).then(|| self.message(reason));
            return grpc::denial(reason, message.as_deref());
        }
        let (content_type, body) = match self.form {
            Form::OpenBank => (Some("application/json"), self.code_and_message(reason)),
            Form::Problem => (Some("application/problem+json"), self.problem_details(reason)),
            Form::Text => (Some("text/plain; charset=utf-8"), self.message(reason)),
            Form::Empty => (None, String::new()),
        };
        let mut headers = Vec::new();
        if self.no_store {
            headers.push(("cache-control", Cow::Borrowed("no-store")));
        }
        Denial { status: reason.status(), content_type, body: body.into(), headers }
    }

    fn message(&self, reason: Reason<'_>) -> String {
        let mut message = self.room();
        message.push_str(&self.prefix);
        reason.push_to(&mut message, self.id(push_plain));
        message
    }

    fn code_and_message(&self, reason: Reason<'_>) -> String {
        let mut body = self.room();
        body.push_str(r#"{"code":"#);
        body.push_str(itoa::Buffer::new().format(reason.status()));
        body.push_str(r#","message":""#);
        json::push_escaped(&mut body, &self.prefix);
        reason.push_to(&mut body, self.id(push_json));
        body.push_str(r#""}"#);
        body
    }

    /// Returns the function that writes the id of a consumer, if the message is to name it.
    fn id(&self, push: PushId) -> Option<PushId> {
        (self.names_consumer && self.form == Form::OpenBank).then_some(push)
    }

    /// A text that nearly always has room for the whole answer.
    fn room(&self) -> String {
        String::with_capacity(self.prefix.len() + 144)
    }

    fn problem_details(&self, reason: Reason<'_>) -> String {
        let (kind, title) = self.problem_type(reason);
        let mut body = String::from(r#"{"type":"#);
        json::push_string(&mut body, &kind);
        write!(body, r#","title":"{title}","status":{}"#, reason.status())
            .expect("a String takes all text");
        if reason.has_detail() {
            body.push_str(r#","detail":""#);
            reason.push_to(&mut body, None);
            body.push('"');
        }
        if let Some(decision) = reason.over_limit() {
            body.push_str(r#","violated-policies":["#);
            for (i, limit) in decision.enforced().filter(|limit| limit.is_over()).enumerate() {
                if i != 0 {
                    body.push(',');
                }
                json::push_string(&mut body, limit.name());
            }
            body.push(']');
        }
        body.push('}');
        body
    }

    /// The type of a problem, and its title, which belongs to the type.
    fn problem_type(&self, reason: Reason<'_>) -> (Cow<'_, str>, &'static str) {
        const ABOUT_BLANK: &str = "about:blank";
        let base = match reason {
            Reason::MissingKey | Reason::AmbiguousKey
                if self.problem_types == Self::PROVISIONAL_TYPES =>
            {
                ABOUT_BLANK
            }
            _ => &self.problem_types,
        };
        if base == ABOUT_BLANK {
            return (Cow::Borrowed(ABOUT_BLANK), reason.phrase());
        }
        let (name, title) = match reason {
            Reason::Blocked { .. } | Reason::TooCostly { .. } | Reason::OverLimit { .. } => (
                "quota-exceeded",
                "Request cannot be satisfied as assigned quota has been exceeded",
            ),
            Reason::Undecided { .. } => (
                "temporary-reduced-capacity",
                "Request cannot be satisfied due to temporary server capacity constraints",
            ),
            Reason::MissingKey => ("missing-key", "No rate limit key was found in the request"),
            Reason::AmbiguousKey => ("ambiguous-key", "The rate limit key can be read in two ways"),
        };
        (Cow::Owned(format!("{base}{name}")), title)
    }
}

impl Default for DenialBody {
    fn default() -> Self {
        Self::open_bank()
    }
}
