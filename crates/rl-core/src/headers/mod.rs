//! The rate limit headers of responses.
//!
//! [`Headers`] turns a [`Decision`] into header lines, with the names and units of one or more
//! [`HeaderFamily`]s. The adapters add the lines to the response.
//!
//! 1. Single-valued fields describe the *governing* limit, chosen by [`GoverningLimit`]. The IETF
//!    lists describe all limits, in the order of the policy. Under [rules](crate::rules) they
//!    describe the limits of all disclosed rules, each by its [public
//!    name](crate::LimitStatus::public_name).
//! 2. Seconds are rounded up, and are never 0 in a denial. A client that waits for the time in a
//!    header therefore never retries too early.
//! 3. A denial has a `Retry-After` in whole seconds, even without a family. It is the longest wait
//!    of all limits that deny. It is never shorter than the reset that the IETF lists show for one
//!    of them. For a concurrency limit it is a [hint](crate::Limit::with_retry_hint). It is omitted
//!    if waiting does not help.
//! 4. Unknown values are omitted. If the [policy alone](Origin::Policy) denied the request, no
//!    counter was read ([`LimitStatus::is_known`](crate::LimitStatus::is_known)). `Remaining` is
//!    then sent only for a limit of 0, and a reset only if a block has an end.
//! 5. A request that no store decided gets no rate limit fields. This applies if the limiter is
//!    disabled, if the subject has no limits, or if the store failed and the request was allowed.
//!    If the request was rejected because the store failed, its response has only a `Retry-After`.
//!
//! Scripts in browsers can read these fields only if the service exposes them:
//! [`Headers::expose_list`] is the value for `Access-Control-Expose-Headers`.
//!
//! # Example
//!
//! ```
//! use rl_core::headers::{HeaderFamily, Headers};
//! use rl_core::time::Timestamp;
//! use rl_core::store::Outcome;
//! use rl_core::{Cost, Decision, Limit, Policy};
//!
//! let policy = Policy::new([Limit::per_minute(100)])?;
//! // 27 of 100 used; the window ends in 41.2 seconds.
//! let outcomes = [Outcome::granted(27, 41_200_000)];
//! let now = Timestamp::from_secs(1_767_225_600);
//! let decision = Decision::decided(policy, Cost::ONE, 1, now, outcomes);
//!
//! let headers = Headers::new(HeaderFamily::OpenBank).and(HeaderFamily::IetfDraft11);
//! let lines: Vec<String> = headers.lines(&decision).iter().map(|line| line.to_string()).collect();
//! assert_eq!(lines, [
//!     "x-rate-limit-limit: 100",
//!     "x-rate-limit-remaining: 73",
//!     "x-rate-limit-reset: 42",
//!     r#"ratelimit-policy: "minute";q=100;w=60"#,
//!     r#"ratelimit: "minute";r=73;t=42"#,
//! ]);
//! # Ok::<(), rl_core::InvalidPolicy>(())
//! ```

mod family;
mod field;
mod field_name;
mod lines;
#[cfg(test)]
mod tests;

use arrayvec::ArrayVec;

pub use family::HeaderFamily;
use field::FieldInput;
pub use field_name::FieldName;
use lines::LineWriter;
pub use lines::{HeaderLine, HeaderLines};

use crate::decision::{Decision, GoverningLimit, Origin};

const RETRY_AFTER: FieldName = FieldName::new("retry-after");
const WARNING: FieldName = FieldName::new("x-rate-limit-warning");

/// The header families of a response, and the limit that they describe.
///
/// Defaults to [`HeaderFamily::OpenBank`] and [`GoverningLimit::ShortestActive`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Headers {
    families: ArrayVec<HeaderFamily, { HeaderFamily::MAX_COMBINED }>,
    governing_limit: GoverningLimit,
    lists_governing_limit_only: bool,
    has_warning: bool,
    shows_unlimited: bool,
}

impl Headers {
    /// Creates a configuration with the header fields of `family`.
    pub fn new(family: HeaderFamily) -> Self {
        Self::none().and(family)
    }

    /// Creates a configuration without a family. A denial still has a `Retry-After`.
    pub fn none() -> Self {
        Self {
            families: ArrayVec::new(),
            governing_limit: GoverningLimit::default(),
            lists_governing_limit_only: false,
            has_warning: true,
            shows_unlimited: false,
        }
    }

    /// Creates the configuration of the Open Bank Project: [`HeaderFamily::OpenBank`], with the
    /// value `-1` if [no limit applies](Self::show_unlimited).
    pub fn open_bank() -> Self {
        Self::new(HeaderFamily::OpenBank).show_unlimited()
    }

    /// Adds the header fields of `family`.
    ///
    /// It replaces the families with which it shares a name, because one name cannot have two units
    /// in the same response. [`HeaderFamily`] lists them.
    pub fn and(mut self, family: HeaderFamily) -> Self {
        self.families.retain(|earlier| !earlier.clashes_with(family));
        self.families.push(family);
        self
    }

    /// Sets the limit that the single-valued fields and the message of
    /// [`DenialBody::open_bank`](crate::denial::DenialBody::open_bank) describe. Other messages
    /// name the limit with the longest wait of those that deny.
    ///
    /// Defaults to [`GoverningLimit::ShortestActive`].
    pub fn with_governing_limit(mut self, governing_limit: GoverningLimit) -> Self {
        self.governing_limit = governing_limit;
        self
    }

