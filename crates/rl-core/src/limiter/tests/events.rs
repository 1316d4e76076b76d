//! Observers receive decisions and events.

use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{advance, timeout};

use crate::decision::Origin;
use crate::limiter::tests::Faulty;
use crate::limiter::{OnFailure, RateLimiter, Share};
use crate::maybe_ready::MaybeReady;
use crate::model::{FailureKind, Limit, Subject};
use crate::observe::{DecisionEvent, Event, EventKind, EventLocation, Observer};
use crate::policy::Policy;
use crate::source::{PolicyFuture, PolicySource};
use crate::store::Part;
use crate::store::memory::MemoryStore;
use crate::time::{ManualClock, TokioClock};

/// Records each event as a line: the location, the kind and its values.
#[derive(Debug, Default)]
struct Lines {
    lines: Mutex<Vec<String>>,
    decisions: Mutex<Vec<(&'static str, Option<Duration>)>>,
    ignores_decisions: bool,
}

impl Lines {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.lines.lock().unwrap())
    }

    fn take_decisions(&self) -> Vec<(&'static str, Option<Duration>)> {
        std::mem::take(&mut self.decisions.lock().unwrap())
    }
}

impl Observer for Lines {
    fn decided(&self, event: &DecisionEvent<'_>) {
        let origin = event.decision.origin().as_str();
        self.decisions.lock().unwrap().push((origin, event.duration));
    }

    fn observe(&self, event: &Event<'_>) {
        let EventLocation { limiter, rule, store } = event.location;
        let values = match event.kind {
            EventKind::NearLimit { subject, limit, percent, suppressed } => {
                let (id, name) = (subject.id(), limit.name());
                format!("{id} {name} {percent} suppressed {suppressed}")
            }
            EventKind::StoreFailing { error, on_failure } => {
                format!("{} {}", error.kind().as_str(), on_failure.as_str())
            }
            EventKind::FallbackFailing { error, on_failure } => {
                format!("{} {}", error.kind().as_str(), on_failure.as_str())
            }
            EventKind::FailurePolicyBegan { origin } => format!("{origin:?}"),
            EventKind::FailurePolicyEnded { origin, lasted, requests } => {
                format!("{origin:?} {lasted:?} {requests}")
            }
            EventKind::StoreRecovered { lasted, undecided } => format!("{lasted:?} {undecided}"),
            EventKind::BreakerClosed { lasted } => format!("{lasted:?}"),
            EventKind::LookupFailed { duration, .. } => format!("{duration:?}"),
            EventKind::StoreCallFailed { .. } => return,
            _ => String::new(),
        };
        let rule = rule.map_or(String::new(), |rule| format!("/{rule}"));
        let line = format!("{limiter}{rule} on {store}: {} {values}", event.kind.as_str());
        self.lines.lock().unwrap().push(line.trim_end().to_owned());
    }

    fn observes_decisions(&self) -> bool {
        !self.ignores_decisions
    }
}

fn alice() -> Subject {
    Subject::user("alice")
}

fn ready<T>(decision: MaybeReady<T>) -> T {
    match decision {
        MaybeReady::Ready(Some(decision)) => decision,
        _ => unreachable!("memory is ready at once"),
    }
}

#[tokio::test]
async fn a_limit_is_reported_once_at_80_90_and_100_percent_in_each_window_of_a_subject() {
    let (lines, clock) = (Arc::new(Lines::default()), Arc::new(ManualClock::default()));
    let store = MemoryStore::builder().clock(clock.clone()).build();
    let limiter = RateLimiter::builder().limit(Limit::per_hour(20)).store(store).namespace("api");
    let limiter = limiter.observer(lines.clone()).build().unwrap();
    let crossed = |id: &str| {
        ["80", "90", "100"]
            .map(|at| format!("api on memory: near_limit {id} hour {at} suppressed 0"))
    };
    for _ in 0..2 {
        for subject in ["alice", "bob"] {
            for _ in 0..15 {
                ready(limiter.check(&Subject::user(subject), 1));
            }
            assert_eq!(lines.take(), [""; 0]);
            for _ in 0..100 {
                ready(limiter.check(&Subject::user(subject), 1));
            }
            assert_eq!(lines.take(), crossed(subject));
        }
        clock.advance(Duration::from_secs(3_600));
    }
    // The charge after the refund reaches 100 % once more in the same window. That is not reported
    // again.
    let decision = ready(limiter.check(&alice(), 20));
    assert_eq!(lines.take(), crossed("alice")[2..]);
    ready(limiter.request(&alice()).refund(&decision, &[20])).unwrap();
    assert_eq!(lines.take(), ["api on memory: settled"]);
    ready(limiter.check(&alice(), 20));
    ready(limiter.peek(&Subject::user("carol"), 20));
    assert_eq!(lines.take(), [""; 0]);
}

