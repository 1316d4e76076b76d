use std::fmt;

/// A clause of the contract in the documentation of [`Store`](crate::store::Store).
#[derive(Clone, Copy, Debug)]
pub(super) enum Clause {
    OneStep = 1,
    Exact,
    DenialChangesNothing,
    OneClock,
    State,
    Expiry,
    Peek,
    Refund,
    Apart,
    Answer,
    Permit,
    Shadow,
    Unsupported,
}

impl Clause {
    const fn words(self) -> &'static str {
        match self {
            Self::OneStep => "one decision charges all limits in one step, or none",
            Self::Exact => "exact: a cost passes if and only if used + cost <= max",
            Self::DenialChangesNothing => "a denial changes nothing",
            Self::OneClock => "one clock, which never grants anything by stepping back",
            Self::State => "state is identified by algorithm, period, anchor and what is counted",
            Self::Expiry => "nothing is kept for ever",
            Self::Peek => "a peek and a cost of 0 write nothing",
            Self::Refund => {
                "a refund lowers a count only where it was charged, and never below zero"
            }
            Self::Apart => "subjects and namespaces never share state",
            Self::Answer => "a denial is an answer, and an error means that no decision was made",
            Self::Permit => "a permit ends when it is released or when its lease has ended",
            Self::Shadow => "a limit in shadow denies nothing",
            Self::Unsupported => "a store refuses a limit that it cannot hold as unsupported",
        }
    }
}

impl fmt::Display for Clause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "clause {}: {}", *self as u8, self.words())
    }
}

/// Panics with the clause and `what` unless `holds` is true.
#[track_caller]
pub(super) fn require(clause: Clause, holds: bool, what: impl fmt::Display) {
    assert!(holds, "{clause}: {what}");
}

/// Panics with the clause and `what` unless `got` is `expected`.
#[track_caller]
pub(super) fn require_eq<T: PartialEq + fmt::Debug>(
    clause: Clause,
    got: T,
    expected: T,
    what: impl fmt::Display,
) {
    assert!(got == expected, "{clause}: {what}: expected {expected:?}, got {got:?}");
}
