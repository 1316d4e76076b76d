//! A request as a gateway describes it.

use std::any::Any;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use http::HeaderMap;
use rl_core::key::RequestInfo;
use rl_core::{Limit, Subject};

/// The request of a client, as a gateway describes it to the server.
///
/// Rules match it by its method, path, host and headers, as they match the requests of a web
/// service. Its [`Selection`] names further rules, or replaces the rules that match.
#[derive(Debug, Default)]
pub struct GatewayRequest {
    /// The method; `GET` if it is empty.
    pub method: String,
    /// The path as the client has sent it.
    pub path: String,
    /// The text after the `?`.
    pub query: Option<String>,
    /// The host that the client asks for.
    pub host: Option<String>,
    /// The headers of the client.
    pub headers: HeaderMap,
    /// The address of the client, or of the gateway if the headers name that of the client.
    pub peer: Option<IpAddr>,
    /// The consumer, user or key that the gateway has authenticated.
    pub identified: Option<Subject>,
    /// The rules that the request selects.
    pub selection: Selection,
    /// The rules that the selector has found. It gets the request by reference only, so it records
    /// them here for the response.
    pub(crate) selected: Mutex<Vec<SelectedPart>>,
    /// Whether the selector knows no domain of this name.
    pub(crate) has_unknown_domain: AtomicBool,
}

/// The rules that a request selects.
#[derive(Debug, Default)]
pub enum Selection {
    /// None: the rules that match the request count it.
    #[default]
    Matching,
    /// The rules of the request's descriptors. In [`Phase::Before`], the rules that match the request
    /// count it too.
    Descriptors(Descriptors, Phase),
    /// These rules. The rules that match the request do not count it.
    Rules(Vec<RuleSubject>),
}

/// The descriptors of a request to Envoy's rate limit service.
#[derive(Clone, Debug, Default)]
pub struct Descriptors {
    /// The domain, which has rules of its own.
    pub domain: String,
    /// The descriptors.
    pub list: Vec<Descriptor>,
    /// The cost of descriptors without a cost of their own.
    pub hits: u64,
}

/// A list of keys and values, by which the rule of a descriptor is found.
#[derive(Clone, Debug, Default)]
pub struct Descriptor {
    /// The entries, in their order.
    pub entries: Vec<(String, String)>,
    /// The limit that the gateway sets in place of the rule's.
    pub limit: Option<Limit>,
    /// The cost under the rule of this descriptor.
    pub hits: Option<u64>,
}

/// The descriptors of a request that are decided in one step.
///
/// Except in `Before`, the rules that match the request do not count it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// The descriptors whose rules are charged before the request.
    #[default]
    Before,
    /// The descriptors with a cost of 0 whose rules are charged after the request. Each is decided as
    /// if its cost were 1, because a cost of 0 is never denied.
    Ask,
    /// The descriptors with a cost whose rules are charged after the request, when its cost is known.
    After,
    /// All descriptors.
    All,
    /// As [`All`](Self::All), with an estimate of the cost. A rule counts at most half of its
    /// smallest limit, so that a large estimate does not deny each request.
    Hold,
}

/// A subject under a rule.
#[derive(Clone, Debug)]
pub struct RuleSubject {
    /// The name of the rule.
    pub rule: String,
    /// The subject.
    pub subject: Subject,
    /// The cost; `None` for that of the rule.
    pub cost: Option<u64>,
}

/// A rule that was selected for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectedPart {
    /// The position of the descriptor, or of the [`RuleSubject`].
    pub position: usize,
    /// The name of the rule.
    pub rule: std::sync::Arc<str>,
    /// How the rule counts the request.
    pub counted: Counted,
}

/// How the rule of a descriptor counts a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// In this phase.
    Now,
    /// In the phase after the request.
    Later,
    /// Not at all: the rule has no limit.
    Unlimited,
}

impl GatewayRequest {
    /// Creates a request with these descriptors.
    ///
    /// Their entries describe the request too, so that rules can match it: `remote_address` is its
    /// address; `method`, `path` and `host` (or `:method`, `:path`, `:authority`) are its method,
    /// path and host; the keys of all entries are names of headers.
    #[must_use]
    pub fn with_descriptors(descriptors: Descriptors) -> Self {
        let mut request = Self::default();
        for (key, value) in descriptors.list.iter().flat_map(|descriptor| &descriptor.entries) {
            request.describe(key, value);
        }
        request.selection = Selection::Descriptors(descriptors, Phase::Before);
        request
    }

    /// Sets the phase, which selects the descriptors that are decided.
    #[must_use]
    pub fn in_phase(mut self, phase: Phase) -> Self {
        if let Selection::Descriptors(_, of) = &mut self.selection {
            *of = phase;
        }
        self
    }

