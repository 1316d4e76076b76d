//! The forms of the body of a denial.

use std::borrow::Cow;
use std::fmt::Write;

use super::open_bank::{self, PushId, push_json, push_plain};
use super::response::{Denial, DenialReason, Protocol};
use super::words::{DenialKind, Explanation};
use super::{grpc, json};
use crate::decision::{GoverningLimit, LimitStatus};

/// The form of the responses to rejected requests.
///
/// Defaults to [`DenialBody::json`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct DenialBody {
    form: Form,
    prefix: Cow<'static, str>,
    problem_types: Cow<'static, str>,
    sends_no_store: bool,
    names_consumer: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Json,
    OpenBank,
    Problem,
    Text,
    Empty,
}

impl DenialBody {
    /// The default base of [problem types](DenialBody::problem_types). It is the base of
    /// `quota-exceeded` and `temporary-reduced-capacity` in the IETF draft on rate limit fields.
    ///
    /// The types are provisional: the draft is not an RFC, and the registry does not list them yet.
    pub const PROVISIONAL_TYPES: &'static str = "https://iana.org/assignments/http-problem-types#";

    /// Creates the JSON form. `limit` is the [public name](crate::LimitStatus::public_name) of the
    /// limit for which the client has to wait: if several limits deny the request, the one with the
    /// longest wait. It is omitted if clients may not know that limit.
    ///
    /// ```json
    /// {"code":429,"message":"Too many requests: 5 per 10 seconds. Try again in 4 seconds.","limit":"10seconds"}
    /// ```
    pub const fn json() -> Self {
        Self::with_form(Form::Json)
    }

    /// Creates the JSON form of the Open Bank Project, in its words:
    /// `{"code":429,"message":"Too Many Requests. We only allow
    /// …"}`. Under [rules](crate::rules) the message ends with `under the rule login` if clients
    /// may read the name of the rule.
    ///
    /// `open_bank` of the adapters sets this form with the prefix, the ids of consumers and the
    /// header fields of the project.
    pub const fn open_bank() -> Self {
        Self::with_form(Form::OpenBank)
    }

    /// Creates the form of problem details (RFC 9457), with the names of all limits that deny. The
    /// field `RateLimit-Policy` lists the limits under the same names.
    ///
    /// ```json
    /// {"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",
    ///  "title":"Request cannot be satisfied as assigned quota has been exceeded",
    ///  "status":429,
    ///  "detail":"Too many requests: 100 per minute. Try again in 42 seconds.",
    ///  "violated-policies":["minute"]}
    /// ```
    pub const fn problem() -> Self {
        Self::with_form(Form::Problem)
    }

    /// Creates a form with one sentence of plain text.
    pub const fn text() -> Self {
        Self::with_form(Form::Text)
    }

    /// Creates a form without a body.
    pub const fn empty() -> Self {
        Self::with_form(Form::Empty)
    }

    const fn with_form(form: Form) -> Self {
        Self {
            form,
            prefix: Cow::Borrowed(""),
            problem_types: Cow::Borrowed(Self::PROVISIONAL_TYPES),
            sends_no_store: true,
            names_consumer: false,
        }
    }

