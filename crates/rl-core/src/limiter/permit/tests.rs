use std::future::pending;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::yield_now;
use tokio::time::timeout;

use crate::decision::{Decision, Origin};
use crate::limiter::OnFailure;
use crate::limiter::tests::{Delayed, on_tokio_time};
use crate::limiter::{RateLimiter, RateLimiterBuilder};
use crate::maybe_ready::MaybeReady;
use crate::model::{FailureKind, Limit, Subject};
use crate::model::{Mode, StoreError};
use crate::observe::{Event, EventKind, Observer};
use crate::store::memory::MemoryStore;
use crate::store::{DecideRequest, LeaseStatus, Renewal, Reset, Settlement, Store, StoreFuture};
use crate::time::{ManualClock, Timestamp, TokioClock};

fn limiter() -> RateLimiter {
    RateLimiter::builder().limit(Limit::per_hour(10)).build().unwrap()
}

fn alice() -> Subject {
    Subject::user("alice")
}

async fn used(limiter: &RateLimiter) -> u64 {
    limiter.usage(&alice()).await.unwrap().limits().next().unwrap().used()
}

#[tokio::test]
async fn the_difference_is_settled_once_with_the_last_clone() {
    let limiter = limiter();
    for (reserved, said, due) in [(4, None, 4), (4, Some(1), 1), (4, Some(0), 0), (2, Some(90), 90)]
    {
        let permit = limiter.acquire(&alice(), reserved).await;
        assert!(permit.decision().is_allowed());
        let clone = permit.clone();
        if let Some(said) = said {
            clone.set_cost(said);
        }
        drop(clone);
        assert_eq!(used(&limiter).await, reserved, "the other clone still holds it");
        drop(permit);
        assert_eq!(used(&limiter).await, due);
        limiter.reset(&alice()).await.unwrap();
    }
}

/// Fault: a cost that grew while the client read the response was charged at the end only, and the
/// client decides when that is.
#[tokio::test]
async fn a_cost_that_grows_after_the_head_is_charged_whenever_it_has_doubled() {
    let limiter = limiter();
    let permit = limiter.acquire(&alice(), 1).await;
    permit.add_cost(2);
    assert_eq!(used(&limiter).await, 1, "the response has not begun");
    permit.charge_cost_of_head();
    let mut charged = vec![used(&limiter).await];
    for _ in 3..100 {
        permit.add_cost(1);
        let used = used(&limiter).await;
        assert!(2 * used > permit.cost().units(), "{used} of {:?}", permit.cost());
        if charged.last() != Some(&used) {
            charged.push(used);
        }
    }
    assert_eq!(charged, [3, 6, 12, 24, 48, 96]);
    permit.add_cost(20);
    drop(permit);
    assert_eq!(used(&limiter).await, 120);
}

/// Units that were charged after the decision are not refunded. Those of the decision are, except
/// one if the cost is not 0.
#[tokio::test]
async fn a_cost_that_falls_after_the_head_refunds_the_units_of_the_decision() {
    let limiter = limiter();
    for (last, due) in [(4, 4), (3, 3), (2, 3), (1, 3), (0, 2)] {
        let permit = limiter.acquire(&alice(), 2).await;
        permit.set_cost(4);
        permit.charge_cost_of_head();
        assert_eq!(used(&limiter).await, 4);
        permit.set_cost(last);
        drop(permit);
        assert_eq!(used(&limiter).await, due, "{last}");
        limiter.reset(&alice()).await.unwrap();
    }
}

/// Fault: one unit too many was charged if the estimate was 0.
#[tokio::test]
async fn a_cost_that_is_charged_with_the_head_is_charged_once() {
    for estimate in [0, 1, 4, 5] {
        let limiter = limiter();
        let permit = limiter.acquire(&alice(), estimate).await;
        permit.set_cost(5);
        permit.charge_cost_of_head();
        assert_eq!(used(&limiter).await, 5, "{estimate}");
        drop(permit);
        assert_eq!(used(&limiter).await, 5, "{estimate}");
    }
}

/// Fault: a cost that fell after the head below what was charged since refunded the request too.
#[tokio::test]
async fn a_cost_that_falls_after_the_head_refunds_no_request() {
    let requests = Limit::per_hour(9).count_requests();
    let limiter = RateLimiter::builder().limit(Limit::per_day(9_000)).limit(requests);
    let limiter = limiter.build().unwrap();
    for (last, due) in [(990, 1), (40, 2), (1, 3), (0, 3)] {
        let permit = limiter.acquire(&alice(), 10).await;
        permit.set_cost(1_000);
        permit.charge_cost_of_head();
        permit.set_cost(last);
        drop(permit);
        let usage = limiter.usage(&alice()).await.unwrap();
        assert_eq!(usage.limits().nth(1).unwrap().used(), due, "{last}");
    }
}