    /// Creates a request that has the same descriptors and nothing else, and decides those of
    /// `phase`. Returns `None` for a request without descriptors.
    #[must_use]
    pub fn only_descriptors(&self, phase: Phase) -> Option<Self> {
        let Selection::Descriptors(descriptors, _) = &self.selection else { return None };
        let selection = Selection::Descriptors(descriptors.clone(), phase);
        Some(Self { selection, ..Self::default() })
    }

    /// Returns the cost of the descriptor at `position`.
    #[must_use]
    pub fn cost(&self, position: usize) -> Option<u64> {
        let Selection::Descriptors(descriptors, _) = &self.selection else { return None };
        let descriptor = descriptors.list.get(position)?;
        Some(descriptor.hits.unwrap_or(descriptors.hits))
    }

    /// Returns whether the request has descriptors, and each of them has a cost of 0.
    pub(crate) fn is_free(&self) -> bool {
        let Selection::Descriptors(descriptors, _) = &self.selection else { return false };
        let mut positions = 0..descriptors.list.len();
        !positions.is_empty() && positions.all(|position| self.cost(position) == Some(0))
    }

    /// Returns the rules that were selected when the request was decided.
    #[must_use]
    pub fn selected(&self) -> Vec<SelectedPart> {
        self.selected.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records that a rule was selected.
    pub(crate) fn record(&self, part: SelectedPart) {
        self.selected.lock().unwrap_or_else(PoisonError::into_inner).push(part);
    }

    /// Returns whether the domain of the request has no rules.
    pub(crate) fn has_unknown_domain(&self) -> bool {
        self.has_unknown_domain.load(Ordering::Relaxed)
    }

    /// Records that the domain of the request is unknown.
    pub(crate) fn record_unknown_domain(&self) {
        self.has_unknown_domain.store(true, Ordering::Relaxed);
    }

    fn describe(&mut self, key: &str, value: &str) {
        match key {
            "remote_address" => self.peer = value.parse().ok(),
            "method" | ":method" => value.clone_into(&mut self.method),
            "host" | ":authority" => self.host = Some(value.to_owned()),
            "path" | ":path" => {
                let (path, query) = match value.split_once('?') {
                    Some((path, query)) => (path, Some(query.to_owned())),
                    None => (value, None),
                };
                (self.path, self.query) = (path.to_owned(), query);
            }
            _ => {}
        }
    }

    /// Returns the values of the entries that describe the header `name`.
    fn described_header<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str> {
        let descriptors = match &self.selection {
            Selection::Descriptors(descriptors, _) => &*descriptors.list,
            _ => &[],
        };
        let entries = descriptors.iter().flat_map(|descriptor| &descriptor.entries);
        let lines = entries.filter(move |(key, _)| key.eq_ignore_ascii_case(name));
        // A value that no header can have cannot be matched by a rule. A client may send a tab, and
        // any character outside of ASCII.
        let is_invalid = |c: char| c.is_ascii_control() && c != '\t';
        lines.map(|(_, value)| &**value).filter(move |value| !value.contains(is_invalid))
    }
}

/// Returns the text of a value that a client chooses. Bytes that are not UTF-8 become `%FF`: as an
/// error, they would let the request pass through some gateways.
pub(crate) fn text_of(bytes: Vec<u8>) -> String {
    let escaped = |byte: &u8| match byte.is_ascii() {
        true => char::from(*byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    String::from_utf8(bytes).unwrap_or_else(|error| error.as_bytes().iter().map(escaped).collect())
}

impl RequestInfo for GatewayRequest {
    fn method(&self) -> &str {
        if self.method.is_empty() { "GET" } else { &self.method }
    }

    fn path(&self) -> &str {
        if self.path.is_empty() { "/" } else { &self.path }
    }

    fn query(&self) -> Option<&str> {
        self.query.as_deref()
    }

    fn route(&self) -> Option<&str> {
        None
    }

    fn header_lines<'a>(&'a self, name: &str, each: &mut dyn FnMut(&'a [u8])) {
        self.headers.get_all(name).iter().for_each(|value| each(value.as_bytes()));
        self.described_header(name).for_each(|value| each(value.as_bytes()));
    }

    fn peer(&self) -> Option<IpAddr> {
        self.peer
    }

    fn extensions(&self) -> &dyn Any {
        self
    }

    fn identified_subject(&self) -> Option<&Subject> {
        self.identified.as_ref()
    }

    fn authority(&self) -> Option<&str> {
        self.host.as_deref()
    }
}
