//! The events that an observer receives.

use std::error::Error;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use crate::decision::{Decision, LimitStatus, Origin, PartStatus};
use crate::model::{FailureKind, Mode, OnFailure, Redacted, StoreError, Subject};

/// The names of the limiter, the rule and the store that an event concerns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EventLocation<'a> {
    /// The namespace of the limiter. It is empty if the event concerns no single limiter.
    pub limiter: &'a str,
    /// The name of the rule, if the event concerns a single rule.
    pub rule: Option<&'a str>,
    /// The kind of store and its server, without user and password: `redis 127.0.0.1:6379`.
    pub store: &'a str,
}

impl<'a> EventLocation<'a> {
    /// Creates the location of a limiter of this namespace on this store.
    #[must_use]
    pub const fn new(limiter: &'a str, store: &'a str) -> Self {
        Self { limiter, rule: None, store }
    }

    /// Sets the name of the rule.
    #[must_use]
    pub const fn with_rule(self, rule: Option<&'a str>) -> Self {
        Self { rule, ..self }
    }
}

/// A decision, with the names of the limiter, the rule and the store that made it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct DecisionEvent<'a> {
    /// The limiter, the rule and the store. If the fallback decided, it is named as the store. If
    /// the request has several parts, the rule is that of the part that denies, or else of the
    /// governing part.
    pub location: EventLocation<'a>,
    /// The subject of the reported part.
    pub subject: &'a Subject,
    /// The decision. [`Origin::as_str`] says which component decided.
    pub decision: &'a Decision,
    /// The time for which the request waited for its policy and for the store. It is `None` if both
    /// were ready at once, as in memory.
    pub duration: Option<Duration>,
    /// Whether the request was checked, charged for work that was done already, or only looked at.
    pub mode: Mode,
    counted: CountedParts<'a>,
}

/// A part of a request: its rule, its subject, and the decision on it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct DecidedPart<'a> {
    /// The name of the rule; `None` in a limiter without rules.
    pub rule: Option<&'a str>,
    /// The subject.
    pub subject: &'a Subject,
    /// The decision on the part. If no store decided the request, it is the decision on the whole
    /// request.
    pub status: PartStatus<'a>,
}

/// The number of parts of a request, and a function that returns the rule and the subject of the
/// part at a position.
#[derive(Clone, Copy)]
pub(crate) struct CountedParts<'a> {
    pub(crate) count: usize,
    pub(crate) find: Option<&'a dyn Fn(usize) -> (Option<&'a str>, &'a Subject)>,
}

impl fmt::Debug for CountedParts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.count.fmt(f)
    }
}

impl<'a> DecisionEvent<'a> {
    /// Creates the event of the decision about a checked request, which needed no wait.
    #[must_use]
    pub const fn new(
        location: EventLocation<'a>,
        subject: &'a Subject,
        decision: &'a Decision,
    ) -> Self {
        let counted = CountedParts { count: 1, find: None };
        Self { location, subject, decision, duration: None, mode: Mode::Check, counted }
    }

    /// Sets whether the request was checked, charged or only looked at.
    #[must_use]
    pub const fn with_mode(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }

    /// Sets the parts of the request.
    pub(crate) const fn with_parts(self, counted: CountedParts<'a>) -> Self {
        Self { counted, ..self }
    }

    /// Returns each part of the request, in order. A request that counts under one subject has one
    /// part.
    pub fn parts(&self) -> impl Iterator<Item = DecidedPart<'a>> + use<'a> {
        let Self { location, subject, decision, counted, .. } = *self;
        let statuses = decision.parts().len();
        (0..counted.count.max(1)).filter_map(move |index| {
            let (rule, subject) = match counted.find {
                Some(find) => find(index),
                None => (location.rule, subject),
            };
            // If no store decided the request, one status is that of all parts.
            let status = decision.parts().nth(if statuses == 1 { 0 } else { index })?;
            Some(DecidedPart { rule, subject, status })
        })
    }

