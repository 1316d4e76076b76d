mod close;
mod events;
mod failure_policy;
mod parts;
mod policy_denial;
mod rules;
mod stats;
mod waiting;

use std::fmt;
use std::future::pending;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, advance, timeout};

use crate::decision::{Decision, GoverningLimit, LimitStatus, Origin, RetryAfter};
use crate::limiter::{BuildError, OnFailure, ResetError, Share};
use crate::limiter::{RateLimiter, RateLimiterBuilder};
use crate::maybe_ready::MaybeReady;
use crate::model::StoreError;
use crate::model::{Cost, FailureKind, Limit, Mode, Realm, Subject};
use crate::observe::{DecisionEvent, Event, EventKind, Observer};
use crate::policy::Policy;
use crate::source::{ByRealm, PolicyFuture, PolicySource, Preset};
use crate::store::memory::MemoryStore;
use crate::store::{
    DecideRequest, LeaseStatus, Renewal, Reset, Settlement, Store, StoreFuture, StoreReport,
};
use crate::time::{ManualClock, Timestamp, TokioClock};

const KINDS: [FailureKind; 6] = [
    FailureKind::Unavailable,
    FailureKind::TimedOut,
    FailureKind::Refused,
    FailureKind::Corrupt,
    FailureKind::Protocol,
    FailureKind::Unsupported,
];

fn alice() -> Subject {
    Subject::user("alice")
}

/// Returns the builder of a limiter that allows three units per hour.
fn three() -> RateLimiterBuilder {
    RateLimiter::builder().limit(Limit::per_hour(3))
}

async fn used(limiter: &RateLimiter) -> u64 {
    limiter.usage(&alice()).await.unwrap().limits().next().unwrap().used()
}

/// A store in memory that fails on demand, and counts its calls.
#[derive(Debug, Default)]
pub(super) struct Faulty {
    memory: MemoryStore,
    failure: Mutex<Option<FailureKind>>,
    asked: AtomicUsize,
    decides_at_once: bool,
}

impl Faulty {
    pub(super) fn fail_with(&self, kind: impl Into<Option<FailureKind>>) {
        *self.failure.lock().unwrap() = kind.into();
    }

    pub(super) fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    fn answer<T: Send + 'static>(&self, answer: impl FnOnce() -> StoreFuture<T>) -> StoreFuture<T> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        match *self.failure.lock().unwrap() {
            Some(kind) => MaybeReady::ready(Err(StoreError::new(kind))),
            None => answer(),
        }
    }
}

impl Store for Faulty {
    fn decide(&self, request: DecideRequest<'_>) -> StoreFuture<Decision> {
        self.answer(|| self.memory.decide(request))
    }

    fn report(&self) -> StoreReport<'_> {
        StoreReport { decides_at_once: self.decides_at_once, ..StoreReport::default() }
    }

    fn settle(&self, settlements: &[Settlement<'_>]) -> StoreFuture<LeaseStatus> {
        self.answer(|| self.memory.settle(settlements))
    }

    fn renew(&self, renewal: Renewal<'_>) -> StoreFuture<LeaseStatus<Timestamp>> {
        self.answer(|| self.memory.renew(renewal))
    }

    fn reset(&self, resets: &[Reset<'_>]) -> StoreFuture<()> {
        self.answer(|| self.memory.reset(resets))
    }
}

/// A store in memory that decides at once, and replies after a delay. The function returns the
/// delay of a decision in this mode.
pub(super) struct Delayed<F>(pub(super) MemoryStore<TokioClock>, pub(super) F);

impl<F> fmt::Debug for Delayed<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Delayed")
    }
}

