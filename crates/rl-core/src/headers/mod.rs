//! What a response says about the limits: header lines, as text.
//!
//! [`Headers`] turns a [`Decision`] into lines, in the names and units of one or more
//! [`HeaderFamily`]s. The adapters put the lines into the response.
//!
//! 1. Single-valued fields describe the *governing* limit, chosen by [`GoverningLimit`]; the IETF lists
//!    describe all limits, in the order of the policy.
//! 2. Seconds are rounded up, and a denial never says 0: a client that waits as told does not come
//!    too early.
//! 3. A denial has a `Retry-After`, in whole seconds, whatever the family and even without one: the
//!    longest wait over all limits that deny, which is never earlier than the reset that the IETF
//!    lists show for any of them. Where no wait helps it is left out.
//! 4. Values that are not known are left out. Where the [policy alone](Origin::Policy) denied, no counter
//!    was read. `Remaining` is then sent only for a limit of 0, and a reset only if a block has an end.
//! 5. No line says anything about a request that no store decided (the limiter is switched off, the
//!    subject is under no limit, the store failed and the request passed). Turned away because the
//!    store failed, it gets a `Retry-After` alone.
//!
//! Scripts in browsers can read these fields only if the service exposes them:
//! [`Headers::expose_list`] is the value for `Access-Control-Expose-Headers`.
//!
//! # Example
//!
//! ```
//! use rl_core::headers::{HeaderFamily, Headers};
//! use rl_core::time::Timestamp;
//! use rl_core::{Cost, Decision, Limit, Outcome, Policy};
//!
//! let policy = Policy::new([Limit::per_minute(100)])?;
//! // 27 of 100 used; the window ends in 41.2 seconds.
//! let outcomes = [Outcome::granted(27, 41_200_000)];
//! let now = Timestamp::from_secs(1_767_225_600);
//! let decision = Decision::decided(policy, Cost::ONE, 1, now, outcomes);
//!
//! let mut lines = Vec::new();
//! Headers::new(HeaderFamily::OpenBank)
//!     .and(HeaderFamily::Ietf)
//!     .write(&decision, &mut |line| lines.push(format!("{}: {}", line.name, line.value)));
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
mod list;
mod names;
mod number;
mod retry_after;
#[cfg(test)]
mod tests;
mod text;
mod warning;

pub use family::HeaderFamily;
pub use names::NAMES;

use arrayvec::ArrayVec;

use crate::decision::{Decision, GoverningLimit, Origin};
use field::Answer;
use text::Text;

/// A header line, on its way into a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderLine<'a> {
    /// The name, in lower case as HTTP/2 demands.
    pub name: &'static str,
    /// The value: visible ASCII and spaces.
    pub value: &'a str,
    /// Whether the field is a list, so that the lines of nested limiters may stand beside each
    /// other. Any other field may be there once only: the stricter limiter's line replaces.
    pub is_list: bool,
    place: usize,
    known: Option<&'static str>,
}

impl HeaderLine<'_> {
    /// Where the name stands in [`NAMES`].
    #[must_use]
    pub const fn place(&self) -> usize {
        self.place
    }

    /// The value as a text that lives for ever, if it is a number of up to four digits: most are, and
    /// a header then needs no memory for it.
    #[must_use]
    pub const fn known_value(&self) -> Option<&'static str> {
        self.known
    }
}

/// Which header families a response carries, and which limit they describe.
///
/// Defaults to [`HeaderFamily::OpenBank`] and [`GoverningLimit::ShortestActive`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Headers {
    families: ArrayVec<HeaderFamily, { HeaderFamily::MOST_TOGETHER }>,
    follow: GoverningLimit,
    governing_only: bool,
    warning: bool,
    tells_unlimited: bool,
}

impl Headers {
    /// The lines of `family`.
    pub fn new(family: HeaderFamily) -> Self {
        Self::none().and(family)
    }