    /// Sets a text that precedes every message, such as `OBP-10018: `.
    ///
    /// Defaults to an empty text. Problem details do not contain it.
    pub fn prefix(mut self, prefix: impl Into<Cow<'static, str>>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets the base URI of problem types, to which `quota-exceeded`, `temporary-reduced-capacity`,
    /// `missing-key` or `ambiguous-key` is appended.
    ///
    /// Nothing is appended to the base `about:blank`, which means that the HTTP status is the whole
    /// problem. The default is [`DenialBody::PROVISIONAL_TYPES`]. That base does not define the
    /// last two types, so `about:blank` is sent for them.
    pub fn problem_types(mut self, base: impl Into<Cow<'static, str>>) -> Self {
        self.problem_types = base.into();
        self
    }

    /// Omits the header `Cache-Control: no-store`.
    ///
    /// By default denials have this header. Caches must not store a 429 in any case, but some
    /// caches do.
    pub fn without_no_store(mut self) -> Self {
        self.sends_no_store = false;
        self
    }

    /// Adds the id of the consumer to the message of [`DenialBody::open_bank`].
    ///
    /// Newer versions of the Open Bank Project send it too: `… for this Consumer (consumer_id: …).`
    /// Only the id of a subject in [`Realm::Consumer`](crate::Realm::Consumer) is added, never the
    /// id of a key, an address or a person. Control characters in the id are replaced.
    pub fn name_consumer(mut self) -> Self {
        self.names_consumer = true;
        self
    }

    /// Returns the response to a request that is rejected for `reason`.
    ///
    /// The message of [`open_bank`](Self::open_bank) names the limit that `governing` chooses.
    /// Other messages state a wait, and name the limit with the longest wait of those that deny.
    #[must_use]
    pub fn denial(
        &self,
        reason: DenialReason<'_>,
        governing: GoverningLimit,
        protocol: Protocol,
    ) -> Denial {
        let reason = Explanation::new(reason, governing);
        if protocol == Protocol::Grpc {
            let message = (self.form != Form::Empty).then(|| self.message(reason));
            return grpc::denial(reason, message.as_deref());
        }
        let (content_type, body) = match self.form {
            Form::Json | Form::OpenBank => {
                (Some("application/json"), self.code_and_message(reason))
            }
            Form::Problem => (Some("application/problem+json"), self.problem_details(reason)),
            Form::Text => (Some("text/plain; charset=utf-8"), self.message(reason)),
            Form::Empty => (None, String::new()),
        };
        let mut headers = Vec::new();
        if self.sends_no_store {
            headers.push(("cache-control", Cow::Borrowed("no-store")));
        }
        Denial { status: reason.status(), content_type, body: body.into(), headers }
    }

    fn message(&self, reason: Explanation<'_>) -> String {
        let mut message = self.buffer();
        message.push_str(&self.prefix);
        self.push_message(reason, &mut message, push_plain);
        message
    }

    fn code_and_message(&self, reason: Explanation<'_>) -> String {
        let mut body = self.buffer();
        body.push_str(r#"{"code":"#);
        body.push_str(itoa::Buffer::new().format(reason.status()));
        body.push_str(r#","message":""#);
        json::push_escaped(&mut body, &self.prefix);
        self.push_message(reason, &mut body, push_json);
        body.push('"');
        if let Some(limit) = reason.longest().filter(|_| self.form == Form::Json) {
            body.push_str(r#","limit":"#);
            push_name(&mut body, limit);
        }
        body.push('}');
        body
    }

    /// Appends the message in the words of the form. `push_id` appends the id of a consumer.
    fn push_message(&self, reason: Explanation<'_>, text: &mut String, push_id: PushId) {
        match self.form {
            Form::OpenBank => open_bank::push_message(reason, text, self.id(push_id)),
            Form::Json | Form::Problem | Form::Text | Form::Empty => reason.push_to(text),
        }
    }

    /// Returns `push` if the message is to contain the id of the consumer, or else `None`.
    fn id(&self, push: PushId) -> Option<PushId> {
        self.names_consumer.then_some(push)
    }

    /// Returns an empty text with a capacity that nearly always suffices for the whole body.
    fn buffer(&self) -> String {
        String::with_capacity(self.prefix.len() + 160)
    }

    fn problem_details(&self, reason: Explanation<'_>) -> String {
        let (kind, title) = self.problem_type(reason);
        let mut body = String::from(r#"{"type":"#);
        json::push_string(&mut body, &kind);
        write!(body, r#","title":"{title}","status":{}"#, reason.status())
            .expect("writing to a String cannot fail");
        if reason.decision.is_some() {
            body.push_str(r#","detail":""#);
            reason.push_to(&mut body);
            body.push('"');
        }
        if reason.disclosed_limit.is_some() {
            body.push_str(r#","violated-policies":["#);
            for (i, limit) in reason.violated().enumerate() {
                if i != 0 {
                    body.push(',');
                }
                push_name(&mut body, limit);
            }
            body.push(']');
        }
        body.push('}');
        body
    }

    /// Returns the type of a problem, and the title of this type.
    fn problem_type(&self, reason: Explanation<'_>) -> (Cow<'_, str>, &'static str) {
        const ABOUT_BLANK: &str = "about:blank";
        use DenialKind::{AmbiguousKey, MissingKey, TooManyRules, UnknownAddress};
        let is_ours =
            matches!(reason.kind, MissingKey | AmbiguousKey | TooManyRules | UnknownAddress);
        let base = match self.problem_types == Self::PROVISIONAL_TYPES {
            true if is_ours => ABOUT_BLANK,
            _ => &self.problem_types,
        };
        if base == ABOUT_BLANK {
            return (Cow::Borrowed(ABOUT_BLANK), reason.phrase());
        }
        let (name, title) = match reason.kind {
            DenialKind::OverLimit | DenialKind::OverUndisclosedLimit => (
                "quota-exceeded",
                "Request cannot be satisfied as assigned quota has been exceeded",
            ),
            DenialKind::Undecided => (
                "temporary-reduced-capacity",
                "Request cannot be satisfied due to temporary server capacity constraints",
            ),
            DenialKind::MissingKey => {
                ("missing-key", "The request has no rate limit key that the service knows")
            }
            DenialKind::AmbiguousKey => {
                ("ambiguous-key", "The rate limit key can be read in two ways")
            }
            DenialKind::TooManyRules => {
                ("too-many-rules", "More rate limits match the request than can be applied")
            }
            DenialKind::UnknownAddress => {
                ("unknown-address", "The service does not know the address of its client")
            }
        };
        (Cow::Owned(format!("{base}{name}")), title)
    }
}

impl Default for DenialBody {
    fn default() -> Self {
        Self::json()
    }
}

/// Appends the public name of a limit as a JSON string. It contains no character that needs an
/// escape.
fn push_name(json: &mut String, limit: LimitStatus<'_>) {
    json.push('"');
    json.extend(limit.public_name().texts());
    json.push('"');
}