    /// Sets the time for which the request waited.
    #[must_use]
    pub const fn with_duration(self, duration: Option<Duration>) -> Self {
        Self { duration, ..self }
    }
}

/// An event other than a decision.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Event<'a> {
    /// The limiter, the rule and the store that the event concerns.
    pub location: EventLocation<'a>,
    /// The kind of event, with its values.
    pub kind: EventKind<'a>,
}

impl<'a> Event<'a> {
    /// Creates an event.
    #[must_use]
    pub const fn new(location: EventLocation<'a>, kind: EventKind<'a>) -> Self {
        Self { location, kind }
    }
}

/// The kind of an [`Event`].
///
/// An event whose name ends with *failed* occurs for each failed call. Other failures are reported
/// in pairs: one event when a condition begins, and one when it ends. The end of a condition is
/// noticed by the next request.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum EventKind<'a> {
    /// A request has raised the used units of a subject to 80, 90 or 100 % of a limit.
    ///
    /// It occurs once for each crossing, subject and window of the limit, however often units are
    /// refunded and charged again. A limiter emits at most 100 of these events in a second.
    NearLimit {
        /// The subject. Its id may be personal data: [`Subject::redacted`] hides it.
        subject: &'a Subject,
        /// The limit after the request.
        limit: LimitStatus<'a>,
        /// The highest fraction that was crossed: 80, 90 or 100.
        percent: u8,
        /// The number of events of this kind that the limiter has left out since the last one,
        /// because they were too frequent.
        suppressed: u64,
    },
    /// A limit in shadow would have denied a request. It occurs for each such request.
    WouldDeny {
        /// The subject.
        subject: &'a Subject,
        /// The limit.
        limit: LimitStatus<'a>,
        /// Whether this is the first such request in the window of the limit, whichever subject
        /// sent it.
        is_first: bool,
    },
    /// The charge of a request has changed after its decision: its permit was settled, or units
    /// were refunded. Only observers of decisions get it.
    Settled {
        /// The subject.
        subject: &'a Subject,
        /// The units that were charged after the decision.
        charged: u64,
        /// The units that were refunded.
        refunded: u64,
    },
    /// A call to the store or to the fallback has failed.
    ///
    /// It does not occur for requests that never reach the store, because the circuit breaker is
    /// open or too many requests are in flight.
    StoreCallFailed {
        /// The error.
        error: &'a StoreError,
        /// The time for which the request waited; `None` for calls that are made after a request
        /// has ended.
        duration: Option<Duration>,
    },
    /// An outage of the store begins with this error.
    StoreFailing {
        /// The error.
        error: &'a StoreError,
        /// The handling of undecided requests.
        on_failure: OnFailure,
    },
    /// The outage of the store is over.
    StoreRecovered {
        /// The time since the outage began.
        lasted: Duration,
        /// The requests that the store did not decide in this time.
        undecided: u64,
    },
    /// The circuit breaker opens after several failures in a row. The store is not called until a
    /// probe succeeds.
    BreakerOpened {
        /// The kind of the last failure.
        failure: FailureKind,
    },
    /// The circuit breaker is closed again, so that the store is called.
    BreakerClosed {
        /// The time for which the breaker was open.
        lasted: Duration,
    },
    /// The store is overloaded: it answers late, or too many decisions are in flight.
    StoreOverloaded {
        /// The decisions that wait for the store.
        in_flight: usize,
        /// The largest number that may wait.
        bound: usize,
        /// The handling of undecided requests.
        on_failure: OnFailure,
    },
    /// The store is no longer overloaded.
    StoreOverloadEnded {
        /// The time from the first refused request to the last.
        lasted: Duration,
        /// The requests that were refused.
        refused: u64,
    },
    /// The store has no memory for a charge. It still decides requests that it denies.
    StoreOutOfMemory {
        /// The error.
        error: &'a StoreError,
        /// The handling of undecided requests.
        on_failure: OnFailure,
    },
    /// The store has charged a request again.
    StoreOutOfMemoryEnded {
        /// The time from the first charge that failed to the last.
        lasted: Duration,
        /// The requests that could not be charged.
        undecided: u64,
    },
    /// The store begins to refuse requests, because it does not support their policies.
    PolicyUnsupported {
        /// The error.
        error: &'a StoreError,
        /// The handling of undecided requests.
        on_failure: OnFailure,
    },
    /// The store has refused no policy for a minute.
    PolicyUnsupportedEnded {
        /// The time from the first refused request to the last.
        lasted: Duration,
        /// The requests that were refused.
        requests: u64,
    },
    /// The stored value of a subject is damaged.
    ValueDamaged {
        /// The subject. It is `None` if the values of 64 other subjects are damaged too: further
        /// ones are reported together.
        subject: Option<&'a Subject>,
        /// The error.
        error: &'a StoreError,
        /// The handling of requests of the subject.
        on_failure: OnFailure,
    },
    /// The stored value of a subject is no longer damaged, or the subject has sent no request for a
    /// minute.
    ValueRecovered {
        /// The hash of the subject: [`Subject::redacted`].
        subject: Redacted,
        /// The time from the first undecided request to the last.
        lasted: Duration,
        /// The requests that were not decided.
        requests: u64,
    },
    /// The failure policy begins to decide requests in the way that the origin names: it allows
    /// them ([`Origin::FailedOpen`]), rejects them ([`Origin::FailedClosed`]), or lets the fallback
    /// decide ([`Origin::Fallback`]).
    FailurePolicyBegan {
        /// The origin of the first decision.
        origin: Origin,
    },
    /// The failure policy has made no decision of this origin for a second, while the store has
    /// decided other requests.
    FailurePolicyEnded {
        /// The origin of the first of these decisions. Later ones may have another kind of failure.
        origin: Origin,
        /// The time from the first of these decisions to the last.
        lasted: Duration,
        /// The number of these decisions.
        requests: u64,
    },
    /// The fallback begins to fail.
    FallbackFailing {
        /// The error.
        error: &'a StoreError,
        /// The handling of undecided requests: they are allowed or rejected.
        on_failure: OnFailure,
    },
    /// The fallback has recovered.
    FallbackRecovered {
        /// The time from the first failure to the last.
        lasted: Duration,
        /// The requests that the fallback did not decide.
        undecided: u64,
    },
    /// A look-up of a policy has failed.
    LookupFailed {
        /// The error.
        error: &'a StoreError,
        /// The time for which the request waited; `None` if the source failed at once.
        duration: Option<Duration>,
    },
    /// An outage of the source of policies begins.
    LookupsFailing {
        /// The error.
        error: &'a StoreError,
        /// The handling of requests without a policy: they are allowed or rejected.
        on_failure: OnFailure,
    },
    /// The outage of the source of policies is over.
    LookupsRecovered {
        /// The time from the first failure to the last.
        lasted: Duration,
        /// The requests whose policy was not found.
        undecided: u64,
    },
    /// The source of policies begins to refuse look-ups, because too many are in flight.
    LookupsOverloaded {
        /// The handling of requests without a policy. It is `None` if they are decided under the
        /// policy for overload.
        on_failure: Option<OnFailure>,
    },
    /// The source of policies no longer refuses look-ups.
    LookupsOverloadEnded {
        /// The time from the first refused look-up to the last.
        lasted: Duration,
        /// The look-ups that were refused.
        refused: u64,
    },
    /// The policy of a subject cannot be read.
    PolicyUnreadable {
        /// The subject. It is `None` if the policies of 64 other subjects are unreadable too:
        /// further ones are reported together.
        subject: Option<&'a Subject>,
        /// The error.
        error: &'a StoreError,
        /// The handling of requests of the subject: they are allowed or rejected.
        on_failure: OnFailure,
    },
    /// The policy of a subject can be read again, or the subject has sent no request for a minute.
    PolicyReadable {
        /// The hash of the subject: [`Subject::redacted`].
        subject: Redacted,
        /// The time from the first undecided request to the last.
        lasted: Duration,
        /// The requests that were not decided.
        requests: u64,
    },
    /// A lease under a concurrency limit has ended while its request is in flight. The request
    /// continues.
    LeaseLapsed {
        /// The subject.
        subject: &'a Subject,
        /// Whether the units could be charged again. Otherwise the request is not counted, and the
        /// event occurs once more if the units are charged later.
        is_retaken: bool,
        /// Whether no other lease has lapsed for a minute.
        is_first: bool,
    },
    /// No lease has lapsed for a minute.
    LapsesEnded {
        /// The time from the first lapse to the last.
        lasted: Duration,
        /// The number of lapses.
        leases: u64,
    },
    /// A rule file was read again, and its rules apply.
    RulesApplied {
        /// The path of the file.
        path: &'a Path,
        /// The version of the rules: `RulesFileStatus::version`.
        version: &'a str,
        /// The time that reading the file and applying its rules took.
        duration: Duration,
    },
    /// A rule file was read again, and is not valid. The last valid rules continue to apply.
    RulesRefused {
        /// The path of the file.
        path: &'a Path,
        /// The error. It contains no secret.
        error: &'a (dyn Error + 'static),
        /// The time that reading the file took.
        duration: Duration,
    },
    /// A source of policies has read changes of its limits. They apply to the next requests.
    PoliciesChanged {
        /// The number of changes; `None` if the source has invalidated all that it knows.
        changes: Option<usize>,
        /// The time that reading the changes took.
        duration: Duration,
    },
}

