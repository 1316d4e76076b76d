use std::future::{pending, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, advance, timeout};

use crate::decision::{Decision, RetryAfter};
use crate::limiter::RateLimiter;
use crate::limiter::tests::{Delayed, on_tokio_time};
use crate::maybe_ready::MaybeReady;
use crate::model::{Limit, Subject};
use crate::observe::{DecisionEvent, Observer};
use crate::policy::Policy;
use crate::store::Part;
use crate::store::memory::MemoryStore;
use crate::time::TokioClock;

const LONG: Duration = Duration::from_secs(60);

fn limiter(limit: Limit) -> RateLimiter {
    RateLimiter::builder().limit(limit).store(on_tokio_time()).build().unwrap()
}

fn alice() -> Subject {
    Subject::user("alice")
}

fn no_request_waits(limiter: &RateLimiter) -> bool {
    limiter.pipeline.wait_queues.is_empty()
}

/// Polls a future once, and checks that it is not ready.
async fn begin<F: Future + Unpin>(waiting: &mut F) {
    poll_fn(|cx| {
        assert!(Pin::new(&mut *waiting).poll(cx).is_pending(), "it waits");
        Poll::Ready(())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn first_come_first_served() {
    let limiter = limiter(Limit::per_second(1));
    let begin = Instant::now();
    let mut callers = JoinSet::new();
    for caller in 0..5_u64 {
        let waiting = limiter.request(&alice()).wait(LONG, 10).check();
        callers
            .spawn(async move { (caller, waiting.await.is_allowed(), begin.elapsed().as_secs()) });
        tokio::task::yield_now().await;
    }
    let mut served = Vec::new();
    while let Some(caller) = callers.join_next().await {
        served.push(caller.unwrap());
    }
    assert_eq!(served, [0, 1, 2, 3, 4].map(|caller| (caller, true, caller)));
    assert!(no_request_waits(&limiter));
}

#[tokio::test(start_paused = true)]
async fn requests_do_not_overtake_those_that_wait() {
    let limiter = limiter(Limit::per_second(5));
    assert!(limiter.check(&alice(), 3).await.is_allowed());
    let mut large = limiter.request(&alice()).cost(4).wait(LONG, 10).check();
    begin(&mut large).await;
    // The remaining units suffice for this request, but the earlier one must be served first.
    let mut small = limiter.request(&alice()).cost(2).wait(LONG, 10).check();
    begin(&mut small).await;
    // Other subjects have queues of their own.
    assert!(
        limiter.request(&Subject::user("bob")).cost(2).wait(LONG, 10).check().await.is_allowed()
    );
    let began = Instant::now();
    assert!(large.await.is_allowed());
    assert_eq!(began.elapsed(), Duration::from_secs(1));
    assert!(small.await.is_allowed());
    assert_eq!(began.elapsed(), Duration::from_secs(2));
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_wait_frees_its_place_in_the_queue() {
    let limiter = limiter(Limit::per_second(1));
    assert!(limiter.check(&alice(), 1).await.is_allowed());
    let mut first = limiter.request(&alice()).wait(LONG, 2).check();
    begin(&mut first).await;
    let mut second = limiter.request(&alice()).wait(LONG, 2).check();
    begin(&mut second).await;

    // The queue is full, and `retry_after` is the wait of its first request.
    let third = limiter.request(&alice()).wait(LONG, 2).check().await;
    assert_eq!(third.retry_after(), RetryAfter::In(Duration::from_secs(1)));

    drop(first);
    let began = Instant::now();
    let mut fourth = limiter.request(&alice()).wait(LONG, 2).check();
    begin(&mut fourth).await;
    assert!(second.await.is_allowed());
    assert_eq!(began.elapsed(), Duration::from_secs(1));
    assert!(fourth.await.is_allowed());
    assert_eq!(began.elapsed(), Duration::from_secs(2));
    assert!(no_request_waits(&limiter));
}

/// Fault: a request that found the queue full took the unit that had just come free. A client that
/// sent often enough took all units before the requests that waited.
#[tokio::test(start_paused = true)]
async fn a_unit_that_comes_free_belongs_to_the_queue_even_if_it_is_full() {
    let limiter = limiter(Limit::per_second(1));
    let rule = |name: &str| limiter.namespace().rule(name).unwrap();
    let (fleet, keys) = (rule("fleet"), rule("keys"));
    let of = |limit: &str| Policy::new([limit.parse().unwrap()]).unwrap();
    let (of_fleet, of_key, all, key) = (of("9/second"), of("1/second"), alice(), alice());
    let parts = [
        Part::new(&all, &of_fleet, 1.into()).with_namespace(&fleet),
        Part::new(&key, &of_key, 1.into()).with_namespace(&keys),
    ];
    let of_one = || limiter.request(&key).wait(LONG, 1).check();
    let of_parts = || limiter.request(&parts).wait(LONG, 1).check();
    let check: [&dyn Fn() -> MaybeReady<Decision>; 2] = [&of_one, &of_parts];
    for check in check {
        assert!(check().await.is_allowed());
        let mut first = check();
        begin(&mut first).await;
        advance(Duration::from_secs(1)).await;
        let late = check().await;
        assert_eq!(late.retry_after(), RetryAfter::In(Duration::from_secs(1)));
        let [remaining, charged] = [late.limits().next().unwrap().remaining(), late.charged()];
        assert_eq!((late.is_allowed(), remaining, charged), (false, 0, 0));
        assert_eq!(late.reported_part(), usize::from(late.has_parts()));
        assert!(first.await.is_allowed());
        // The unit of the next second goes to the request that enters the queue now.
        advance(Duration::from_secs(1)).await;
        assert!(check().await.is_allowed());
    }
    assert!(no_request_waits(&limiter));
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_too_long_is_refused_or_ends_in_time() {
    let limiter = limiter(Limit::per_minute(1));
    assert!(limiter.check(&alice(), 1).await.is_allowed());
    let began = Instant::now();
    // A wait of a minute is too long, and a cost of two is never granted.
    let short = Duration::from_secs(59);
    assert!(!limiter.request(&alice()).wait(short, 10).check().await.is_allowed());
    assert!(!limiter.request(&alice()).cost(2).wait(LONG, 10).check().await.is_allowed());
    assert_eq!(began.elapsed(), Duration::ZERO);
    // A request behind others does not know how long it will wait, so it waits for `short`.
    let mut first = limiter.request(&alice()).wait(LONG, 10).check();
    begin(&mut first).await;
    let behind = limiter.request(&alice()).wait(short, 10).check().await;
    assert_eq!((behind.is_allowed(), began.elapsed()), (false, short));
    assert!(first.await.is_allowed());
    assert!(no_request_waits(&limiter));
}

#[tokio::test(start_paused = true)]
async fn requests_do_not_wait_without_a_queue() {
    let limiter = limiter(Limit::per_second(1));
    let mut passed = pin!(limiter.request(&alice()).wait(LONG, 0).check());
    assert!(passed.as_mut().await.is_allowed());
    assert!(!limiter.request(&alice()).wait(LONG, 0).check().await.is_allowed());
    assert!(no_request_waits(&limiter));
}

#[tokio::test(start_paused = true)]
async fn a_released_permit_goes_to_the_first_request_in_the_queue() {
    let limiter = limiter(Limit::concurrency(1).unwrap());
    let held = limiter.acquire(&alice(), 1).await;
    let mut first = limiter.request(&alice()).wait(LONG, 10).check();
    begin(&mut first).await;
    let mut second = limiter.request(&alice()).wait(LONG, 10).check();
    begin(&mut second).await;
    let began = Instant::now();
    drop(held);
    let served = limiter.request(&alice()).permit(first.await);
    assert!(served.decision().is_allowed());
    begin(&mut second).await;
    drop(served);
    assert!(second.await.is_allowed());
    assert_eq!(began.elapsed(), Duration::ZERO);
}

/// The place is released after the first check has denied the request, and before the request
/// enters the queue. The release wakes nothing, so the request must be checked again.
#[tokio::test(start_paused = true)]
async fn a_permit_that_is_released_before_a_request_enters_the_queue_is_granted() {
    let limiter = limiter(Limit::concurrency(1).unwrap());
    let held = limiter.acquire(&alice(), 1).await;
    let waiting = limiter.request(&alice()).wait(LONG, 10).check();
    drop(held);
    let began = Instant::now();
    assert!(waiting.await.is_allowed());
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_release_reaches_requests_that_name_the_namespace_of_the_limiter() {
    let limiter = limiter(Limit::concurrency(1).unwrap());
    let policy = Policy::new([Limit::concurrency(1).unwrap()]).unwrap();
    let held = limiter.acquire(&alice(), 1).await;
    let subject = alice();
    let part = Part::new(&subject, &policy, 1.into()).with_namespace(limiter.namespace());
    let mut waiting = limiter.request(&[part]).wait(LONG, 10).check();
    begin(&mut waiting).await;
    let mut behind = limiter.request(&subject).wait(LONG, 10).check();
    begin(&mut behind).await;
    let began = Instant::now();
    drop(held);
    let served = limiter.request(&subject).permit(waiting.await);
    assert_eq!((served.decision().is_allowed(), began.elapsed()), (true, Duration::ZERO));
    begin(&mut behind).await;
    drop(served);
    assert!(behind.await.is_allowed());
    assert!(no_request_waits(&limiter));
}

/// Fault: the request stayed at the head of the queue of the first part, and blocked requests of
/// other keys there.
#[tokio::test(start_paused = true)]
async fn a_request_moves_to_the_queue_of_the_part_that_denies_it() {
    let limiter = limiter(Limit::per_second(1));
    let rule = |name: &str| limiter.namespace().rule(name).unwrap();
    let (fleet, keys) = (rule("fleet"), rule("keys"));
    let of = |limit: &str| Policy::new([limit.parse().unwrap()]).unwrap();
    let (of_fleet, of_key, all) = (of("2/second"), of("1/10s"), Subject::global());
    let wait = |key: &str| {
        let key = Subject::user(key);
        let parts = [
            Part::new(&all, &of_fleet, 1.into()).with_namespace(&fleet),
            Part::new(&key, &of_key, 1.into()).with_namespace(&keys),
        ];
        limiter.request(&parts).wait(LONG, 10).check()
    };
    assert!(wait("a").await.is_allowed() && wait("b").await.is_allowed());
    let began = Instant::now();
    let mut first = wait("c");
    begin(&mut first).await;
    let mut blocked = wait("a");
    begin(&mut blocked).await;
    let mut last = wait("d");
    begin(&mut last).await;
    let blocked = tokio::spawn(blocked);
    assert!(first.await.is_allowed());
    assert!(last.await.is_allowed());
    assert_eq!(began.elapsed(), Duration::from_secs(1));
    assert!(blocked.await.unwrap().is_allowed());
    assert_eq!(began.elapsed(), Duration::from_secs(10));
    assert!(no_request_waits(&limiter));
}

/// All four requests are checked before the first one enters the queue. The `retry_after` of the
/// last one is therefore outdated when it reaches the head of the queue.
#[tokio::test(start_paused = true)]
async fn a_burst_is_served_as_units_come_in() {
    let store = Delayed(on_tokio_time(), |_| Duration::from_millis(2));
    let limit = "2/500ms".parse().unwrap();
    let limiter = RateLimiter::builder().limit(limit).store(store).build().unwrap();
    let at_most = Duration::from_millis(900);
    let burst = (0..4).map(|_| tokio::spawn(limiter.request(&alice()).wait(at_most, 10).check()));
    let burst: Vec<_> = burst.collect();
    for request in burst {
        assert!(request.await.unwrap().is_allowed());
    }
    let for_ever = limiter.request(&alice()).wait(Duration::MAX, 10).check().await;
    assert!(for_ever.is_allowed());
}

/// Records the subject of each decision, and the quota of its first limit.
#[derive(Debug, Default)]
struct Subjects(Mutex<Vec<(Subject, u64)>>);

impl Observer for Subjects {
    fn decided(&self, event: &DecisionEvent<'_>) {
        let max = event.decision.limits().next().map_or(0, |limit| limit.max());
        self.0.lock().unwrap().push((event.subject.clone(), max));
    }
}

#[tokio::test(start_paused = true)]
async fn the_subject_and_the_limits_of_a_reported_denial_belong_to_one_part() {
    let recorder = Arc::<Subjects>::default();
    let limiter = RateLimiter::builder().limit(Limit::per_second(1)).observer(recorder.clone());
    let limiter = limiter.build().unwrap();
    let rule = |name: &str| limiter.namespace().rule(name).unwrap();
    let (fleet, keys) = (rule("fleet"), rule("keys"));
    let of = |limit: &str| Policy::new([limit.parse().unwrap()]).unwrap();
    let (of_fleet, of_key, all) = (of("2/hour"), of("1/minute"), Subject::global());
    let check = |key: &Subject| {
        let of_key = Part::new(key, &of_key, 1.into()).with_namespace(&keys);
        let of_fleet = Part::new(&all, &of_fleet, 1.into()).with_namespace(&fleet);
        limiter.request(&[of_key, of_fleet.undisclosed()]).check()
    };
    let (one, other) = (alice(), Subject::user("bob"));
    for key in [&one, &other, &one] {
        check(key).await;
    }
    let expected = [(one, 1), (other, 1), (all.clone(), 2)];
    assert_eq!(*recorder.0.lock().unwrap(), expected);
}

#[derive(Debug, Default)]
struct Recorder(Mutex<Vec<bool>>);

impl Observer for Recorder {
    fn decided(&self, event: &DecisionEvent<'_>) {
        self.0.lock().unwrap().push(event.decision.is_allowed());
    }
}

/// Repeated checks of one waiting request are reported as one denial.
#[tokio::test(start_paused = true)]
async fn the_observer_is_notified_when_a_wait_begins_and_when_it_succeeds() {
    let (recorder, limit) = (Arc::<Recorder>::default(), Limit::concurrency(1).unwrap());
    let store = MemoryStore::builder().clock(TokioClock::new()).build();
    let limiter = RateLimiter::builder().limit(limit).store(store).observer(recorder.clone());
    let limiter = limiter.build().unwrap();
    let held = limiter.acquire(&alice(), 1).await;
    let waiting = tokio::spawn(limiter.request(&alice()).wait(LONG, 1).check());
    timeout(Duration::from_secs(5), pending::<()>()).await.unwrap_err();
    drop(held);
    assert!(waiting.await.unwrap().is_allowed());
    assert_eq!(*recorder.0.lock().unwrap(), [true, false, true]);
}

#[tokio::test(start_paused = true)]
async fn a_pause_denies_a_subject_and_holds_back_those_that_wait() {
    let limiter = limiter(Limit::per_second(1));
    let begin = Instant::now();
    assert!(limiter.check(&alice(), 1).await.is_allowed());
    let waiting = limiter.request(&alice()).wait(LONG, 10).check();
    let waiting = tokio::spawn(async move { (waiting.await.is_allowed(), begin.elapsed()) });
    tokio::task::yield_now().await;
    limiter.pause(&alice(), Duration::from_secs(7));
    limiter.pause(&alice(), Duration::from_secs(2)); // does not shorten the pause
    let denied = limiter.check(&alice(), 0).await;
    assert_eq!(denied.retry_after(), RetryAfter::In(Duration::from_secs(7)));
    assert!(!limiter.peek(&alice(), 1).await.is_allowed());
    assert!(limiter.check(&Subject::user("bob"), 1).await.is_allowed());
    assert_eq!(waiting.await.unwrap(), (true, Duration::from_secs(7)));
    limiter.pause(&alice(), Duration::from_secs(7));
    // This wait would be too short, so the request is denied without one.
    let short = limiter.request(&alice()).wait(Duration::from_secs(6), 10).check().await;
    assert!(!short.is_allowed());
    assert_eq!(begin.elapsed(), Duration::from_secs(7));
    assert!(no_request_waits(&limiter));
}

#[tokio::test(start_paused = true)]
async fn a_pause_denies_all_parts_of_a_request_and_ends_by_itself() {
    let limiter = limiter(Limit::per_hour(9));
    let (policy, bob) = (Policy::new([Limit::per_hour(9)]).unwrap(), Subject::user("bob"));
    let alice = alice();
    let parts = [&bob, &alice].map(|subject| Part::new(subject, &policy, 1.into()));
    limiter.pause(&alice, Duration::from_secs(9));
    assert!(!limiter.request(&parts).check().await.is_allowed());
    let shadow = [parts[0], parts[1].shadow()];
    assert!(limiter.request(&shadow).check().await.is_allowed());
    assert!(limiter.request(&alice).charge().await.is_allowed());
    let waited = limiter.request(&parts).wait(LONG, 10).check().await;
    assert!(waited.is_allowed() && !limiter.pipeline.pauses.may_hold());
    limiter.pause(&alice, Duration::MAX);
    assert!(!limiter.check(&alice, 1).await.is_allowed());
}

#[tokio::test(start_paused = true)]
async fn pauses_that_have_ended_make_room_for_new_ones() {
    let limiter = limiter(Limit::per_hour(2));
    for n in 0..2_000 {
        limiter.pause(&Subject::user(&n.to_string()), Duration::from_secs(1));
        advance(Duration::from_millis(100)).await;
    }
    assert!(format!("{:?}", limiter.pipeline.pauses).matches("Subject").count() < 100);
}
