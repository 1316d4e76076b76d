//! The shortcuts on Redis as callers see them: batches and cached denials. The tests in `twins`
//! show that their decisions are correct.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use futures::future::join_all;
use rl_core::store::{DecideRequest, Mode, Namespace, Part, Store};
use rl_core::time::{ManualClock, Timestamp};
use rl_core::{
    Cost, Decision, FailureKind, Limit, Origin, Policy, RateLimiter, RedisStore, StoreError,
    Subject,
};
use rl_tests::{Bystander, RedisServer};

/// A timeout longer than any pause of a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

async fn store(server: &RedisServer) -> RedisStore {
    let store = RedisStore::builder(&server.url()).connection_wait(PATIENCE);
    store.connect().await.unwrap()
}

async fn check(
    store: &RedisStore,
    subject: &Subject,
    policy: &Policy,
) -> Result<Decision, StoreError> {
    let namespace = &Namespace::default();
    let parts = [Part::new(subject, policy, Cost::ONE)];
    let request = DecideRequest::new(namespace, &parts, Mode::Check);
    store.decide(request).await
}

fn per_hour(max: u32) -> Policy {
    Policy::new([Limit::per_hour(max), Limit::per_day(max + 1)]).unwrap()
}

#[tokio::test]
async fn calls_that_are_in_flight_together_share_a_few_script_calls() {
    let server = RedisServer::start();
    let (store, policy) = (store(&server).await, per_hour(300));
    let subjects: Vec<_> = (0..64).map(|n| Subject::user(&n.to_string())).collect();
    let one = Subject::user("one");
    let before = server.calls("evalsha").await;
    let decided = join_all((0..500).map(|_| check(&store, &one, &policy))).await;
    let allowed = decided.iter().flatten().filter(|decision| decision.is_allowed()).count();
    assert_eq!((decided.len(), allowed), (500, 300));
    let calls = server.calls("evalsha").await - before;
    assert!(calls <= 5, "{calls} calls for one subject");

    let before = server.calls("evalsha").await;
    let decided = join_all(subjects.iter().map(|subject| check(&store, subject, &policy))).await;
    assert!(decided.iter().flatten().filter(|decision| decision.is_allowed()).count() == 64);
    let calls = server.calls("evalsha").await - before;
    assert!(calls <= 8, "{calls} calls for 64 subjects");
}

/// Polls a future once, as a runtime does before it runs other tasks.
fn begin<F: Future>(future: Pin<&mut F>) {
    assert!(future.poll(&mut Context::from_waker(Waker::noop())).is_pending());
}

#[tokio::test]
async fn a_request_cancelled_before_its_batch_is_sent_is_not_charged() {
    let server = RedisServer::start();
    let (store, policy, subject) = (store(&server).await, per_hour(300), Subject::user("alice"));
    let mut first = pin!(check(&store, &subject, &policy));
    begin(first.as_mut());
    for _ in 0..10 {
        begin(pin!(check(&store, &subject, &policy)));
    }
    let second = check(&store, &subject, &policy).await.unwrap();
    assert!(first.await.unwrap().is_allowed() && second.is_allowed());
    let third = check(&store, &subject, &policy).await.unwrap();
    assert_eq!(third.limits().next().unwrap().used(), 3);
}

#[test]
fn requests_to_a_store_whose_runtime_has_ended_fail_at_once() {
    let server = RedisServer::start();
    let home = tokio::runtime::Runtime::new().unwrap();
    let store = home.block_on(store(&server));
    drop(home);
    let (policy, namespace, cost) = (per_hour(300), &Namespace::default(), Cost::ONE);
    let charge = |subject| {
        store.decide(DecideRequest::new(
            namespace,
            &[Part::new(subject, &policy, cost)],
            Mode::Check,
        ))
    };
    let (alice, bob) = (Subject::user("alice"), Subject::user("bob"));
    // This request is sent alone. While it is in flight, all others are queued for the next batch.
    let first = charge(&alice);
    let there = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for subject in [&alice, &bob, &bob] {
        let error = there.block_on(charge(subject)).unwrap_err();
        assert_eq!(error.kind(), FailureKind::Unavailable);
    }
    drop(first);
}

#[tokio::test]
async fn a_batch_under_changed_policies_is_decided_by_the_stored_states() {
    let server = RedisServer::start();
    let store = store(&server).await;
    let subjects: Vec<_> = (0..40).map(|n| Subject::user(&n.to_string())).collect();
    let of =
        |limits: &[&str]| Policy::new(limits.iter().map(|text| text.parse().unwrap())).unwrap();
    // The policies differ in the order of their limits, in the widths of their counts, and in the
    // number of limits.
    let policies = [
        of(&["9/minute", "9/day"]),
        of(&["300/day", "70000/minute"]),
        of(&["9/day", "9/hour", "9/minute"]),
        of(&["9/1500ms", "9/day", "9/minute"]),
        of(&["9/minute:sliding-window-counter", "9/day"]),
        of(&["9/day", "9/minute"]),
    ];
    for (n, policy) in (1..).zip(&policies) {
        let checks = join_all(subjects.iter().map(|subject| check(&store, subject, policy))).await;
        for decision in checks {
            let decision = decision.unwrap();
            let day = decision.limits().find(|limit| limit.name() == "day").unwrap();
            assert_eq!(day.used(), n, "{policy:?}");
        }
    }
    let spent = of(&["5/day", "5/minute"]);
    let checks = join_all(subjects.iter().map(|subject| check(&store, subject, &spent))).await;
    assert!(checks.into_iter().all(|decision| !decision.unwrap().is_allowed()));
}