impl EventKind<'_> {
    /// Returns a short fixed word, suitable as a label.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::NearLimit { .. } => "near_limit",
            Self::WouldDeny { .. } => "would_deny",
            Self::Settled { .. } => "settled",
            Self::StoreCallFailed { .. } => "store_call_failed",
            Self::StoreFailing { .. } => "store_failing",
            Self::StoreRecovered { .. } => "store_recovered",
            Self::BreakerOpened { .. } => "breaker_opened",
            Self::BreakerClosed { .. } => "breaker_closed",
            Self::StoreOverloaded { .. } => "store_overloaded",
            Self::StoreOverloadEnded { .. } => "store_overload_ended",
            Self::StoreOutOfMemory { .. } => "store_out_of_memory",
            Self::StoreOutOfMemoryEnded { .. } => "store_out_of_memory_ended",
            Self::PolicyUnsupported { .. } => "policy_unsupported",
            Self::PolicyUnsupportedEnded { .. } => "policy_unsupported_ended",
            Self::ValueDamaged { .. } => "value_damaged",
            Self::ValueRecovered { .. } => "value_recovered",
            Self::FailurePolicyBegan { .. } => "failure_policy_began",
            Self::FailurePolicyEnded { .. } => "failure_policy_ended",
            Self::FallbackFailing { .. } => "fallback_failing",
            Self::FallbackRecovered { .. } => "fallback_recovered",
            Self::LookupFailed { .. } => "lookup_failed",
            Self::LookupsFailing { .. } => "lookups_failing",
            Self::LookupsRecovered { .. } => "lookups_recovered",
            Self::LookupsOverloaded { .. } => "lookups_overloaded",
            Self::LookupsOverloadEnded { .. } => "lookups_overload_ended",
            Self::PolicyUnreadable { .. } => "policy_unreadable",
            Self::PolicyReadable { .. } => "policy_readable",
            Self::LeaseLapsed { .. } => "lease_lapsed",
            Self::LapsesEnded { .. } => "lapses_ended",
            Self::RulesApplied { .. } => "rules_applied",
            Self::RulesRefused { .. } => "rules_refused",
            Self::PoliciesChanged { .. } => "policies_changed",
        }
    }
}
