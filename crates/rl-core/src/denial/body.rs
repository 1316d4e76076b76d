use std::borrow::Cow;
use std::fmt::Write;

use super::reason::Reason;
use super::{Denial, grpc, json};
use crate::{Decision, Follow, Realm};

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

    /// Problem details (RFC 9457), with the names of all limits that deny.
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
        Self { form, prefix: Cow::Borrowed(""), problem_types, no_store: true }
    }

    /// Text before every message, such as `OBP-10018: `.
    ///
    /// Defaults to none. Problem details have no message.
    pub fn prefix(mut self, prefix: impl Into<Cow<'static, str>>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Where the types of problems are defined: a URI to which `quota-exceeded`,
    /// `temporary-reduced-capacity`, `missing-key` or `ambiguous-key` is appended, or `about:blank`, which
    /// stands alone and says that the status tells all there is to know.
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

    /// The answer to a request that `decision` denies, made by a caller of `realm`.
    ///
    /// The message names the limit that governs under `follow`. `grpc` is for requests that
    /// [are gRPC](super::is_grpc).
    #[must_use]
    pub fn denial(&self, decision: &Decision, realm: &Realm, follow: Follow, grpc: bool) -> Denial {
        let reason = match decision.governing(follow) {
            Some(governing) => Reason::OverLimit { decision, governing, realm },
            None => Reason::Undecided { decision },
        };
        self.answer(reason, grpc)
    }

    /// The answer to a request that does not tell whom to count, where that is set to be denied.
    #[must_use]
    pub fn missing_key(&self, grpc: bool) -> Denial {
        self.answer(Reason::MissingKey, grpc)
    }

    /// Returns the answer to a request whose key is
    /// [ambiguous](crate::key::AmbiguousKey).
    #[must_use]
    pub fn ambiguous_key(&self, grpc: bool) -> Denial {
        self.answer(Reason::AmbiguousKey, grpc)
    }

    fn answer(&self, reason: Reason<'_>, grpc: bool) -> Denial {
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
        reason.push_to(&mut message);
        message
    }

    fn code_and_message(&self, reason: Reason<'_>) -> String {
        let mut body = self.room();
        body.push_str(r#"{"code":"#);
        body.push_str(itoa::Buffer::new().format(reason.status()));
        body.push_str(r#","message":""#);
        json::push_escaped(&mut body, &self.prefix);
        reason.push_to(&mut body);
        body.push_str(r#""}"#);
        body
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
        if let Reason::OverLimit { decision, .. } = reason {
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
            Reason::OverLimit { .. } => (
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
