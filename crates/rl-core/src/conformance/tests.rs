//! Stores that each break one clause of the contract, which the suite must report.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::{Suite, suite};
use crate::decision::Decision;
use crate::maybe_ready::MaybeReady;
use crate::model::{FailureKind, Limit, Subject};
use crate::model::{Mode, StoreError};
use crate::policy::Policy;
use crate::store::memory::MemoryStore;
use crate::store::{
    DecideRequest, LeaseStatus, Namespace, Part, Renewal, Reset, Settlement, Store, StoreFuture,
};
use crate::time::{Clock, ManualClock, Timestamp};

/// The fault of a store.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    ChargesLimitsOneByOne,
    AllowsOneTooMany,
    IgnoresRequests,
    ChargesWhatItDenies,
    BelievesAClockThatStepsBack,
    ForgetsOnANewMax,
    CountsRequestsAsUnits,
    ForgetsAmongManyPolicies,
    NeverRemoves,
    ChargesForAPeek,
    RefundsInAnyWindow,
    RefundsAfterAReset,
    SharesSubjects,
    SharesNamespaces,
    AnswersDenialsWithErrors,
    RenewsWhatHasEnded,
    EnforcesShadow,
    CountsAllByFixedWindows,
    CountsConcurrencyByFixedWindows,
    RefusesWithoutSayingSo,
}

/// A memory store with a fault.
#[derive(Debug)]
struct Faulty {
    fault: Fault,
    inner: MemoryStore<Arc<ManualClock>>,
    clock: Arc<ManualClock>,
    latest: AtomicU64,
    resets: AtomicUsize,
    policies: Mutex<HashSet<String>>,
    subjects: Mutex<HashSet<Subject>>,
}

impl Faulty {
    fn new(fault: Fault, clock: &Arc<ManualClock>) -> Self {
        Self {
            fault,
            inner: MemoryStore::builder().clock(clock.clone()).build(),
            clock: clock.clone(),
            latest: AtomicU64::new(0),
            resets: AtomicUsize::new(0),
            policies: Mutex::default(),
            subjects: Mutex::default(),
        }
    }

    /// Returns the subject that the faulty store counts instead of `subject`.
    fn subject(&self, subject: &Subject, policy: &Policy) -> Subject {
        let suffixed =
            |suffix: &str| Subject::user(&format!("{subject:?}{}{suffix}", subject.id()));
        match self.fault {
            Fault::SharesSubjects => Subject::user(&subject.id().to_string()),
            Fault::ForgetsOnANewMax => suffixed(&policy.to_string().replace(":shadow", "")),
            Fault::BelievesAClockThatStepsBack => {
                let now = self.clock.now().as_micros();
                let latest = self.latest.fetch_max(now, Ordering::SeqCst);
                if now < latest { suffixed("before") } else { subject.clone() }
            }
            Fault::ForgetsAmongManyPolicies => {
                let mut policies = self.policies.lock().unwrap();
                if policy.limits().iter().any(|limit| limit.name().ends_with("hours")) {
                    policies.insert(policy.to_string());
                }
                if policies.len() > 16 { suffixed("anew") } else { subject.clone() }
            }
            _ => subject.clone(),
        }
    }

    /// Returns the policy that the faulty store applies instead of `policy`.
    fn policy(&self, policy: &Policy) -> Policy {
        let change = |text: String| match self.fault {
            Fault::IgnoresRequests => text.replace(":requests", ""),
            // This fault leaves policies of a single limit correct, so only a check of a policy
            // with several limits detects it.
            Fault::CountsRequestsAsUnits if policy.limits().len() > 1 => {
                text.replace(":requests", "")
            }
            Fault::EnforcesShadow => text.replace(":shadow", ""),
            Fault::AllowsOneTooMany => match text.split_once('/') {
                Some((max, rest)) => format!("{}/{rest}", max.parse::<u64>().unwrap() + 1),
                None => text,
            },
            Fault::CountsAllByFixedWindows if !text.contains("concurrency") => fixed(&text),
            Fault::CountsConcurrencyByFixedWindows if text.contains("concurrency") => {
                format!("{}/day", text.split(':').next().unwrap())
            }
            _ => text,
        };
        let limits = policy.limits().iter();
        let changed = limits.fold(Policy::builder(), |changed, limit| {
            let text = change(limit.limit().to_string());
            changed.named(limit.name(), text.parse().unwrap())
        });
        // The change may give two limits the same state, which makes the policy invalid.
        changed.build().unwrap_or_else(|_| Policy::new([Limit::per_hour(5)]).unwrap())
    }