    /// No lines but the `Retry-After` of a denial.
    pub fn none() -> Self {
        let families = ArrayVec::new();
        let (follow, governing_only, warning) = (GoverningLimit::default(), false, true);
        Self { families, follow, governing_only, warning, tells_unlimited: false }
    }

    /// The lines of `family` too.
    ///
    /// It takes the place of the families that have a name in common with it: one name cannot
    /// stand for two units in the same response. [`HeaderFamily`] says which those are.
    pub fn and(mut self, family: HeaderFamily) -> Self {
        self.families.retain(|earlier| !earlier.clashes_with(family));
        self.families.push(family);
        self
    }

    /// Which limit the single-valued fields describe.
    ///
    /// Defaults to [`GoverningLimit::ShortestActive`].
    pub fn follow(mut self, follow: GoverningLimit) -> Self {
        self.follow = follow;
        self
    }

    /// Which limit the single-valued fields describe; the message of a denial should name the same.
    #[must_use]
    pub const fn followed(&self) -> GoverningLimit {
        self.follow
    }

    /// Whether the lists, too, describe the governing limit alone. Shorter, but clients do not
    /// learn of a long period before it is the one that matters.
    ///
    /// Defaults to `false`: lists describe every limit.
    pub fn governing_only(mut self, governing_only: bool) -> Self {
        self.governing_only = governing_only;
        self
    }

    /// Whether a response tells in `x-rate-limit-warning` which limits in
    /// [shadow](crate::Limit::in_shadow) would have denied the request.
    ///
    /// Defaults to `true`.
    pub fn warning(mut self, warning: bool) -> Self {
        self.warning = warning;
        self
    }

    /// Whether the fields of [`HeaderFamily::OpenBank`] say `-1` on a response that no limit applies
    /// to, as clients of such systems expect. Other families have no word for it.
    ///
    /// Defaults to `false`: then there are no lines.
    pub fn tell_unlimited(mut self, tells: bool) -> Self {
        self.tells_unlimited = tells;
        self
    }

    /// Calls `each` with the lines that tell the client about `decision`, in a fixed order.
    ///
    /// Nothing is allocated.
    pub fn write(&self, decision: &Decision, each: &mut dyn FnMut(HeaderLine<'_>)) {
        let mut text = Text::new();
        if let Some(governing) = decision.governing(self.follow) {
            let answer = Answer::new(decision, governing, self.governing_only);
            for family in &self.families {
                for (place, field) in family.fields().iter().filter(|(_, it)| it.is_known(&answer))
                {
                    text.restart(family.largest_number());
                    field.write(&answer, &mut text);
                    each(text.line(*place, field.is_list()));
                }
            }
        } else if self.tells_unlimited
            && matches!(decision.origin(), Origin::Unlimited | Origin::Store | Origin::Leased)
        {
            text.push("-1");
            let families = self.families.iter().filter(|family| **family == HeaderFamily::OpenBank);
            for (place, field) in families.flat_map(|family| family.fields()) {
                each(text.line(*place, field.is_list()));
            }
        }
        if self.warning {
            warning::write(decision, &mut text, each);
        }
        if let Some(seconds) = retry_after::seconds(decision) {
            text.restart(u64::MAX);
            text.number(seconds);
            each(text.line(retry_after::NAME, false));
        }
    }

    /// The names of all fields that may be written, in lower case; `retry-after` is the last.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        let fields = self.families.iter().flat_map(|family| family.fields());
        let warning = self.warning.then_some(warning::NAME);
        let places = fields.map(|(place, _)| *place).chain(warning).chain([retry_after::NAME]);
        places.map(|place| NAMES[place])
    }

    /// The value for `Access-Control-Expose-Headers`, without which scripts in browsers cannot read
    /// the fields.
    ///
    /// It belongs into the CORS layer of the service, and that layer *outside* the limiter: a
    /// denial that lacks `Access-Control-Allow-Origin` shows as a network error.
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
