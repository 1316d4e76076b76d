use std::fmt;

use arrayvec::ArrayString;

use crate::{Algorithm, Decision, LimitReport, Period, Realm, RetryAfter};

/// Why a client is turned away.
#[derive(Clone, Copy)]
pub(super) enum Reason<'a> {
    /// It is over this limit, and perhaps over more.
    OverLimit { decision: &'a Decision, governing: LimitReport<'a>, realm: &'a Realm },
    /// The limiter cannot decide.
    Undecided { decision: &'a Decision },
    /// Nothing tells whom to count.
    MissingKey,
}

impl Reason<'_> {
    /// The HTTP status.
    pub(super) const fn status(self) -> u16 {
        match self {
            Self::OverLimit { .. } => 429,
            Self::Undecided { .. } => 503,
            Self::MissingKey => 403,
        }
    }

    /// The words for the status in HTTP.
    pub(super) const fn phrase(self) -> &'static str {
        match self {
            Self::OverLimit { .. } => "Too Many Requests",
            Self::Undecided { .. } => "Service Unavailable",
            Self::MissingKey => "Forbidden",
        }
    }

    /// When to try again; none if time has nothing to do with it.
    pub(super) fn retry_after(self) -> Option<RetryAfter> {
        match self {
            Self::OverLimit { decision, .. } | Self::Undecided { decision } => {
                Some(decision.retry_after())
            }
            Self::MissingKey => None,
        }
    }
}

/// A sentence for people.
impl fmt::Display for Reason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}. ", self.phrase())?;
        match self {
            Self::OverLimit { governing, realm, .. } => {
                let limit = governing.limit();
                write!(f, "We only allow {} requests ", limit.max())?;
                match limit.algorithm() {
                    Algorithm::Concurrency => f.write_str("at the same time")?,
                    _ => write!(f, "per {}", Words(limit.period()))?,
                }
                let caller =
                    if realm.is_identified() { "this Consumer" } else { "anonymous access" };
                write!(f, " for {caller}.")
            }
            Self::Undecided { .. } => f.write_str("The rate limiter cannot decide at the moment."),
            Self::MissingKey => f.write_str("No rate limit key was found in the request."),
        }
    }
}

/// A period in words: `minute`, `15 minutes`, `250 milliseconds`.
struct Words(Period);

impl fmt::Display for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A count of up to 13 digits (100 years in milliseconds) and a unit.
        let mut text = ArrayString::<24>::new();
        fmt::write(&mut text, format_args!("{}", self.0))?;
        let (count, unit) = text.split_at(text.bytes().take_while(u8::is_ascii_digit).count());
        match (count, unit) {
            ("", "ms") => f.write_str("millisecond"),
            ("", unit) => f.write_str(unit),
            (count, "ms") => write!(f, "{count} milliseconds"),
            (count, unit) => write!(f, "{count} {unit}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_in_words() {
        for (period, words) in [
            ("second", "second"),
            ("month", "month"),
            ("15minutes", "15 minutes"),
            ("2weeks", "2 weeks"),
            ("ms", "millisecond"),
            ("250ms", "250 milliseconds"),
            ("3153599999999ms", "3153599999999 milliseconds"),
        ] {
            assert_eq!(Words(period.parse().unwrap()).to_string(), words);
        }
    }
}
