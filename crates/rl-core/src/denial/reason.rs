use crate::{Algorithm, Decision, LimitReport, Period, Realm, RetryAfter};

/// Why a client is turned away.
#[derive(Clone, Copy)]
pub(super) enum Reason<'a> {
    /// It is over this limit, and perhaps over more.
    OverLimit { decision: &'a Decision, governing: LimitReport<'a>, realm: &'a Realm },
    /// The limiter cannot decide.
    Undecided { decision: &'a Decision },
    /// The request has no key.
    MissingKey,
    /// Two readers could take the key for different ones.
    AmbiguousKey,
}

impl Reason<'_> {
    /// The HTTP status.
    pub(super) const fn status(self) -> u16 {
        match self {
            Self::OverLimit { .. } => 429,
            Self::Undecided { .. } => 503,
            Self::MissingKey => 403,
            Self::AmbiguousKey => 400,
        }
    }

    /// The words for the status in HTTP.
    pub(super) const fn phrase(self) -> &'static str {
        match self {
            Self::OverLimit { .. } => "Too Many Requests",
            Self::Undecided { .. } => "Service Unavailable",
            Self::MissingKey => "Forbidden",
            Self::AmbiguousKey => "Bad Request",
        }
    }

    /// When to try again; none if time has nothing to do with it.
    pub(super) fn retry_after(self) -> Option<RetryAfter> {
        match self {
            Self::OverLimit { decision, .. } | Self::Undecided { decision } => {
                Some(decision.retry_after())
            }
            Self::MissingKey | Self::AmbiguousKey => None,
        }
    }
}

impl Reason<'_> {
    /// Appends a sentence for people: fixed words and numbers, nothing that would have to be escaped.
    pub(super) fn push_to(self, text: &mut String) {
        text.push_str(self.phrase());
        match self {
            Self::OverLimit { governing, realm, .. } => {
                let limit = governing.limit();
                text.push_str(". We only allow ");
                text.push_str(itoa::Buffer::new().format(limit.max()));
                text.push_str(" requests ");
                match limit.algorithm() {
                    Algorithm::Concurrency => text.push_str("at the same time"),
                    _ => {
                        text.push_str("per ");
                        push_words(text, limit.period());
                    }
                }
                text.push_str(" for ");
                let is_identified = realm.is_identified();
                text.push_str(if is_identified { "this Consumer." } else { "anonymous access." });
            }
            Self::Undecided { .. } => {
                text.push_str(". The rate limiter cannot decide at the moment.");
            }
            Self::MissingKey => text.push_str(". No rate limit key was found in the request."),
            Self::AmbiguousKey => text.push_str(
                ". The credential is given more than once, or cannot be read in one way only.",
            ),
        }
    }
}

/// Appends a period in words: `minute`, `15 minutes`, `250 milliseconds`.
fn push_words(text: &mut String, period: Period) {
    let (count, unit) = period.count_and_unit();
    if count != 1 {
        text.push_str(itoa::Buffer::new().format(count));
        text.push(' ');
    }
    text.push_str(if unit == "ms" { "millisecond" } else { unit });
    if count != 1 {
        text.push('s');
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
            let mut text = String::new();
            push_words(&mut text, period.parse().unwrap());
            assert_eq!(text, words);
        }
    }
}