#[tokio::test]
async fn a_subject_with_a_damaged_state_fails_alone_in_its_batch() {
    let server = RedisServer::start();
    let (store, policy) = (store(&server).await, per_hour(300));
    let mut operator = Bystander::new(&server).await;
    operator.query::<()>("SET rl:6:default:user:{3} nonsense EX 100").await;
    operator.query::<()>("LPUSH rl:6:default:user:{4} nonsense").await;
    let subjects: Vec<_> = (0..20).map(|n| Subject::user(&n.to_string())).collect();
    for _ in 0..2 {
        let decided =
            join_all(subjects.iter().map(|subject| check(&store, subject, &policy))).await;
        for (n, decision) in decided.iter().enumerate() {
            match decision {
                Ok(decision) => assert!(decision.is_allowed() && ![3, 4].contains(&n)),
                Err(error) => {
                    assert!([3, 4].contains(&n));
                    assert_eq!(error.kind(), FailureKind::Corrupt, "{error}");
                }
            }
        }
    }
}

/// In the damaged state, the three bytes of the remaining time of a window contain the largest
/// number, so this window of one second would end in sixteen seconds. The subject must fail, and
/// the other subjects of the batch must be decided.
#[tokio::test]
async fn a_subject_with_a_damaged_window_fails_alone_in_its_batch() {
    let server = RedisServer::start();
    let store = store(&server).await;
    let policy = Policy::new([Limit::per_second(1_000), Limit::per_month(10_000)]).unwrap();
    let mut operator = Bystander::new(&server).await;
    let subjects: Vec<_> = (0..20).map(|n| Subject::user(&n.to_string())).collect();
    check(&store, &subjects[7], &policy).await.unwrap();
    let key = "rl:6:default:user:{7}";
    let mut state: Vec<u8> = operator.send(redis::cmd("GET").arg(key)).await;
    // These bytes are the remaining time of the window of one second. The new value is longer than
    // a second.
    state[10..13].fill(0xff);
    operator.send::<()>(redis::cmd("SET").arg(key).arg(&state).arg("EX").arg(100)).await;
    for _ in 0..2 {
        let decided =
            join_all(subjects.iter().map(|subject| check(&store, subject, &policy))).await;
        for (n, decision) in decided.iter().enumerate() {
            match decision {
                Ok(decision) => assert!(decision.is_allowed() && n != 7, "{n}"),
                Err(error) => assert_eq!((n, error.kind()), (7, FailureKind::Corrupt), "{error}"),
            }
        }
    }
    assert_eq!(operator.send::<Vec<u8>>(redis::cmd("GET").arg(key)).await, state);
}

/// The subject still has a state of a removed limit, so the script cannot use its short path. Each
/// of the 400 calls must nevertheless get its own count.
#[tokio::test]
async fn many_calls_of_a_subject_under_changed_limits_are_decided_one_by_one() {
    let server = RedisServer::start();
    let store = store(&server).await;
    let subject = Subject::user("alice");
    let policy = |limits: &[&str]| {
        Policy::new(limits.iter().map(|limit| limit.parse::<Limit>().unwrap())).unwrap()
    };
    let before = policy(&["500/hour", "500/2hours"]);
    check(&store, &subject, &before).await.unwrap();
    let after = policy(&["300/hour"]);
    let decided = join_all((0..400).map(|_| check(&store, &subject, &after))).await;
    let mut used: Vec<u64> = decided
        .iter()
        .flatten()
        .filter(|decision| decision.is_allowed())
        .map(|decision| decision.limits().next().unwrap().used())
        .collect();
    used.sort_unstable();
    assert_eq!((decided.len(), used), (400, (2..=300).collect()));
}

#[tokio::test]
async fn a_cached_denial_takes_no_call_until_a_refund() {
    let server = RedisServer::start();
    // A denial is cached for at most a second, so the clock stands still.
    let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_750_000_000)));
    let store = server.patient_store().manual_clock(clock).local_denial(true);
    let store = store.connect().await.unwrap();
    let limiter = |is_shadow| {
        let builder = RateLimiter::builder().limit(Limit::per_hour(2)).deadline(PATIENCE);
        builder.store(store.clone()).shadow(is_shadow).build().unwrap()
    };
    let (limiter, shadow, subject) = (limiter(false), limiter(true), Subject::user("alice"));
    let granted = limiter.check(&subject, 2).await;
    assert_eq!(limiter.check(&subject, 1).await.origin(), Origin::Store);

    let before = server.calls("evalsha").await;
    let denied = limiter.check(&subject, 1).await;
    assert_eq!((denied.is_allowed(), denied.origin()), (false, Origin::LocalDeny));
    assert_eq!(denied.limits().next().unwrap().used(), 2);
    let passed = shadow.check(&subject, 1).await;
    assert_eq!((passed.is_allowed(), passed.origin()), (true, Origin::Shadow));
    assert_eq!(server.calls("evalsha").await, before, "no call was made");

    // Cached denials decide no peek, no check with another cost, and no `check_up_to`.
    assert_eq!(limiter.peek(&subject, 1).await.origin(), Origin::Store);
    assert_eq!(limiter.check(&subject, 2).await.origin(), Origin::Store);
    let some = limiter.request(&subject).check_up_to().await;
    assert_eq!((some.granted(), some.origin()), (0, Origin::Store));

    limiter.request(&subject).refund(&granted, &[1]).await.unwrap();
    assert!(
        limiter.check(&subject, 1).await.is_allowed(),
        "a refund invalidates the cached denial"
    );
    assert!(!limiter.check(&subject, 1).await.is_allowed());
    limiter.reset(&subject).await.unwrap();
    assert!(limiter.check(&subject, 1).await.is_allowed(), "a reset invalidates the cached denial");
}