    fn namespace(&self, namespace: &Namespace) -> Namespace {
        match self.fault {
            Fault::SharesNamespaces => Namespace::default(),
            _ => namespace.clone(),
        }
    }

    fn decide_now(&self, request: DecideRequest<'_>) -> Result<Decision, StoreError> {
        match self.inner.decide(request) {
            MaybeReady::Ready(Some(decision)) => decision,
            _ => unreachable!("a memory store answers without waiting"),
        }
    }
}

/// Returns the text of a fixed window of the same size as the limit in `text`.
fn fixed(text: &str) -> String {
    let (limit, options) = text.split_once(':').unwrap_or((text, ""));
    let (max, period) = limit.split_once('/').unwrap();
    let is_kept = |option: &&str| {
        ["clock", "requests", "shadow"].contains(option) || option.starts_with("offset=")
    };
    let kept = options.split(':').filter(is_kept).map(|option| format!(":{option}"));
    let size = options.split(':').find_map(|option| {
        option.strip_prefix("capacity=").or_else(|| option.strip_prefix("burst="))
    });
    format!("{}/{period}{}", size.unwrap_or(max), kept.collect::<String>())
}

impl Store for Faulty {
    fn decide(&self, request: DecideRequest<'_>) -> StoreFuture<Decision> {
        let part = request.sole_part().unwrap();
        let subject = self.subject(part.subject, part.policy);
        let policy = self.policy(part.policy);
        let namespace = self.namespace(request.namespace);
        let parts = [Part::new(&subject, &policy, part.cost)];
        let mut mode = request.mode;
        if self.fault == Fault::NeverRemoves {
            self.subjects.lock().unwrap().insert(subject.clone());
        }
        if self.fault == Fault::ChargesForAPeek && mode == Mode::Peek {
            mode = Mode::Check;
        }
        if self.fault == Fault::RefusesWithoutSayingSo && policy.to_string().contains("gcra") {
            return MaybeReady::ready(Err(StoreError::new(FailureKind::Unsupported)));
        }
        let has_several = policy.limits().len() > 1;
        if self.fault == Fault::ChargesLimitsOneByOne && mode == Mode::Check && has_several {
            for limit in policy.limits() {
                let alone = Policy::builder().named(limit.name(), limit.limit()).build().unwrap();
                let parts = [Part::new(&subject, &alone, part.cost)];
                let _ = self.decide_now(DecideRequest::new(&namespace, &parts, mode));
            }
            mode = Mode::Peek;
        }
        let decision = match self.decide_now(DecideRequest::new(&namespace, &parts, mode)) {
            Ok(decision) => decision,
            Err(error) => return MaybeReady::ready(Err(error)),
        };
        if !decision.is_allowed() && mode == Mode::Check {
            if self.fault == Fault::ChargesWhatItDenies {
                let _ = self.decide_now(DecideRequest::new(&namespace, &parts, Mode::Charge));
            }
            if self.fault == Fault::AnswersDenialsWithErrors {
                return MaybeReady::ready(Err(StoreError::new(FailureKind::Protocol)));
            }
        }
        MaybeReady::ready(Ok(decision))
    }

    fn settle(&self, settlements: &[Settlement<'_>]) -> StoreFuture<LeaseStatus> {
        let [settlement] = *settlements else { unreachable!("the suite settles one subject") };
        let subject = self.subject(settlement.subject, settlement.policy);
        let policy = self.policy(settlement.policy);
        let anew = match self.fault {
            Fault::RefundsInAnyWindow => true,
            Fault::RefundsAfterAReset => self.resets.load(Ordering::SeqCst) > 0,
            _ => false,
        };
        let now = anew.then(|| self.clock.now());
        let charged = now.unwrap_or(settlement.charged);
        let leased = now.unwrap_or(settlement.leased);
        let (subject, policy) = (&subject, &policy);
        self.inner.settle(&[Settlement { subject, policy, charged, leased, ..settlement }])
    }

    fn renew(&self, renewal: Renewal<'_>) -> StoreFuture<LeaseStatus<Timestamp>> {
        if self.fault == Fault::RenewsWhatHasEnded {
            return MaybeReady::ready(Ok(LeaseStatus::Held(renewal.charged)));
        }
        self.inner.renew(renewal)
    }

    fn reset(&self, resets: &[Reset<'_>]) -> StoreFuture<()> {
        self.resets.fetch_add(1, Ordering::SeqCst);
        self.inner.reset(resets)
    }
}

/// Runs the suite on a store with this fault. Returns the message with which the suite fails, or
/// `None` if it does not fail.
async fn failure(fault: Fault) -> Option<String> {
    let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_769_903_998)));
    let store = Arc::new(Faulty::new(fault, &clock));
    let held = store.clone();
    let stored = move || {
        let stored = match fault {
            Fault::NeverRemoves => held.subjects.lock().unwrap().len(),
            _ => held.inner.len(),
        };
        async move { stored }
    };
    let tested = Suite::new(store, clock).count_stored(stored);
    let run = tokio::spawn(async move { suite(&tested).await });
    let panic = run.await.err()?.into_panic();
    Some(panic.downcast_ref::<String>().map_or_else(|| "no words".to_owned(), String::clone))
}