impl<F: Fn(Mode) -> Duration + Send + Sync + 'static> Store for Delayed<F> {
    fn decide(&self, request: DecideRequest<'_>) -> StoreFuture<Decision> {
        let (decided, delay) = (self.0.decide(request), (self.1)(request.mode));
        MaybeReady::later(async move {
            if !delay.is_zero() {
                let _ = timeout(delay, pending::<()>()).await;
            }
            decided.await
        })
    }

    fn settle(&self, settlements: &[Settlement<'_>]) -> StoreFuture<LeaseStatus> {
        self.0.settle(settlements)
    }

    fn renew(&self, renewal: Renewal<'_>) -> StoreFuture<LeaseStatus<Timestamp>> {
        self.0.renew(renewal)
    }

    fn reset(&self, resets: &[Reset<'_>]) -> StoreFuture<()> {
        self.0.reset(resets)
    }
}

/// Returns a store in memory with the clock of the runtime.
pub(super) fn on_tokio_time() -> MemoryStore<TokioClock> {
    MemoryStore::builder().clock(TokioClock::new()).build()
}

/// A store that never answers.
#[derive(Debug)]
struct Silent;

impl Store for Silent {
    fn decide(&self, _: DecideRequest<'_>) -> StoreFuture<Decision> {
        MaybeReady::later(pending())
    }

    fn settle(&self, _: &[Settlement<'_>]) -> StoreFuture<LeaseStatus> {
        MaybeReady::later(pending())
    }

    fn renew(&self, _: Renewal<'_>) -> StoreFuture<LeaseStatus<Timestamp>> {
        MaybeReady::later(pending())
    }

    fn reset(&self, _: &[Reset<'_>]) -> StoreFuture<()> {
        MaybeReady::later(pending())
    }
}

/// A source that returns one policy, or fails, after a delay.
#[derive(Clone)]
struct Slow {
    after: Duration,
    answer: Result<Option<Policy>, FailureKind>,
}

impl Slow {
    fn new(millis: u64, answer: Result<Option<Policy>, FailureKind>) -> Self {
        Self { after: Duration::from_millis(millis), answer }
    }
}

impl PolicySource for Slow {
    fn policy(&self, _: &Subject) -> PolicyFuture {
        let Self { after, answer } = self.clone();
        MaybeReady::later(async move {
            // On a paused clock this wait takes no real time.
            let _ = tokio::time::timeout(after, std::future::pending::<()>()).await;
            answer.map_err(StoreError::new)
        })
    }
}

#[cfg(feature = "tracing")]
#[test]
fn two_limiters_that_share_counters_under_different_limits_are_logged_once() {
    use crate::observe::capture::Capture;

    let log = Capture::start();
    let store = Arc::new(MemoryStore::new());
    let build = |limit: Limit, namespace: &str| {
        let builder = RateLimiter::builder().limit(limit).store(store.clone());
        builder.namespace(namespace).build().unwrap()
    };
    let _login = build(Limit::per_minute(5), "default");
    let _same = build(Limit::per_minute(5), "default");
    let _elsewhere = build(Limit::per_minute(100), "api");
    assert_eq!(log.lines(), [""; 0]);
    let _limiters = [7, 8].map(|max| build(Limit::per_minute(max), "default"));
    let lines = log.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    let begin = "WARN two limiters with different limits share counters: ";
    assert!(lines[0].starts_with(begin) && lines[0].contains("namespace"), "{lines:?}");
}

#[cfg(feature = "tracing")]
#[test]
fn rules_of_one_name_with_different_limits_are_logged_once() {
    use crate::observe::capture::Capture;
    use crate::rules::{Rule, Rules};

    let log = Capture::start();
    let store = Arc::new(MemoryStore::new());
    let build = |name: &str, max: u32| {
        let rule = Rule::named(name).limit(Limit::per_minute(max));
        let rules = Rules::new().rule(rule.tier("pro", [Limit::per_minute(99)]));
        RateLimiter::builder().rules(rules).store(store.clone()).build().unwrap()
    };
    let _limiters = [build("fleet", 5), build("fleet", 5), build("login", 6)];
    assert_eq!(log.lines(), [""; 0]);
    let _others = [build("fleet", 7), build("fleet", 8)];
    let lines = log.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("default/fleet"), "{lines:?}");
}

#[test]
fn settings_that_make_no_limiter_are_named_with_what_was_expected() {
    let builder = RateLimiter::builder;
    let second = Limit::per_second(1);
    let policy = Policy::new([second]).unwrap();
    let long = "n".repeat(65);
    #[rustfmt::skip]
    let cases = [
        (builder(), "no limits: expected `.limit(..)` at least once, or `.policies(..)`"),
        (builder().limit(second).limit(Limit::per_second(5)), "limits 1/second and 5/second would share one counter: keep the stricter one, give one of them another period or algorithm, or let only one count requests (\":requests\")"),
        (builder().limit(second).named_limit("second", Limit::per_day(5)), r#"limit name "second" is used twice: give one of the two another name"#),
        (builder().named_limit("a b", second), r#"limit name "a b": expected 1 to 64 characters of A-Z a-z 0-9 _ . : * / -"#),
        (builder().limit(second).policies(policy), "both `.limit(..)` and `.policies(..)`: expected one of the two"),
        (builder().limit(second).namespace("a b"), r#"namespace "a b": expected 1 to 64 characters of A-Z a-z 0-9 _ . -"#),
        (builder().limit(second).namespace(""), r#"namespace "": expected 1 to 64 characters of A-Z a-z 0-9 _ . -"#),
        (builder().limit(second).namespace(&long), &format!("namespace {long:?}: expected 1 to 64 characters of A-Z a-z 0-9 _ . -")),
        (builder().limit(second).deadline(Duration::ZERO), "deadline must be greater than zero"),
        (builder().limit(second).max_in_flight(0), "max_in_flight must be at least 1"),
        (builder().limit(second).on_store_failure(OnFailure::Fallback), "`OnFailure::Fallback` without a store: expected `.fallback(..)`"),
        (builder().limit(second).on_configuration_failure(OnFailure::Fallback), "`OnFailure::Fallback` without a store: expected `.fallback(..)`"),
        (builder().limit(second).fallback(MemoryStore::new(), Share::with_instances(0)), "a share of 0 instances: expected at least 1"),
    ];
    for (builder, text) in cases {
        assert_eq!(builder.build().unwrap_err().to_string(), text);
    }
    let many = (1..=17).fold(builder(), |builder, millis| {
        builder.limit(Limit::new(1, crate::model::Period::from_millis(millis).unwrap()).unwrap())
    });
    let error = many.build().unwrap_err();
    assert_eq!(error.to_string(), "policy has 17 limits: expected at most 16");
    assert!(std::error::Error::source(&error).is_some());
    assert!(std::error::Error::source(&BuildError::ZeroDeadline).is_none());
}

#[tokio::test]
async fn infrastructure_and_configuration_failures_have_policies_of_their_own() {
    let store = Arc::new(Faulty::default());
    for (on_store, on_configuration) in [
        (OnFailure::Allow, OnFailure::Reject),
        (OnFailure::Reject, OnFailure::Allow),
        (OnFailure::Allow, OnFailure::Allow),
        (OnFailure::Reject, OnFailure::Reject),
    ] {
        let builder = three().store(store.clone()).on_store_failure(on_store);
        let limiter = builder.on_configuration_failure(on_configuration).build().unwrap();
        for kind in KINDS {
            store.fail_with(kind);
            let decision = limiter.check(&alice(), 2).await;
            let infrastructure = matches!(kind, FailureKind::Unavailable | FailureKind::TimedOut);
            let expected = match if infrastructure { on_store } else { on_configuration } {
                OnFailure::Allow => (Origin::FailedOpen(kind), true, 2, RetryAfter::Now),
                OnFailure::Reject | OnFailure::Fallback => {
                    (Origin::FailedClosed(kind), false, 0, RetryAfter::In(Duration::from_secs(1)))
                }
            };
            let found = (
                decision.origin(),
                decision.is_allowed(),
                decision.granted(),
                decision.retry_after(),
            );
            assert_eq!(found, expected);
            assert!(decision.policy().is_none() && decision.limits().next().is_none());
        }
    }
}

#[tokio::test]
async fn by_default_outages_allow_requests_and_misconfigurations_reject_them() {
    let store = Arc::new(Faulty::default());
    let limiter = three().store(store.clone()).build().unwrap();
    for kind in KINDS {
        store.fail_with(kind);
        let allowed = limiter.check(&alice(), 1).await.is_allowed();
        assert_eq!(allowed, !kind.is_configuration(), "{kind}");
    }
    store.fail_with(None);
    assert_eq!(limiter.check(&alice(), 1).await.origin(), Origin::Store);
}

/// An outage of the policy source must not open the breaker of the store.
#[cfg(feature = "tracing")]
#[tokio::test(start_paused = true)]
async fn an_outage_of_the_policy_source_is_logged_twice_and_does_not_block_the_store() {
    use crate::observe::capture::Capture;

    let (capture, recorder) = (Capture::start(), Arc::new(Recorder::default()));
    let is_down = Arc::new(Mutex::new(false));
    let source = {
        let is_down = Arc::clone(&is_down);
        move |subject: &Subject| {
            let one = Policy::new([Limit::per_hour(100)]).unwrap();
            let fails = *is_down.lock().unwrap() && subject.realm() == &Realm::User;
            let answer = if fails { Err(FailureKind::Unavailable) } else { Ok(Some(one)) };
            Slow::new(1, answer).policy(subject)
        }
    };
    let builder = RateLimiter::builder().policies(From(source)).observer(recorder.clone());
    let limiter = builder.build().unwrap();
    *is_down.lock().unwrap() = true;
    for _ in 0..10 {
        let origin = limiter.check(&alice(), 1).await.origin();
        assert_eq!(origin, Origin::FailedOpen(FailureKind::Unavailable));
    }
    assert_eq!(recorder.take().iter().filter(|line| *line == "no policy: unavailable").count(), 10);
    assert_eq!(limiter.check(&Subject::consumer("bob"), 1).await.origin(), Origin::Store);
    *is_down.lock().unwrap() = false;
    assert_eq!(limiter.check(&alice(), 1).await.origin(), Origin::Store);
    assert_eq!(capture.lines().len(), 1, "within the recovery period");
    advance(Duration::from_secs(1)).await;
    assert_eq!(limiter.check(&alice(), 1).await.origin(), Origin::Store);
    let lines = capture.lines();
    assert_eq!(lines.len(), 2, "{lines:#?}");
    assert!(
        lines[0].starts_with("WARN policy look-ups failing; limiter=\"default\"; kind"),
        "{lines:#?}"
    );
    assert!(lines[1].starts_with("INFO policy look-ups recovered"), "{lines:#?}");
    assert!(lines[1].ends_with("undecided=10"), "{lines:#?}");
}

/// Operators need the values of the store itself, so these operations fail with the store. The
/// failure policy does not apply to them.
#[tokio::test]
async fn failures_of_operations_are_errors() {
    let store = Arc::new(Faulty::default());
    let limiter = three().store(store.clone()).build().unwrap();
    let decision = limiter.check(&alice(), 2).await;
    store.fail_with(FailureKind::Unavailable);
    let unavailable = Some(FailureKind::Unavailable);
    let kind = |error: StoreError| error.kind();
    assert_eq!(limiter.usage(&alice()).await.err().map(kind), unavailable);
    assert_eq!(limiter.reset(&alice()).await.err().map(kind), unavailable);
    match limiter.request(&alice()).reset_limit("hour").await.unwrap_err() {
        ResetError::Store(error) => assert_eq!(Some(error.kind()), unavailable),
        error => panic!("{error}"),
    }
    assert_eq!(
        limiter.request(&alice()).refund(&decision, &[1]).await.err().map(kind),
        unavailable
    );
}

#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_answer_is_abandoned_at_the_deadline() {
    for (builder, deadline) in [
        (three(), Duration::from_millis(100)),
        (three().deadline(Duration::from_millis(7)), Duration::from_millis(7)),
    ] {
        let limiter = builder.store(Silent).build().unwrap();
        let asked = Instant::now();
        let decision = limiter.check(&alice(), 1).await;
        assert_eq!(decision.origin(), Origin::FailedOpen(FailureKind::TimedOut));
        assert_eq!(asked.elapsed(), deadline);
        for answer in [limiter.reset(&alice()).await, limiter.usage(&alice()).await.map(drop)] {
            assert_eq!(answer.unwrap_err().kind(), FailureKind::TimedOut);
        }
        assert_eq!(asked.elapsed(), deadline * 3);
    }
}

#[tokio::test(start_paused = true)]
async fn looking_the_policy_up_is_part_of_the_deadline() {
    let three_per_hour = Policy::new([Limit::per_hour(3)]).unwrap();
    // The look-up takes 80 of the 100 milliseconds, and the store never answers.
    let slow = Slow::new(80, Ok(Some(three_per_hour)));
    let limiter = RateLimiter::builder().policies(slow).store(Silent).build().unwrap();
    let asked = Instant::now();
    let decision = limiter.check(&alice(), 1).await;
    assert_eq!(decision.origin(), Origin::FailedOpen(FailureKind::TimedOut));
    assert_eq!(asked.elapsed(), Duration::from_millis(100));
    assert!(limiter.usage(&alice()).await.is_err());
    assert_eq!(asked.elapsed(), Duration::from_millis(200));
    assert!(limiter.reset(&alice()).await.is_err());
    assert_eq!(asked.elapsed(), Duration::from_millis(300));
}

#[tokio::test(start_paused = true)]
async fn a_source_may_take_its_time_and_may_fail() {
    let one = Policy::new([Limit::per_hour(1)]).unwrap();
    let limiter = |millis, answer| {
        RateLimiter::builder().policies(Slow::new(millis, answer)).build().unwrap()
    };
    let slow = limiter(50, Ok(Some(one.clone())));
    assert!(slow.check(&alice(), 1).await.is_allowed());
    assert!(!slow.check(&alice(), 1).await.is_allowed());
    assert_eq!(used(&slow).await, 1);
    slow.reset(&alice()).await.unwrap();
    assert_eq!(used(&slow).await, 0);

    let unlimited = limiter(50, Ok(None));
    assert_eq!(unlimited.check(&alice(), 1).await.origin(), Origin::Unlimited);

    let too_slow = limiter(101, Ok(Some(one)));
    let timed_out = Origin::FailedOpen(FailureKind::TimedOut);
    assert_eq!(too_slow.check(&alice(), 1).await.origin(), timed_out);

    let down = limiter(1, Err(FailureKind::Unavailable));
    let failed_open = Origin::FailedOpen(FailureKind::Unavailable);
    assert_eq!(down.check(&alice(), 1).await.origin(), failed_open);
    assert_eq!(down.usage(&alice()).await.unwrap_err().kind(), FailureKind::Unavailable);

    let refused = limiter(1, Err(FailureKind::Refused));
    let failed_closed = Origin::FailedClosed(FailureKind::Refused);
    assert_eq!(refused.check(&alice(), 1).await.origin(), failed_closed);
}

/// A source made of an asynchronous function.
struct From<F>(F);

impl<F: Fn(&Subject) -> PolicyFuture + Send + Sync + 'static> PolicySource for From<F> {
    fn policy(&self, subject: &Subject) -> PolicyFuture {
        (self.0)(subject)
    }
}

#[derive(Debug, Default)]
struct Recorder(Mutex<Vec<String>>);

impl Recorder {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    fn push(&self, what: String) {
        self.0.lock().unwrap().push(what);
    }
}

impl Observer for Recorder {
    fn decided(&self, event: &DecisionEvent<'_>) {
        let DecisionEvent { subject, decision, .. } = *event;
        let verdict = if decision.is_allowed() { "allowed" } else { "denied" };
        self.push(format!("{} {verdict} by {}", subject.id(), decision.origin().as_str()));
    }

    fn observe(&self, event: &Event<'_>) {
        match event.kind {
            EventKind::WouldDeny { subject, limit, .. } => {
                self.push(format!("{} would deny {}", limit.name(), subject.id()));
            }
            EventKind::StoreCallFailed { error, .. } => {
                self.push(format!("failed: {}", error.kind().as_str()));
            }
            EventKind::StoreRecovered { .. } => self.push("recovered".to_owned()),
            EventKind::LookupFailed { error, .. } => {
                self.push(format!("no policy: {}", error.kind().as_str()));
            }
            _ => {}
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_observer_gets_every_decision_and_failure_and_one_recovery() {
    let (store, recorder) = (Arc::new(Faulty::default()), Arc::new(Recorder::default()));
    let limiter = three().store(store.clone()).observer(recorder.clone()).build().unwrap();
    let ask = async |times| {
        for _ in 0..times {
            limiter.check(&alice(), 2).await;
        }
        recorder.take()
    };
    assert_eq!(ask(2).await, ["alice allowed by store", "alice denied by store"]);

    store.fail_with(FailureKind::Unavailable);
    let failure = ["failed: unavailable", "alice allowed by failed_open"];
    assert_eq!(ask(3).await, [failure; 3].concat());
    // The breaker is open: the store is not called, so it does not fail.
    assert_eq!(ask(2).await, ["alice allowed by failed_open"; 2]);
    advance(Duration::from_secs(1)).await;
    store.fail_with(FailureKind::Corrupt);
    assert_eq!(ask(1).await, ["failed: corrupt", "alice denied by failed_closed"]);

    store.fail_with(None);
    assert_eq!(ask(2).await, ["recovered", "alice denied by store", "alice denied by store"]);

    limiter.peek(&alice(), 1).await;
    limiter.request(&alice()).policy(&Policy::new([Limit::per_day(9)]).unwrap()).check().await;
    assert_eq!(recorder.take(), ["alice allowed by store", "alice allowed by store"]);
}

#[cfg(feature = "tracing")]
#[tokio::test(start_paused = true)]
async fn an_outage_is_one_log_line_when_it_begins_and_one_when_it_ends() {
    use crate::observe::capture::Capture;

    let store = Arc::new(Faulty::default());
    let limiter = three().store(store.clone()).build().unwrap();
    let capture = Capture::start();
    let ask = async || {
        advance(Duration::from_secs(1)).await;
        for _ in 0..3 {
            limiter.check(&alice(), 1).await;
        }
    };
    ask().await;
    assert_eq!(capture.lines(), [""; 0]);

    store.fail_with(FailureKind::Unavailable);
    ask().await;
    store.fail_with(FailureKind::TimedOut);
    ask().await;
    store.fail_with(FailureKind::Refused);
    ask().await;
    store.fail_with(None);
    ask().await;
    let lines = capture.lines();
    let expected = [
        "WARN store failing; limiter=\"default\"; store=\"store\"; kind=\"unavailable\"",
        "ERROR store failing; limiter=\"default\"; store=\"store\"; kind=\"refused\"",
        "INFO store recovered; limiter=\"default\"; store=\"store\"; outage_ms=3000; undecided=9",
    ];
    assert_eq!(lines.len(), expected.len(), "{lines:#?}");
    for (line, expected) in lines.iter().zip(expected) {
        assert!(line.starts_with(expected), "{lines:#?}");
    }
}

#[cfg(feature = "tracing")]
#[tokio::test]
async fn in_shadow_every_request_is_allowed_and_reported_once_per_window() {
    use crate::observe::capture::Capture;

    let (capture, recorder, clock) =
        (Capture::start(), Arc::<Recorder>::default(), Arc::new(ManualClock::default()));
    let store = MemoryStore::builder().clock(clock.clone()).build();
    let limiter = three().store(store).shadow(true).observer(recorder.clone()).build().unwrap();
    for count in [3, 4] {
        for _ in 0..count {
            let decision = limiter.check(&alice(), 1).await;
            assert_eq!((decision.is_allowed(), decision.origin()), (true, Origin::Shadow));
            assert!(
                decision.governing(GoverningLimit::default()).is_none(),
                "responses report no limit"
            );
        }
        assert_eq!(used(&limiter).await, 3, "as if it were enforced");
        for _ in 0..2 {
            let decision = limiter.check(&alice(), 1).await;
            let over: Vec<_> = decision.over_in_shadow().map(|limit| limit.name()).collect();
            assert_eq!((decision.is_allowed(), over), (true, vec!["hour"]));
        }
        clock.advance(Duration::from_secs(3_600));
    }
    let would_deny = recorder.take().into_iter().filter(|line| line.contains("would")).count();
    assert_eq!(would_deny, 5);
    let lines = capture.lines();
    assert_eq!(lines.len(), 2, "{lines:#?}");
    assert!(lines[0].starts_with("WARN limit in shadow would deny"), "{lines:#?}");
    assert!(lines[0].contains("limiter=\"default\"; store=\"memory\""), "{lines:#?}");
}

/// Without shadow, the failure policy would reject the request, because the store refuses the call.
#[tokio::test]
async fn in_shadow_an_outage_denies_nothing() {
    let store = Arc::new(Faulty::default());
    store.fail_with(FailureKind::Refused);
    let limiter = three().store(store).shadow(true).build().unwrap();
    assert!(limiter.check(&alice(), 1).await.is_allowed());
}

/// Disabling the limiter must work in an emergency, when the store hangs or cannot be reached.
#[tokio::test]
async fn a_disabled_limiter_allows_all_requests_without_calling_the_store() {
    let store = Arc::new(Faulty::default());
    store.fail_with(FailureKind::Refused);
    let asked = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&asked);
    let policies = move |_: &Subject| {
        counting.fetch_add(1, Ordering::SeqCst);
        Some(Policy::new([Limit::per_hour(0)]).unwrap())
    };
    let builder = RateLimiter::builder().policies(policies).store(store.clone());
    let limiter = builder.enabled(false).build().unwrap();
    assert!(!limiter.is_enabled());
    let policy = Policy::new([Limit::per_hour(0)]).unwrap();
    let decisions = [
        limiter.check(&alice(), 7).await,
        limiter.request(&alice()).cost(7).check_up_to().await,
        limiter.peek(&alice(), 7).await,
        limiter.request(&alice()).cost(7).charge().await,
        limiter.request(&alice()).policy(&policy).cost(7).check().await,
    ];
    for decision in &decisions {
        assert_eq!((decision.origin(), decision.granted()), (Origin::Disabled, 7));
        assert!(decision.is_allowed());
        limiter.request(&alice()).refund(decision, &[7]).await.unwrap();
    }
    assert_eq!((store.asked(), asked.load(Ordering::SeqCst)), (0, 0));
}

#[tokio::test]
async fn a_subject_without_a_policy_is_not_limited() {
    let store = Arc::new(Faulty::default());
    let consumers = Policy::new([Limit::per_hour(1)]).unwrap();
    let policies = ByRealm::unlimited_by_default().with(Realm::Consumer, consumers);
    let limiter = RateLimiter::builder().policies(policies).store(store.clone()).build().unwrap();
    for _ in 0..5 {
        let decision = limiter.check(&alice(), 9).await;
        assert_eq!((decision.origin(), decision.granted()), (Origin::Unlimited, 9));
        limiter.request(&alice()).refund(&decision, &[9]).await.unwrap();
    }
    assert_eq!(limiter.usage(&alice()).await.unwrap().limits().len(), 0);
    limiter.reset(&alice()).await.unwrap();
    assert!(limiter.request(&alice()).reset_limit("hour").await.is_err());
    assert_eq!(store.asked(), 0);

    let consumer = Subject::consumer("alice");
    assert!(limiter.check(&consumer, 1).await.is_allowed());
    assert!(!limiter.check(&consumer, 1).await.is_allowed());
}

#[tokio::test]
async fn realms_of_the_preset_have_their_own_limits() {
    let limiter = RateLimiter::builder().policies(Preset::OpenBank).build().unwrap();
    let names = async |subject: Subject| {
        let usage = limiter.usage(&subject).await.unwrap();
        usage.policy().unwrap().to_string()
    };
    assert_eq!(
        names(Subject::consumer("abc123")).await,
        "second=10/second, minute=100/minute, hour=1000/hour, day=10000/day, week=50000/week, \
         month=200000/month"
    );
    assert_eq!(names(Subject::ip([198, 51, 100, 7])).await, "hour=1000/hour");
}

/// The preset has no separate limits for unknown clients.
#[tokio::test]
async fn the_preset_limits_unknown_clients_as_anonymous_ones() {
    let limiter = RateLimiter::builder().policies(Preset::OpenBank).build().unwrap();
    let usage = limiter.usage(&Subject::new(Realm::Unknown, "")).await.unwrap();
    assert_eq!(usage.policy().unwrap().to_string(), "hour=1000/hour");
}

#[tokio::test]
async fn a_policy_for_one_call_replaces_the_policy_of_the_subject() {
    let limiter = three().build().unwrap();
    let policy = Policy::new([Limit::per_hour(5), Limit::per_day(1)]).unwrap();
    let decision = limiter.request(&alice()).policy(&policy).check().await;
    assert_eq!(decision.policy(), Some(&policy));
    assert!(!limiter.request(&alice()).policy(&policy).check().await.is_allowed());
    // The hourly limits of both policies share a counter, so one unit is used. The daily limit
    // applies only to calls with `policy`.
    assert_eq!(used(&limiter).await, 1);
    assert!(limiter.check(&alice(), 2).await.is_allowed());
    assert!(!limiter.check(&alice(), 1).await.is_allowed());
}

#[tokio::test]
async fn a_refund_returns_at_most_the_granted_units() {
    let store = Arc::new(Faulty::default());
    let limiter = three().store(store.clone()).build().unwrap();
    let granted = limiter.check(&alice(), 2).await;
    let denied = limiter.check(&alice(), 2).await;
    assert!(!denied.is_allowed());

    let before = store.asked();
    limiter.request(&alice()).refund(&denied, &[2]).await.unwrap();
    limiter.request(&alice()).refund(&granted, &[0]).await.unwrap();
    let undecided = Decision::undecided(Cost::ONE, Origin::FailedOpen(FailureKind::TimedOut));
    limiter.request(&alice()).refund(&undecided, &[1]).await.unwrap();
    assert_eq!(store.asked(), before, "there is nothing to refund");

    limiter.request(&alice()).refund(&granted, &[1]).await.unwrap();
    assert_eq!(used(&limiter).await, 1);
    limiter.check(&alice(), 2).await;
    limiter.request(&alice()).refund(&granted, &[u64::MAX]).await.unwrap();
    assert_eq!(used(&limiter).await, 1);

    let part = limiter.request(&alice()).cost(9).check_up_to().await;
    assert_eq!((part.granted(), part.is_allowed()), (2, true));
    limiter.request(&alice()).refund(&part, &[9]).await.unwrap();
    assert_eq!(used(&limiter).await, 1);
}

#[tokio::test]
async fn used_units_are_charged_beyond_the_limit() {
    let limiter = three().build().unwrap();
    assert!(limiter.request(&alice()).cost(10).charge().await.is_allowed());
    assert_eq!(used(&limiter).await, 10);
    let denied = limiter.check(&alice(), 1).await;
    assert_eq!((denied.is_allowed(), denied.limits().next().unwrap().remaining()), (false, 0));
}

#[tokio::test]
async fn a_peek_charges_nothing() {
    let limiter = three().build().unwrap();
    assert!(limiter.peek(&alice(), 3).await.is_allowed());
    assert!(!limiter.peek(&alice(), 4).await.is_allowed());
    assert!(limiter.check(&alice(), 0).await.is_allowed());
    assert_eq!(used(&limiter).await, 0);
    assert!(limiter.check(&alice(), 3).await.is_allowed());
}

#[tokio::test]
async fn one_limit_or_all_are_reset() {
    let limiter = three().limit(Limit::per_day(9)).build().unwrap();
    limiter.check(&alice(), 3).await;
    let counts = async || -> Vec<u64> {
        let usage = limiter.usage(&alice()).await.unwrap();
        usage.limits().map(|limit| limit.used()).collect()
    };
    limiter.request(&alice()).reset_limit("hour").await.unwrap();
    assert_eq!(counts().await, [0, 3]);
    limiter.check(&alice(), 1).await;
    assert_eq!(counts().await, [1, 4]);

    let error = limiter.request(&alice()).reset_limit("week").await.unwrap_err();
    assert!(matches!(&error, ResetError::UnknownLimit(name) if name == "week"), "{error}");
    assert_eq!(counts().await, [1, 4]);

    limiter.reset(&alice()).await.unwrap();
    assert_eq!(counts().await, [0, 0]);
}

#[tokio::test]
async fn namespaces_on_one_store_count_apart_and_clones_together() {
    let store = Arc::new(MemoryStore::new());
    let of = |namespace| three().store(store.clone()).namespace(namespace).build().unwrap();
    let (login, search) = (of("login"), of("search"));
    assert!(login.clone().check(&alice(), 3).await.is_allowed());
    assert!(!login.check(&alice(), 1).await.is_allowed());
    assert!(search.check(&alice(), 3).await.is_allowed());
    assert!(!of("search").check(&alice(), 1).await.is_allowed());
    assert_eq!(login.id(), login.clone().id());
    assert_ne!(login.id(), of("login").id());
}

#[test]
fn a_decision_in_memory_is_ready_immediately_without_an_allocation() {
    let limiter = three().limit(Limit::per_day(9)).build().unwrap();
    let alice = alice();
    let allocated = || {
        let check = || match limiter.check(&alice, 1) {
            MaybeReady::Ready(Some(decision)) => drop(decision),
            answer => panic!("{answer:?}"),
        };
        allocation_counter::measure(check).count_total
    };
    assert_ne!(allocated(), 0, "the counters of a new subject");
    // Two checks are granted and two denied.
    assert_eq!([allocated(), allocated(), allocated(), allocated()], [0; 4]);
}

#[test]
fn a_decision_on_a_known_subject_allocates_nothing_under_any_number_of_limits() {
    let rests = [
        "",
        ":clock",
        ":gcra",
        ":sliding-log",
        ":sliding-window-counter",
        ":token-bucket:refill=interval",
    ];
    let limit = |hours: usize, rest: &str| format!("2/{hours}h{rest}").parse::<Limit>().unwrap();
    for count in [1, 6, 7, 16] {
        // A policy has six logs at most.
        let alike = rests.iter().filter(|rest| **rest != ":sliding-log" || count <= 6);
        let alike = alike.map(|rest| (1..=count).map(|hours| limit(hours, rest)).collect());
        let mixed = (1..=count).map(|hours| limit(hours, rests[hours % rests.len()])).collect();
        for limits in alike.chain([mixed]) {
            let limits: Vec<Limit> = limits;
            let policy = Policy::new(limits.iter().copied()).unwrap();
            let limiter = RateLimiter::builder().policy(policy).build().unwrap();
            let check = || match limiter.check(&alice(), 1) {
                MaybeReady::Ready(Some(decision)) => decision.is_allowed(),
                answer => panic!("{answer:?}"),
            };
            // The first denial allocates the outcomes that later denials of this thread recycle.
            assert_eq!([check(), check(), check()], [true, true, false]);
            let denied = || assert!(!check());
            assert_eq!(allocation_counter::measure(denied).count_total, 0, "{limits:?}");
            drop(limiter.reset(&alice()));
            check();
            let allowed = || assert!(check());
            assert_eq!(allocation_counter::measure(allowed).count_total, 0, "{limits:?}");
        }
    }
}

/// A retry succeeds after exactly `retry_after`, and not a microsecond sooner.
#[tokio::test]
async fn the_wait_is_exact() {
    let clock = Arc::new(ManualClock::default());
    let store = MemoryStore::builder().clock(Arc::clone(&clock)).build();
    let limiter = three().limit(Limit::per_second(2)).store(store).build().unwrap();
    limiter.check(&alice(), 2).await;
    clock.advance(Duration::from_micros(1_234_567));
    limiter.check(&alice(), 1).await;
    let RetryAfter::In(wait) = limiter.check(&alice(), 2).await.retry_after() else {
        panic!("a wait helps")
    };
    assert_eq!(wait, Duration::from_secs(3_600) - Duration::from_micros(1_234_567));
    clock.advance(wait - Duration::from_micros(1));
    assert!(!limiter.check(&alice(), 2).await.is_allowed());
    clock.advance(Duration::from_micros(1));
    assert!(limiter.check(&alice(), 2).await.is_allowed());
}

#[test]
fn debug_shows_settings() {
    let shown = format!("{:?}", three().namespace("login").build().unwrap());
    assert!(shown.contains(r#"namespace: Namespace("login")"#), "{shown}");
    assert!(format!("{:?}", three()).contains("hour=3/hour"));
}