#[tokio::test]
async fn each_algorithm_reports_each_crossing_once_while_units_are_used_up() {
    let limits = [
        "50/hour",
        "50/hour:clock",
        "50/hour:gcra",
        "50/hour:token-bucket",
        "50/hour:sliding-log",
        "50/hour:token-bucket:refill=interval",
        "50/hour:sliding-window-counter",
        "50/hour:sliding-window:precision=minute",
    ];
    for limit in limits {
        let lines = Arc::new(Lines::default());
        let store = MemoryStore::builder().clock(Arc::new(ManualClock::default())).build();
        let limiter = RateLimiter::builder().named_limit("one", limit.parse().unwrap());
        let limiter = limiter.store(store).observer(lines.clone()).build().unwrap();
        while ready(limiter.check(&alice(), 1)).is_allowed() {}
        let expected = ["80", "90", "100"]
            .map(|at| format!("default on memory: near_limit alice one {at} suppressed 0"));
        assert_eq!(lines.take(), expected, "{limit}");
    }
}

#[tokio::test]
async fn an_event_names_the_rule_of_its_part() {
    let lines = Arc::new(Lines::default());
    let limiter = RateLimiter::builder().limit(Limit::per_hour(1)).observer(lines.clone());
    let limiter = limiter.build().unwrap();
    let [keys, fleet] = ["keys", "fleet"].map(|name| limiter.namespace().rule(name).unwrap());
    let (of_key, of_fleet) = (
        Policy::new([Limit::per_hour(1)]).unwrap(),
        Policy::new([Limit::per_hour(100), "1/minute:shadow".parse().unwrap()]).unwrap(),
    );
    let (key, all) = (alice(), Subject::global());
    for _ in 0..2 {
        let parts = [
            Part::new(&key, &of_key, 1.into()).with_namespace(&keys),
            Part::new(&all, &of_fleet, 1.into()).with_namespace(&fleet),
        ];
        ready(limiter.request(&parts).check());
    }
    let expected = [
        "default/keys on memory: near_limit alice hour 100 suppressed 0",
        "default/fleet on memory: near_limit  minute 100 suppressed 0",
    ];
    let found = lines.take();
    assert_eq!(found[..2], expected, "{found:#?}");
    assert!(
        found[2..].iter().all(|line| line == "default/fleet on memory: would_deny"),
        "{found:#?}"
    );
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_reported_with_the_breaker_and_the_failure_policy() {
    let (store, lines) = (Arc::new(Faulty::default()), Arc::new(Lines::default()));
    let limiter = RateLimiter::builder().limit(Limit::per_hour(100)).store(store.clone());
    let limiter = limiter.observer(lines.clone()).build().unwrap();
    let ask = async |times| {
        for _ in 0..times {
            limiter.check(&alice(), 1).await;
        }
        lines.take()
    };
    assert_eq!(ask(3).await, [""; 0]);
    store.fail_with(FailureKind::Unavailable);
    let began = [
        "default on store: store_failing unavailable allow",
        "default on store: failure_policy_began FailedOpen(Unavailable)",
        "default on store: breaker_opened",
    ];
    assert_eq!(ask(20).await, began);
    advance(Duration::from_secs(2)).await;
    assert_eq!(ask(5).await, [""; 0], "the outage continues");
    store.fail_with(None);
    advance(Duration::from_secs(3)).await;
    let ended = [
        "default on store: store_recovered 5s 25",
        "default on store: breaker_closed 5s",
        "default on store: failure_policy_ended FailedOpen(Unavailable) 2s 25",
    ];
    assert_eq!(ask(5).await, ended);
    let origins = lines.take_decisions().into_iter().map(|(origin, _)| origin);
    let allowed = origins.filter(|origin| *origin == "failed_open").count();
    assert_eq!(allowed, 25);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_failure_policy_names_the_failure_with_which_it_began() {
    let (store, lines) = (Arc::new(Faulty::default()), Arc::new(Lines::default()));
    let limiter = RateLimiter::builder().limit(Limit::per_hour(100)).store(store.clone());
    let limiter = limiter.observer(lines.clone()).build().unwrap();
    for kinds in [[FailureKind::TimedOut, FailureKind::Unavailable], [FailureKind::Refused; 2]] {
        for kind in kinds {
            store.fail_with(kind);
            limiter.check(&alice(), 1).await;
        }
        store.fail_with(None);
        advance(Duration::from_secs(2)).await;
        limiter.check(&alice(), 1).await;
    }
    let of_policy = lines.take().into_iter().filter(|line| line.contains("failure_policy"));
    let expected = [
        "default on store: failure_policy_began FailedOpen(TimedOut)",
        "default on store: failure_policy_ended FailedOpen(TimedOut) 0ns 2",
        "default on store: failure_policy_began FailedClosed(Refused)",
        "default on store: failure_policy_ended FailedClosed(Refused) 0ns 2",
    ];
    assert_eq!(of_policy.collect::<Vec<_>>(), expected);
}

#[tokio::test(start_paused = true)]
async fn events_of_the_fallback_name_its_store() {
    let (store, fallback) = (Arc::new(Faulty::default()), Arc::new(Faulty::default()));
    let lines = Arc::new(Lines::default());
    let limiter = RateLimiter::builder().limit(Limit::per_hour(100)).store(store.clone());
    let limiter = limiter.fallback(MemoryStore::new(), Share::with_instances(2));
    let limiter = limiter.observer(lines.clone()).build().unwrap();
    store.fail_with(FailureKind::Unavailable);
    limiter.check(&alice(), 1).await;
    let began = [
        "default on store: store_failing unavailable fallback",
        "default on memory: failure_policy_began Fallback(Unavailable)",
    ];
    assert_eq!(lines.take(), began);

    let limiter = RateLimiter::builder().limit(Limit::per_hour(100)).store(store.clone());
    let limiter = limiter.fallback(fallback.clone(), Share::with_instances(2)).namespace("b");
    let limiter = limiter.on_fallback_failure(OnFailure::Allow).observer(lines.clone());
    let limiter = limiter.build().unwrap();
    fallback.fail_with(FailureKind::Refused);
    limiter.check(&alice(), 1).await;
    let began = [
        "b on store: store_failing unavailable fallback",
        "b on store: fallback_failing refused allow",
        "b on store: failure_policy_began FailedOpen(Refused)",
    ];
    assert_eq!(lines.take(), began);
}

#[tokio::test(start_paused = true)]
async fn each_of_several_observers_gets_the_events_that_it_observes() {
    let all = [(); 2].map(|()| Arc::new(Lines::default()));
    let conditions = Arc::new(Lines { ignores_decisions: true, ..Lines::default() });
    let store = Arc::new(Faulty::default());
    let builder = RateLimiter::builder().limit(Limit::per_hour(1)).store(Arc::clone(&store));
    let builder = builder.observer(all[0].clone()).observer(conditions.clone());
    let limiter = builder.observer(all[1].clone()).build().unwrap();

    limiter.check(&alice(), 1).await;
    for observer in &all {
        assert_eq!(observer.take(), ["default on store: near_limit alice hour 100 suppressed 0"]);
        assert_eq!(observer.take_decisions().len(), 1);
    }
    assert_eq!((conditions.take(), conditions.take_decisions().len()), (Vec::new(), 0));

    store.fail_with(FailureKind::Refused);
    limiter.check(&alice(), 1).await;
    let began = [
        "default on store: store_failing refused reject",
        "default on store: failure_policy_began FailedClosed(Refused)",
    ];
    assert_eq!(all.map(|observer| observer.take()), [(); 2].map(|()| began.map(str::to_owned)));
    assert_eq!(
        (conditions.take(), conditions.take_decisions().len()),
        (began.map(str::to_owned).into(), 0)
    );
}

#[tokio::test(start_paused = true)]
async fn an_observer_of_conditions_leaves_the_fast_path_and_gets_no_decision() {
    let lines = Arc::new(Lines { ignores_decisions: true, ..Lines::default() });
    let builder = || RateLimiter::builder().limit(Limit::per_hour(1)).observer(lines.clone());
    let limiter = builder().build().unwrap();
    assert!(limiter.pipeline.has_fast_path);
    ready(limiter.check(&alice(), 1));
    assert_eq!(lines.take(), [""; 0]);

    let store = Arc::new(Faulty::default());
    store.fail_with(FailureKind::Refused);
    let limiter = builder().store(store).build().unwrap();
    limiter.check(&alice(), 1).await;
    let began = [
        "default on store: store_failing refused reject",
        "default on store: failure_policy_began FailedClosed(Refused)",
    ];
    assert_eq!((lines.take(), lines.take_decisions().len()), (began.map(str::to_owned).into(), 0));
    assert!(
        !RateLimiter::builder()
            .limit(Limit::per_hour(1))
            .observer(Arc::new(Lines::default()))
            .build()
            .unwrap()
            .pipeline
            .has_fast_path
    );
}

/// A store that decides at once is called without the circuit breaker. If it fails, the failure is
/// handled as that of any store.
#[tokio::test(start_paused = true)]
async fn the_failure_policy_decides_if_a_store_fails_that_decides_at_once() {
    let store = Arc::new(Faulty { decides_at_once: true, ..Faulty::default() });
    let limiter = RateLimiter::builder().limit(Limit::per_hour(1)).store(store.clone());
    let limiter = limiter.build().unwrap();
    assert!(limiter.pipeline.has_fast_path);
    assert!(ready(limiter.check(&alice(), 1)).is_allowed());
    store.fail_with(FailureKind::TimedOut);
    let undecided = ready(limiter.check(&alice(), 1));
    assert_eq!(undecided.origin(), Origin::FailedOpen(FailureKind::TimedOut));
    store.fail_with(None);
    assert!(!ready(limiter.check(&alice(), 1)).is_allowed());
    let stats = limiter.stats();
    assert_eq!((stats.allowed(), stats.denied()), (2, 1));
}

/// A source that answers after some time.
#[derive(Debug)]
struct SlowSource(Result<(), FailureKind>);

impl PolicySource for SlowSource {
    fn policy(&self, _: &Subject) -> PolicyFuture {
        let found = self.0.map_err(crate::model::StoreError::new);
        MaybeReady::later(async move {
            let _ = timeout(Duration::from_millis(7), pending::<()>()).await;
            found.map(|()| Some(Policy::new([Limit::per_hour(3)]).unwrap()))
        })
    }
}

#[tokio::test(start_paused = true)]
async fn a_decision_that_waited_has_its_duration_and_one_in_memory_has_none() {
    let lines = Arc::new(Lines::default());
    let of = |result| {
        let store = MemoryStore::builder().clock(TokioClock::new()).build();
        let limiter = RateLimiter::builder().policies(SlowSource(result)).store(store);
        limiter.observer(lines.clone()).build().unwrap()
    };
    of(Ok(())).check(&alice(), 1).await;
    let waited = Some(Duration::from_millis(7));
    assert_eq!(lines.take_decisions(), [("store", waited)]);
    of(Err(FailureKind::Unavailable)).check(&alice(), 1).await;
    let found = lines.take();
    assert_eq!(found[0], "default on memory: lookup_failed Some(7ms)", "{found:#?}");

    let limiter = RateLimiter::builder().limit(Limit::per_hour(3)).observer(lines.clone());
    limiter.build().unwrap().check(&alice(), 1).await;
    assert_eq!(lines.take_decisions()[1..], [("store", None)]);
}

#[cfg(feature = "rules-file")]
#[tokio::test]
async fn readings_of_a_rule_file_are_reported_to_each_limiter_that_lives() {
    use crate::rules::RulesFile;

    let path = std::env::temp_dir().join(format!("rl-events-{}.yaml", std::process::id()));
    std::fs::write(&path, "rules: { fleet: { limits: 10/hour } }").unwrap();
    let file = RulesFile::builder(&path).pause(Duration::from_millis(100)).watch().unwrap();
    let lines = Arc::new(Lines::default());
    let of = |name: &str| {
        let limiter = RateLimiter::builder().namespace(name).rules(&file);
        limiter.observer(lines.clone()).build().unwrap()
    };
    let (one, other) = (of("one"), of("other"));
    file.reload().unwrap();
    assert_eq!(lines.take(), ["one on memory: rules_applied", "other on memory: rules_applied"]);
    drop(other);
    std::fs::write(&path, "rules: { fleet: { limits: 10/never } }").unwrap();
    file.reload().unwrap_err();
    let found = lines.take();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(found[0], "one on memory: rules_refused");
    assert!(!found.iter().any(|line| line.starts_with("other")), "{found:#?}");
    assert_eq!(one.namespace().as_str(), "one");
}