    /// Returns the limit that the single-valued fields and the message of
    /// [`DenialBody::open_bank`](crate::denial::DenialBody::open_bank) describe.
    #[must_use]
    pub const fn governing_limit(&self) -> GoverningLimit {
        self.governing_limit
    }

    /// Restricts lists to the governing limit, and in a denial to the limits that deny, which its
    /// body names.
    ///
    /// This makes responses shorter, but clients see a limit with a long period only while it
    /// governs or denies. By default lists describe every limit.
    pub fn list_governing_limit_only(mut self) -> Self {
        self.lists_governing_limit_only = true;
        self
    }

    /// Omits `x-rate-limit-warning`.
    ///
    /// By default a response has this header if limits in [shadow](crate::Limit::shadow) would have
    /// denied the request. It contains their names, each with the units that the limit allows at
    /// once, such as `minute=5`.
    pub fn without_warning(mut self) -> Self {
        self.has_warning = false;
        self
    }

    /// Sends the fields of [`HeaderFamily::OpenBank`] with the value `-1` if no limit applies to a
    /// request.
    ///
    /// Clients of the Open Bank Project expect that. By default, and in other families, such a
    /// response has no fields.
    pub fn show_unlimited(mut self) -> Self {
        self.shows_unlimited = true;
        self
    }

    /// Returns the header lines for `decision`, in a fixed order.
    pub fn lines(&self, decision: &Decision) -> HeaderLines {
        let mut lines = LineWriter::new();
        if let Some(governing) = &decision.governing(self.governing_limit) {
            for family in &self.families {
                let (only, names) = (self.lists_governing_limit_only, family.parameters());
                let input = FieldInput::new(decision, governing, only, names);
                lines.set_largest_number(family.largest_number());
                for (name, field) in family.fields() {
                    field.write(*name, &input, &mut lines);
                }
            }
            lines.set_largest_number(u64::MAX);
        } else if self.shows_unlimited && is_unlimited(decision) {
            let families = self.families.iter().filter(|family| **family == HeaderFamily::OpenBank);
            let names = families.flat_map(|family| family.fields()).map(|(name, _)| *name);
            names.for_each(|name| lines.add_text(name, "-1"));
        }
        if self.has_warning {
            write_warning(decision, &mut lines);
        }
        if let Some(seconds) = retry_after_seconds(decision) {
            lines.add_number(RETRY_AFTER, seconds);
        }
        lines.finish()
    }

    /// Returns the names of all fields that may be written, in lower case; `retry-after` is the
    /// last.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        let fields = self.families.iter().flat_map(|family| family.fields());
        let warning = self.has_warning.then_some(WARNING);
        fields.map(|(name, _)| *name).chain(warning).chain([RETRY_AFTER]).map(FieldName::as_str)
    }

    /// Returns the value for `Access-Control-Expose-Headers`. Without that header, scripts in
    /// browsers cannot read the fields.
    ///
    /// The CORS layer of the service sends the header. That layer belongs *outside* the limiter:
    /// browsers report a denial without `Access-Control-Allow-Origin` as a network error.
    ///
    /// ```
    /// use rl_core::headers::Headers;
    ///
    /// assert_eq!(
    ///     Headers::default().expose_list(),
    ///     "x-rate-limit-limit, x-rate-limit-remaining, x-rate-limit-reset, \
    ///      x-rate-limit-warning, retry-after"
    /// );
    /// ```
    #[must_use]
    pub fn expose_list(&self) -> String {
        self.names().collect::<Vec<_>>().join(", ")
    }
}

impl Default for Headers {
    fn default() -> Self {
        Self::new(HeaderFamily::default())
    }
}

/// Returns whether no limit applies to the request. Limits of parts that are not disclosed apply
/// too, although no field describes them.
fn is_unlimited(decision: &Decision) -> bool {
    matches!(decision.origin(), Origin::Unlimited | Origin::Store | Origin::Leased)
        && decision.enforced_of_all_parts().next().is_none()
}

/// Writes the names and quotas of the limits in shadow that would have denied the request. Limits
/// of parts that are not disclosed are omitted.
fn write_warning(decision: &Decision, lines: &mut LineWriter) {
    if !decision.has_shadow() {
        return;
    }
    for limit in decision.disclosed_over_in_shadow() {
        lines.begin_item(WARNING, "over limits that are not enforced yet: ");
        limit.public_name().texts().for_each(|text| lines.push(text));
        lines.push("=");
        lines.push_number(limit.configured().capacity());
    }
    lines.end_list(WARNING);
}

/// Returns the seconds for `Retry-After`, rounded up and at least 1.
///
/// Returns `None` if the request is not denied or no wait helps. The value is never a date, because
/// the clock of the client may be wrong.
fn retry_after_seconds(decision: &Decision) -> Option<u64> {
    if decision.is_forwarded() {
        return None;
    }
    decision.retry_hint().whole_seconds()
}

/// A view of a response that is the same in every framework.
pub trait ResponseInfo {
    /// Returns the HTTP status.
    fn status(&self) -> u16;

    /// Calls `each` with the value of every header line called `name` (in lower case), in order.
    fn header_lines<'a>(&'a self, name: &str, each: &mut dyn FnMut(&'a [u8]));

    /// Returns the value of the first header line called `name` (in lower case).
    fn header<'a>(&'a self, name: &str) -> Option<&'a [u8]> {
        let mut first = None;
        self.header_lines(name, &mut |line| {
            first.get_or_insert(line);
        });
        first
    }
}