#[tokio::test]
async fn a_store_that_breaks_a_rule_fails_with_its_number_and_words() {
    let mut wrong = Vec::new();
    for (fault, rule) in [
        (
            Fault::ChargesLimitsOneByOne,
            "clause 1: one decision charges all limits in one step, or none: ",
        ),
        (
            Fault::AllowsOneTooMany,
            "clause 2: exact: a cost passes if and only if used + cost <= max: ",
        ),
        (
            Fault::IgnoresRequests,
            "clause 2: exact: a cost passes if and only if used + cost <= max: request of cost 5 under 3/hour:requests",
        ),
        (Fault::ChargesWhatItDenies, "clause 3: a denial changes nothing: "),
        (
            Fault::BelievesAClockThatStepsBack,
            "clause 4: one clock, which never grants anything by stepping back: ",
        ),
        (
            Fault::ForgetsOnANewMax,
            "clause 5: state is identified by algorithm, period, anchor and what is counted: ",
        ),
        (
            Fault::CountsRequestsAsUnits,
            "clause 5: state is identified by algorithm, period, anchor and what is counted: cost 20 under 5/hour:requests and 100/hour",
        ),
        (
            Fault::ForgetsAmongManyPolicies,
            "clause 5: state is identified by algorithm, period, anchor and what is counted: 1/day is used up",
        ),
        (Fault::NeverRemoves, "clause 6: nothing is kept for ever: "),
        (Fault::ChargesForAPeek, "clause 7: a peek and a cost of 0 write nothing: "),
        (
            Fault::RefundsInAnyWindow,
            "clause 8: a refund lowers a count only where it was charged, and never below zero: ",
        ),
        (
            Fault::RefundsAfterAReset,
            "clause 8: a refund lowers a count only where it was charged, and never below zero: ",
        ),
        (Fault::SharesSubjects, "clause 9: subjects and namespaces never share state: "),
        (Fault::SharesNamespaces, "clause 9: subjects and namespaces never share state: "),
        (
            Fault::AnswersDenialsWithErrors,
            "clause 10: a denial is an answer, and an error means that no decision was made: ",
        ),
        (
            Fault::RenewsWhatHasEnded,
            "clause 11: a permit ends when it is released or when its lease has ended: ",
        ),
        (Fault::EnforcesShadow, "clause 12: a limit in shadow denies nothing: "),
        (Fault::CountsConcurrencyByFixedWindows, "clause 11: "),
        (
            Fault::CountsAllByFixedWindows,
            "clause 2: exact: a cost passes if and only if used + cost <= max: ",
        ),
        (
            Fault::RefusesWithoutSayingSo,
            "clause 13: a store refuses a limit that it cannot hold as unsupported: ",
        ),
    ] {
        let failure = failure(fault).await;
        if !failure.as_ref().is_some_and(|text| text.starts_with(rule)) {
            wrong.push(format!("{fault:?}: expected {rule:?}, got {failure:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(failure(Fault::None).await, None);
}

#[tokio::test]
async fn a_store_fails_if_it_counts_under_an_algorithm_declared_unsupported() {
    let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_769_903_998)));
    let store = MemoryStore::builder().clock(clock.clone()).build();
    let gcra = "1/day:gcra".parse::<Limit>().unwrap().algorithm();
    let tested = Suite::new(store, clock).without_stored_count().without(gcra);
    let panic = tokio::spawn(async move { suite(&tested).await }).await.unwrap_err().into_panic();
    let text = panic.downcast_ref::<String>().unwrap();
    assert!(
        text.starts_with("clause 13: a store refuses a limit that it cannot hold as unsupported: "),
        "{text}"
    );
}

#[tokio::test]
async fn a_suite_without_a_stored_count_requires_one() {
    let clock = Arc::new(ManualClock::default());
    let tested = Suite::new(MemoryStore::builder().clock(clock.clone()).build(), clock);
    let panic = tokio::spawn(async move { suite(&tested).await }).await.unwrap_err().into_panic();
    let text = panic.downcast_ref::<String>().unwrap();
    assert!(
        text.starts_with("clause 6: nothing is kept for ever: count the stored records"),
        "{text}"
    );
}