#[tokio::test]
async fn changes_after_settling_have_no_effect() {
    let limiter = limiter();
    let permit = limiter.acquire(&alice(), 5).await;
    let clone = permit.clone();
    permit.add_cost(2);
    permit.settle().await.unwrap();
    assert_eq!(used(&limiter).await, 7);
    clone.set_cost(0);
    drop(clone);
    assert_eq!(used(&limiter).await, 7);
}

#[tokio::test]
async fn a_denied_request_holds_nothing() {
    let limiter = limiter();
    limiter.check(&alice(), 8).await;
    let permit = limiter.acquire(&alice(), 3).await;
    assert!(!permit.decision().is_allowed());
    assert_eq!(permit.cost().units(), 0);
    drop(permit);
    assert_eq!(used(&limiter).await, 8);
}

#[derive(Debug)]
struct Down;

impl Store for Down {
    fn decide(&self, _: DecideRequest<'_>) -> StoreFuture<Decision> {
        MaybeReady::ready(Err(StoreError::new(FailureKind::Unavailable)))
    }

    fn settle(&self, _: &[Settlement<'_>]) -> StoreFuture<LeaseStatus> {
        panic!("nothing was charged")
    }

    fn renew(&self, _: Renewal<'_>) -> StoreFuture<LeaseStatus<Timestamp>> {
        panic!("nothing was charged")
    }

    fn reset(&self, _: &[Reset<'_>]) -> StoreFuture<()> {
        panic!("nothing was charged")
    }
}

#[tokio::test]
async fn requests_that_the_store_did_not_decide_are_not_settled() {
    let builder = RateLimiter::builder().limit(Limit::per_hour(10)).store(Down);
    let limiter = builder.on_store_failure(OnFailure::Allow).build().unwrap();
    let permit = limiter.acquire(&alice(), 3).await;
    assert!(permit.decision().is_allowed());
    permit.set_cost(1);
    permit.settle().await.unwrap();
}

/// Creates a limiter that allows two concurrent requests, with the default lease of ten seconds.
fn two_at_once(store: impl Store) -> RateLimiter {
    let limits = RateLimiter::builder().limit(Limit::concurrency(2).unwrap());
    limits.limit(Limit::per_hour(10)).store(store).build().unwrap()
}

/// Returns the units used under the concurrency limit and under the hourly limit.
async fn both(limiter: &RateLimiter) -> [u64; 2] {
    let usage = limiter.usage(&alice()).await.unwrap();
    let used: Vec<_> = usage.limits().map(|limit| limit.used()).collect();
    used.try_into().unwrap()
}

#[tokio::test]
async fn places_are_freed_and_the_rest_stays_charged() {
    let limiter = two_at_once(MemoryStore::new());
    let (one, other) = (limiter.acquire(&alice(), 1).await, limiter.acquire(&alice(), 1).await);
    let denied = limiter.acquire(&alice(), 1).await;
    assert!(one.decision().is_allowed() && !denied.decision().is_allowed());
    assert_eq!(both(&limiter).await, [2, 2]);
    drop((one, denied));
    assert_eq!(both(&limiter).await, [1, 2]);
    other.set_cost(0);
    other.settle().await.unwrap();
    assert_eq!(both(&limiter).await, [0, 1]);

    let costly = limiter.acquire(&alice(), 1).await;
    costly.set_cost(5);
    drop(costly);
    assert_eq!(both(&limiter).await, [0, 6]);
}

#[tokio::test(start_paused = true)]
async fn slots_are_occupied_while_a_permit_renews_their_leases() {
    let store = MemoryStore::builder().clock(TokioClock::new()).build();
    let limiter = two_at_once(store);
    let held = limiter.acquire(&alice(), 1).await;
    // This request has no permit, so its lease is not renewed.
    limiter.check(&alice(), 1).await;
    assert_eq!(both(&limiter).await, [2, 2]);
    let a_while = Duration::from_secs(35);
    timeout(a_while, pending::<()>()).await.unwrap_err();
    assert_eq!(both(&limiter).await, [1, 2]);
    drop(held);
    assert_eq!(both(&limiter).await, [0, 2]);
    timeout(a_while, pending::<()>()).await.unwrap_err();
    assert_eq!(both(&limiter).await, [0, 2]);
}

/// A store in memory whose decisions are never ready immediately.
#[derive(Debug)]
struct Late(MemoryStore);

impl Store for Late {
    fn decide(&self, request: DecideRequest<'_>) -> StoreFuture<Decision> {
        let decision = self.0.decide(request);
        MaybeReady::later(async {
            yield_now().await;
            decision.await
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

#[tokio::test(start_paused = true)]
async fn a_slot_is_freed_when_its_request_is_cancelled() {
    let limiter = two_at_once(Late(MemoryStore::new()));
    for steps in 0..5 {
        let mut asked = Box::pin(limiter.acquire(&alice(), 1));
        for _ in 0..=steps {
            tokio::select! { biased; _ = &mut asked => break, () = yield_now() => {} }
        }
        drop(asked);
        for _ in 0..5 {
            yield_now().await;
        }
        assert_eq!(both(&limiter).await[0], 0, "given up after {steps} steps");
    }
    assert!(limiter.acquire(&alice(), 1).await.decision().is_allowed());
}

/// A request that a limit denied is never charged, whatever final cost is set.
#[tokio::test]
async fn denied_requests_are_not_settled() {
    for is_shadow in [false, true] {
        let builder = RateLimiter::builder().limit(Limit::per_hour(10)).shadow(is_shadow);
        let limiter = builder.build().unwrap();
        limiter.check(&alice(), 10).await;
        let permit = limiter.acquire(&alice(), 4).await;
        assert_eq!(permit.decision().is_allowed(), is_shadow);
        permit.set_cost(50);
        permit.settle().await.unwrap();
        assert_eq!(used(&limiter).await, 10);
    }
}

#[tokio::test]
async fn units_beyond_the_estimate_are_not_for_limits_that_were_not_charged() {
    let limits = ["100/minute", "5/hour:shadow", "3/day:requests", "9:concurrency"];
    let limits = limits.map(|limit| limit.parse().unwrap());
    let limiter = limits.into_iter().fold(RateLimiter::builder(), RateLimiterBuilder::limit);
    let limiter = limiter.build().unwrap();
    for (cost, due, expected) in [
        // The hourly limit in shadow would deny the second and the third request, so they are not
        // charged to it.
        (4, 4, [4, 4, 1, 0]),
        (4, 20, [24, 4, 2, 0]),
        (8, 3, [27, 4, 3, 0]),
    ] {
        let permit = limiter.acquire(&alice(), cost).await;
        assert!(permit.decision().is_allowed(), "{:?}", permit.decision());
        permit.set_cost(due);
        permit.settle().await.unwrap();
        let usage = limiter.usage(&alice()).await.unwrap();
        let used: Vec<_> = usage.limits().map(|limit| limit.used()).collect();
        assert_eq!(used, expected, "cost {cost}, due {due}");
    }
}

/// A full refund also refunds the request under limits that count requests.
#[tokio::test]
async fn a_full_refund_also_refunds_the_request() {
    let limit = "3/day:requests".parse().unwrap();
    let limiter = RateLimiter::builder().limit(Limit::per_hour(100)).limit(limit).build().unwrap();
    for (due, expected) in [(1, [1, 1]), (0, [1, 1])] {
        let permit = limiter.acquire(&alice(), 7).await;
        permit.set_cost(due);
        permit.settle().await.unwrap();
        assert_eq!(both(&limiter).await, expected);
    }
}

/// A store in memory whose renewals take longer than the deadline of a decision.
#[derive(Debug)]
struct SlowToRenew(MemoryStore<TokioClock>);

impl Store for SlowToRenew {
    fn decide(&self, request: DecideRequest<'_>) -> StoreFuture<Decision> {
        self.0.decide(request)
    }

    fn settle(&self, settlements: &[Settlement<'_>]) -> StoreFuture<LeaseStatus> {
        self.0.settle(settlements)
    }

    fn renew(&self, renewal: Renewal<'_>) -> StoreFuture<LeaseStatus<Timestamp>> {
        let renewed = self.0.renew(renewal);
        MaybeReady::later(async {
            let _ = timeout(Duration::from_secs(1), pending::<()>()).await;
            renewed.await
        })
    }

    fn reset(&self, resets: &[Reset<'_>]) -> StoreFuture<()> {
        self.0.reset(resets)
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_may_take_longer_than_a_decision() {
    let store = MemoryStore::builder().clock(TokioClock::new()).build();
    let limiter = two_at_once(SlowToRenew(store));
    let held = limiter.acquire(&alice(), 1).await;
    for _ in 0..10 {
        timeout(Duration::from_secs(5), pending::<()>()).await.unwrap_err();
        assert_eq!(both(&limiter).await, [1, 1]);
    }
    drop(held);
    assert_eq!(both(&limiter).await, [0, 1]);
}

/// If the units stayed charged, a short delay of the server would deny requests for the length of a
/// lease.
#[tokio::test(start_paused = true)]
async fn a_place_that_is_granted_too_late_is_freed() {
    let check_too_late = |mode| match mode {
        Mode::Check => Duration::from_millis(200),
        _ => Duration::ZERO,
    };
    let limiter = two_at_once(Delayed(on_tokio_time(), check_too_late));
    let permit = limiter.acquire(&alice(), 1).await;
    assert!(matches!(permit.decision().origin(), Origin::FailedOpen(FailureKind::TimedOut)));
    assert_eq!(both(&limiter).await, [1, 1], "it was carried out");
    drop(permit);
    timeout(Duration::from_millis(200), pending::<()>()).await.unwrap_err();
    assert_eq!(both(&limiter).await, [0, 1]);
}

#[tokio::test]
async fn work_that_is_done_already_holds_no_place() {
    let limiter = two_at_once(MemoryStore::new());
    let charged = limiter.request(&alice()).cost(5).charge().await;
    assert_eq!((charged.is_allowed(), charged.limits().len()), (true, 1));
    assert_eq!(both(&limiter).await, [0, 5]);
}

/// A store in memory that executes every renewal, but loses or delays some replies.
#[derive(Debug)]
struct LosesAnswers {
    store: MemoryStore<TokioClock>,
    lost: AtomicU32,
    late: Duration,
    // The number of refunds that were polled to completion.
    refunded: Arc<AtomicU32>,
}

impl LosesAnswers {
    fn new(lost: u32, late: Duration) -> Self {
        let store = MemoryStore::builder().clock(TokioClock::new()).build();
        Self { store, lost: AtomicU32::new(lost), late, refunded: Arc::default() }
    }
}

impl Store for LosesAnswers {
    fn decide(&self, request: DecideRequest<'_>) -> StoreFuture<Decision> {
        self.store.decide(request)
    }

    fn settle(&self, settlements: &[Settlement<'_>]) -> StoreFuture<LeaseStatus> {
        let (answer, refunded) = (self.store.settle(settlements), Arc::clone(&self.refunded));
        MaybeReady::later(async move {
            yield_now().await;
            refunded.fetch_add(1, Ordering::SeqCst);
            answer.await
        })
    }

    fn renew(&self, renewal: Renewal<'_>) -> StoreFuture<LeaseStatus<Timestamp>> {
        let (renewed, late) = (self.store.renew(renewal), self.late);
        let less_one = |lost: u32| lost.checked_sub(1);
        let is_lost = self.lost.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less_one).is_ok();
        MaybeReady::later(async move {
            let _ = timeout(late, pending::<()>()).await;
            if is_lost { Err(StoreError::new(FailureKind::TimedOut)) } else { renewed.await }
        })
    }

    fn reset(&self, resets: &[Reset<'_>]) -> StoreFuture<()> {
        self.store.reset(resets)
    }
}

async fn after(time: Duration) {
    timeout(time, pending::<()>()).await.unwrap_err();
}

/// A server may hang for some seconds, and then execute the commands in its socket buffer. The
/// permit gets no reply to its renewal, so it does not know when the lease ends.
#[tokio::test(start_paused = true)]
async fn a_renewal_whose_reply_is_lost_does_not_lose_the_place() {
    let limiter = two_at_once(LosesAnswers::new(1, Duration::from_millis(10)));
    let held = limiter.acquire(&alice(), 1).await;
    for seconds in 1..60 {
        after(Duration::from_secs(1)).await;
        let [places, hour] = both(&limiter).await;
        assert!((1..=2).contains(&places), "{places} places after {seconds} s");
        // After the lost reply, the permit takes a second lease. The first one is not renewed, and
        // has expired after 15 seconds.
        assert!(seconds < 15 || places == 1, "{places} places after {seconds} s");
        assert_eq!(hour, 1);
    }
    held.settle().await.unwrap();
    assert_eq!(both(&limiter).await, [0, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_place_that_is_settled_while_it_is_renewed_is_free() {
    let limiter = two_at_once(LosesAnswers::new(0, Duration::from_secs(1)));
    let held = limiter.acquire(&alice(), 1).await;
    // After this time the store has executed the renewal, but its reply has not arrived.
    after(Duration::from_millis(3_900)).await;
    held.settle().await.unwrap();
    after(Duration::from_secs(1)).await;
    assert_eq!(both(&limiter).await, [0, 1]);
}

/// A store in memory that executes a renewal a second after it was sent.
#[derive(Debug)]
struct RenewsLate {
    store: Arc<MemoryStore<TokioClock>>,
    decided: Arc<AtomicU32>,
}

impl Store for RenewsLate {
    fn decide(&self, request: DecideRequest<'_>) -> StoreFuture<Decision> {
        self.decided.fetch_add(1, Ordering::SeqCst);
        self.store.decide(request)
    }

    fn settle(&self, settlements: &[Settlement<'_>]) -> StoreFuture<LeaseStatus> {
        self.store.settle(settlements)
    }

    fn renew(&self, renewal: Renewal<'_>) -> StoreFuture<LeaseStatus<Timestamp>> {
        let Renewal { namespace, subject, policy, charged, units, uncharged, lease } = renewal;
        let (store, namespace) = (Arc::clone(&self.store), namespace.clone());
        let (subject, policy) = (subject.clone(), policy.clone());
        MaybeReady::later(async move {
            after(Duration::from_secs(1)).await;
            let (namespace, subject, policy) = (&namespace, &subject, &policy);
            store
                .renew(Renewal { namespace, subject, policy, charged, units, uncharged, lease })
                .await
        })
    }

    fn reset(&self, resets: &[Reset<'_>]) -> StoreFuture<()> {
        self.store.reset(resets)
    }
}

/// Fault: the renewal found that the lease is gone, charged the released units once more, and
/// reported a lapse.
#[tokio::test(start_paused = true)]
async fn a_permit_that_is_settled_before_its_renewal_is_executed_has_not_lapsed() {
    let (lapsed, decided) = (Arc::new(Lapsed::default()), Arc::<AtomicU32>::default());
    let store = MemoryStore::builder().clock(TokioClock::new()).build();
    let store = RenewsLate { store: Arc::new(store), decided: Arc::clone(&decided) };
    let limits = RateLimiter::builder().limit(Limit::concurrency(2).unwrap());
    let limits = limits.limit(Limit::per_hour(10)).store(store).observer(Arc::clone(&lapsed));
    let limiter = limits.build().unwrap();
    let held = limiter.acquire(&alice(), 1).await;
    // The renewal is in flight: it is sent after 3 to 4 seconds.
    after(Duration::from_millis(3_900)).await;
    held.settle().await.unwrap();
    after(Duration::from_secs(10)).await;
    assert_eq!((lapsed.reports(), decided.load(Ordering::SeqCst)), (vec![], 1));
    assert_eq!(both(&limiter).await, [0, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_settlement_is_completed_in_the_background() {
    let store = LosesAnswers::new(0, Duration::ZERO);
    let refunded = Arc::clone(&store.refunded);
    let limiter = two_at_once(store);
    for steps in 0..3 {
        let permit = limiter.acquire(&alice(), 1).await;
        let mut settling = Box::pin(permit.settle());
        for _ in 0..steps {
            tokio::select! { biased; _ = &mut settling => break, () = yield_now() => {} }
        }
        drop(settling);
        after(Duration::from_millis(1)).await;
        assert_eq!(refunded.load(Ordering::SeqCst), steps + 1, "gone after {steps} steps");
    }
}

/// One task renews all permits. With a task for each, tasks of finished requests would stay in
/// memory until their leases end.
#[tokio::test(start_paused = true)]
async fn nothing_is_left_of_a_request_that_has_ended() {
    let limits = RateLimiter::builder().limit("5:concurrency:lease=1hour".parse().unwrap());
    let limiter = limits.store(Late(MemoryStore::new())).build().unwrap();
    for _ in 0..1_000 {
        let permit = limiter.acquire(&alice(), 1).await;
        assert!(permit.decision().is_allowed());
        permit.settle().await.unwrap();
        drop(limiter.acquire(&alice(), 6).await);
    }
    let tasks = tokio::runtime::Handle::current().metrics();
    while tasks.num_alive_tasks() > 1 {
        yield_now().await;
    }
}

/// The reports of leases that lapsed: for each, whether the place was taken again.
#[derive(Debug, Default)]
struct Lapsed(Mutex<Vec<bool>>);

impl Lapsed {
    fn reports(&self) -> Vec<bool> {
        self.0.lock().unwrap().clone()
    }
}

impl Observer for Lapsed {
    fn observe(&self, event: &Event<'_>) {
        if let EventKind::LeaseLapsed { subject, is_retaken, .. } = event.kind {
            assert_eq!(*subject, alice());
            self.0.lock().unwrap().push(is_retaken);
        }
    }
}

/// Creates a limiter whose store has a manual clock. A test moves this clock to simulate that the
/// machine was suspended.
fn jumping() -> (RateLimiter, Arc<ManualClock>, Arc<Lapsed>) {
    let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_700_000_000)));
    let lapsed = Arc::new(Lapsed::default());
    let store = MemoryStore::builder().clock(Arc::clone(&clock)).build();
    let limits = RateLimiter::builder().limit(Limit::concurrency(2).unwrap());
    let limits = limits.limit(Limit::per_hour(10)).store(store).observer(Arc::clone(&lapsed));
    (limits.build().unwrap(), clock, lapsed)
}

/// A pause in which a permit renews its lease, because it is longer than a third of the lease.
const TO_RENEW: Duration = Duration::from_secs(4);

#[tokio::test(start_paused = true)]
async fn a_place_whose_lease_lapsed_is_taken_again_and_reported() {
    let (limiter, clock, lapsed) = jumping();
    let held = limiter.acquire(&alice(), 1).await;
    clock.advance(Duration::from_secs(11));
    assert_eq!(both(&limiter).await, [0, 1], "the lease has ended");
    after(TO_RENEW).await;
    assert_eq!((both(&limiter).await, lapsed.reports()), ([1, 1], vec![true]));
    after(3 * TO_RENEW).await;
    assert_eq!((both(&limiter).await, lapsed.reports()), ([1, 1], vec![true]), "it is renewed");
    held.settle().await.unwrap();
    assert_eq!(both(&limiter).await, [0, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_place_whose_lease_lapsed_waits_for_a_free_place_and_is_reported_once() {
    let (limiter, clock, lapsed) = jumping();
    let held = limiter.acquire(&alice(), 1).await;
    clock.advance(Duration::from_secs(11));
    let others = [limiter.acquire(&alice(), 1).await, limiter.acquire(&alice(), 1).await];
    assert!(others.iter().all(|other| other.decision().is_allowed()));
    after(3 * TO_RENEW).await;
    assert_eq!((both(&limiter).await, lapsed.reports()), ([2, 3], vec![false]));
    let [one, other] = others;
    drop(one);
    after(TO_RENEW).await;
    assert_eq!((both(&limiter).await, lapsed.reports()), ([2, 3], vec![false, true]));
    drop((held, other));
    assert_eq!(both(&limiter).await, [0, 3]);
}

/// The unit that the request held belongs to another request by now.
#[tokio::test(start_paused = true)]
async fn a_request_that_continues_uncounted_frees_no_place() {
    let (limiter, clock, lapsed) = jumping();
    let held = limiter.acquire(&alice(), 1).await;
    clock.advance(Duration::from_secs(11));
    let _others = [limiter.acquire(&alice(), 1).await, limiter.acquire(&alice(), 1).await];
    after(TO_RENEW).await;
    assert_eq!(lapsed.reports(), [false]);
    held.settle().await.unwrap();
    assert_eq!(both(&limiter).await, [2, 3]);
}

#[cfg(feature = "tracing")]
#[tokio::test(start_paused = true)]
async fn leases_that_lapse_together_are_two_lines_in_the_log() {
    let (limiter, clock, lapsed) = jumping();
    let logged = crate::observe::capture::Capture::start();
    for _ in 0..8 {
        let held = limiter.acquire(&alice(), 1).await;
        clock.advance(Duration::from_secs(11));
        after(TO_RENEW).await;
        drop(held);
    }
    assert_eq!(lapsed.reports().len(), 8);
    after(Duration::from_secs(60)).await;
    drop(limiter.acquire(&alice(), 1).await);
    let lines = logged.lines();
    let [begun, ended] = &lines[..] else { panic!("{lines:?}") };
    assert!(begun.starts_with("WARN concurrency lease lapsed"), "{begun}");
    assert!(
        ended.contains("concurrency leases no longer lapse") && ended.contains("leases=8"),
        "{ended}"
    );
}
