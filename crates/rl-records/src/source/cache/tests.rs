use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rl_core::time::{Clock, ManualClock};
use tokio::sync::Semaphore;

use super::*;

/// A database with a single number, which replies only when a test permits it.
#[derive(Clone)]
struct Database(Arc<Inner>);

struct Inner {
    number: AtomicU64,
    fails: AtomicU64,
    reads: AtomicU64,
    may_reply: Semaphore,
    clock: ManualClock,
}

impl Load<u64> for Database {
    fn load(&self, _: Arc<str>) -> BoxFuture<'static, Result<u64, FailureKind>> {
        let this = self.0.clone();
        this.reads.fetch_add(1, Ordering::SeqCst);
        let read = this.number.load(Ordering::SeqCst);
        async move {
            this.may_reply.acquire().await.unwrap().forget();
            match this.fails.load(Ordering::SeqCst) {
                0 => Ok(read),
                1 => Err(FailureKind::Unavailable),
                2 => Err(FailureKind::Corrupt),
                _ => panic!("a defect of the loader"),
            }
        }
        .boxed()
    }

    fn now(&self) -> Timestamp {
        self.0.clock.now()
    }
}

/// The maximum number of concurrent look-ups.
const MAX_RUNNING: u64 = 4;

fn cache(capacity: usize) -> (Arc<Cache<u64>>, Database) {
    let database = Database(Arc::new(Inner {
        number: AtomicU64::new(1),
        fails: AtomicU64::new(0),
        reads: AtomicU64::new(0),
        may_reply: Semaphore::new(0),
        clock: ManualClock::at(Timestamp::from_secs(1_000)),
    }));
    let limiter = LookupLimiter::new(MAX_RUNNING as usize);
    let cache = Cache::new(database.clone(), limiter, capacity, 3_600_000_000, Handle::current());
    (Arc::new(cache), database)
}

impl Database {
    fn permit(&self, replies: usize) {
        self.0.may_reply.add_permits(replies);
    }

    fn reads(&self) -> u64 {
        self.0.reads.load(Ordering::SeqCst)
    }

    fn set(&self, number: u64) {
        self.0.number.store(number, Ordering::SeqCst);
    }

    fn fail(&self, is_down: bool) {
        self.fail_like(is_down.into());
    }

    /// Sets the result of reads: 0 is a success, 1 an outage, 2 damaged data, 3 a panic.
    fn fail_like(&self, how: u64) {
        self.0.fails.store(how, Ordering::SeqCst);
    }

    async fn until_reads(&self, count: u64) {
        while self.reads() < count {
            tokio::task::yield_now().await;
        }
    }
}

async fn wait(found: Cached<u64>) -> Result<u64, FailureKind> {
    match found {
        Cached::Value(value) => Ok(*value),
        Cached::Pending { lookup, last } => match (lookup.await, last) {
            (Ok(value), _) | (Err(_), Some(value)) => Ok(*value),
            (Err(kind), None) => Err(kind),
        },
        Cached::Failed(kind) => Err(kind),
    }
}

fn value(found: &Cached<u64>) -> Option<u64> {
    if let Cached::Value(value) = found { Some(**value) } else { None }
}

#[tokio::test]
async fn concurrent_callers_of_one_key_share_one_look_up() {
    let (cache, database) = cache(10);
    let waiting: Vec<_> = (0..50).map(|_| wait(cache.get("a"))).collect();
    database.permit(1);
    for answer in futures::future::join_all(waiting).await {
        assert_eq!(answer, Ok(1));
    }
    assert_eq!(database.reads(), 1);
    assert_eq!(value(&cache.get("a")), Some(1));
}

#[tokio::test]
async fn a_look_up_continues_when_its_first_caller_is_dropped() {
    let (cache, database) = cache(10);
    drop(cache.get("a"));
    let second = wait(cache.get("a"));
    database.permit(1);
    assert_eq!(second.await, Ok(1));
    assert_eq!(database.reads(), 1);
}

#[tokio::test]
async fn an_old_value_is_returned_while_it_is_looked_up_again() {
    let (cache, database) = cache(10);
    database.permit(1);
    assert_eq!(wait(cache.get("a")).await, Ok(1));
    database.set(2);
    database.0.clock.advance(Duration::from_micros(3_599_999_999));
    assert_eq!(value(&cache.get("a")), Some(1));
    assert!(cache.state().in_flight.is_empty());
    database.0.clock.advance(Duration::from_micros(1));
    assert_eq!(value(&cache.get("a")), Some(1));
    let lookup = cache.state().in_flight["a"].lookup.clone();
    assert_eq!(value(&cache.get("a")), Some(1));
    database.permit(1);
    lookup.await.unwrap();
    assert_eq!(value(&cache.get("a")), Some(2));
    assert_eq!(database.reads(), 2);
}

#[tokio::test]
async fn after_a_change_no_caller_gets_the_old_value() {
    let (cache, database) = cache(10);
    database.permit(1);
    assert_eq!(wait(cache.get("a")).await, Ok(1));
    database.set(2);
    cache.invalidate("a");
    let next = cache.get("a");
    assert_eq!(value(&next), None);
    database.permit(1);
    assert_eq!(wait(next).await, Ok(2));
}

#[tokio::test]
async fn a_refresh_of_many_values_is_bounded_and_begins_with_the_most_recently_used() {
    let (cache, database) = cache(100);
    database.permit(10);
    for key in 0..10 {
        wait(cache.get(&key.to_string())).await.unwrap();
    }
    value(&cache.get("3")).unwrap();
    database.set(2);
    cache.invalidate_all();
    let refreshing = tokio::spawn(cache.refresh_if(|_| true));
    database.until_reads(10 + CONCURRENT_REFRESHES as u64).await;
    let mut first: Vec<String> = cache.state().in_flight.keys().map(ToString::to_string).collect();
    first.sort_unstable();
    assert_eq!(first, ["3", "7", "8", "9"]);
    database.permit(10);
    refreshing.await.unwrap();
    assert_eq!(database.reads(), 20);
    assert_eq!((0..10).filter_map(|key| value(&cache.get(&key.to_string()))).sum::<u64>(), 20);
}

/// Fault: a look-up that had read the old value ended after the change, and restored the old value
/// for an hour.
#[tokio::test]
async fn a_change_during_a_look_up_causes_another_read() {
    let (cache, database) = cache(10);
    let first = cache.get("a");
    database.until_reads(1).await;
    database.set(2);
    cache.invalidate_all();
    database.permit(2);
    assert_eq!(wait(first).await, Ok(2));
    assert_eq!(value(&cache.get("a")), Some(2));
}

#[tokio::test]
async fn the_last_value_applies_while_the_database_is_down_and_few_reads_are_tried() {
    let (cache, database) = cache(10);
    database.permit(1);
    assert_eq!(wait(cache.get("a")).await, Ok(1));
    database.fail(true);
    database.permit(1_000);
    cache.invalidate("a");
    for _ in 0..100 {
        assert_eq!(wait(cache.get("a")).await, Ok(1));
        assert_eq!(wait(cache.get("never seen")).await, Err(FailureKind::Unavailable));
    }
    assert_eq!(database.reads(), 2);
    database.fail(false);
    database.set(2);
    database.0.clock.advance(Duration::from_secs(1));
    assert_eq!(wait(cache.get("a")).await, Ok(2), "the value is still stale");
    assert_eq!(wait(cache.get("never seen")).await, Ok(2));
}

/// Fault: while the database hung, every request waited until its deadline.
#[tokio::test]
async fn after_one_caller_has_timed_out_the_others_do_not_wait() {
    let (cache, database) = cache(10);
    database.permit(1);
    assert_eq!(wait(cache.get("a")).await, Ok(1));
    database.set(2);
    cache.invalidate("a");
    let first = cache.get("a");
    assert_eq!(value(&first), None);
    cache.give_up("a");
    assert_eq!(value(&cache.get("a")), Some(1));
    database.permit(1);
    assert_eq!(wait(first).await, Ok(2));
    assert_eq!(value(&cache.get("a")), Some(2));
    cache.invalidate("a");
    assert_eq!(value(&cache.get("a")), None, "callers wait for the next change again");
}

/// With 1 000 other keys and a capacity of 100, the key "busy" stays because it is used.
#[tokio::test]
async fn the_capacity_is_kept_and_idle_entries_are_evicted() {
    let (cache, database) = cache(100);
    database.permit(100_000);
    wait(cache.get("busy")).await.unwrap();
    let mut lost = 0;
    for number in 0..1_000 {
        wait(cache.get(&number.to_string())).await.unwrap();
        lost += u64::from(value(&cache.get("busy")).is_none());
        assert!(cache.len() <= 100);
    }
    assert_eq!(cache.len(), 100);
    // Eviction draws a random sample of the entries, and removes the one that was used longest ago.
    // "busy" has just been used, so it is removed only if the sample contains no other entry. That
    // is too unlikely to matter.
    assert_eq!((database.reads(), lost), (1_001, 0));
}

/// Fault: every invented name used a task and a connection.
#[tokio::test]
async fn the_number_of_concurrent_look_ups_is_bounded_however_many_names_are_invented() {
    let (cache, database) = cache(100_000);
    let found: Vec<_> = (0..10_000).map(|number| cache.get(&number.to_string())).collect();
    let waiting = found.iter().filter(|found| matches!(found, Cached::Pending { .. })).count();
    assert!(waiting < 1_000, "{waiting} wait");
    let is_refused =
        |found: &&Cached<u64>| matches!(found, Cached::Failed(FailureKind::Overloaded));
    assert_eq!(found.iter().filter(is_refused).count(), 10_000 - waiting);
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(database.reads(), MAX_RUNNING, "it hangs");
    database.permit(100_000);
    for found in found {
        let _ = wait(found).await;
    }
    database.0.may_reply.forget_permits(usize::MAX);
    let _hanging: Vec<_> = (0..10_000).map(|number| cache.get(&format!("new {number}"))).collect();
    // Look-ups of known values have a queue of their own, so they are accepted even while look-ups
    // of unknown values fill theirs.
    cache.invalidate("0");
    assert!(matches!(cache.get("0"), Cached::Pending { .. }));
}

/// Fault: after an outage of an hour, all entries were old. All callers started look-ups, and
/// repeated them while the database was still down.
#[tokio::test]
async fn while_the_database_is_down_only_one_look_up_is_tried() {
    let (cache, database) = cache(1_000);
    database.permit(100_000);
    for number in 0..100 {
        wait(cache.get(&number.to_string())).await.unwrap();
    }
    database.fail(true);
    let reads_since = |from: u64| database.reads() - from;
    for outage in 0..5 {
        database.0.clock.advance(Duration::from_secs(3_600));
        let before = database.reads();
        let all: Vec<_> = (0..100).map(|number| cache.get(&number.to_string())).collect();
        for found in all {
            assert_eq!(wait(found).await, Ok(1), "the last value applies");
        }
        for number in 0..100 {
            assert!(wait(cache.get(&format!("new {number}"))).await.is_err());
        }
        while cache.state().in_flight.values().any(|in_flight| in_flight.lookup.peek().is_none()) {
            tokio::task::yield_now().await;
        }
        let max = if outage == 0 { MAX_RUNNING } else { 1 };
        assert!((1..=max).contains(&reads_since(before)), "{}", reads_since(before));
    }
    database.0.clock.advance(Duration::from_secs(1));
    let before = database.reads();
    let all: Vec<_> = (0..100).map(|number| cache.get(&format!("x{number}"))).collect();
    let answers = futures::future::join_all(all.into_iter().map(wait)).await;
    assert!(answers.iter().all(Result::is_err));
    assert_eq!(reads_since(before), 1);

    database.fail(false);
    database.0.clock.advance(Duration::from_secs(1));
    assert_eq!(wait(cache.get("x0")).await, Ok(1));
    let before = database.reads();
    let all: Vec<_> = (1..11).map(|number| cache.get(&format!("x{number}"))).collect();
    let answers = futures::future::join_all(all.into_iter().map(wait)).await;
    assert!(answers.iter().all(Result::is_ok), "one has succeeded");
    assert_eq!(reads_since(before), 10);
}

/// Fault: failed look-ups of unknown names evicted known values.
#[tokio::test]
async fn during_an_outage_invented_names_evict_nothing() {
    let (cache, database) = cache(100);
    database.permit(1_000_000);
    for number in 0..100 {
        wait(cache.get(&number.to_string())).await.unwrap();
    }
    database.fail(true);
    for number in 0..1_000 {
        database.0.clock.advance(Duration::from_secs(2));
        assert!(wait(cache.get(&format!("new {number}"))).await.is_err());
    }
    for number in 0..100 {
        assert_eq!(value(&cache.get(&number.to_string())), Some(1), "{number}");
    }
}

/// Fault: an entry was evicted and looked up again. Then the first look-up ended, and overwrote the
/// result of the second.
#[tokio::test]
async fn a_look_up_of_an_evicted_entry_does_not_restore_the_old_value() {
    let (cache, database) = cache(1);
    let first = cache.get("a");
    database.until_reads(1).await;
    let other = cache.get("b");
    database.until_reads(2).await;
    database.set(2);
    cache.invalidate("a");
    let second = cache.get("a");
    database.permit(1_000);
    let _ = (wait(first).await, wait(other).await);
    assert_eq!(wait(second).await, Ok(2));
    assert_eq!(wait(cache.get("a")).await, Ok(2));
}

/// Fault: after the clock was set back, a value stayed fresh until the clock had passed the time of
/// the read again.
#[tokio::test]
async fn a_value_read_later_than_now_is_read_again() {
    let (cache, database) = cache(10);
    database.permit(100);
    assert_eq!(wait(cache.get("a")).await, Ok(1));
    database.set(2);
    database.0.clock.set(Timestamp::from_secs(10));
    assert_eq!(wait(cache.get("a")).await, Ok(2));
    assert_eq!(value(&cache.get("a")), Some(2));
    assert_eq!(database.reads(), 2);
}

#[tokio::test]
async fn a_look_up_that_panics_does_not_prevent_the_next_one() {
    let (cache, database) = cache(10);
    database.permit(100);
    database.fail_like(3);
    assert!(wait(cache.get("a")).await.is_err());
    database.fail_like(0);
    assert_eq!(wait(cache.get("a")).await, Ok(1));
    database.fail_like(3);
    cache.invalidate("a");
    assert_eq!(wait(cache.get("a")).await, Ok(1), "the last value");
    database.fail_like(0);
    database.set(2);
    assert_eq!(wait(cache.get("a")).await, Ok(2));
}

#[test]
fn look_ups_fail_after_their_runtime_has_ended() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let (cache, database) = runtime.block_on(async { cache(10) });
    database.permit(100);
    runtime.block_on(async { wait(cache.get("a")).await.unwrap() });
    drop(runtime);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        for _ in 0..3 {
            cache.invalidate("a");
            assert_eq!(wait(cache.get("a")).await, Ok(1));
            assert_eq!(wait(cache.get("b")).await, Err(FailureKind::Unavailable));
        }
    });
}

/// Fault: the look-up of a value that changed during every read never ended.
#[tokio::test]
async fn a_look_up_of_a_value_that_keeps_changing_ends_with_the_last_read() {
    let (cache, database) = cache(10);
    let waiting = cache.get("a");
    for round in 1..=4 {
        database.until_reads(round).await;
        database.set(round + 1);
        cache.invalidate("a");
        database.permit(1);
    }
    assert_eq!(wait(waiting).await, Ok(4), "the last read");
    let next = cache.get("a");
    assert_eq!(value(&next), None, "the value is stale");
    database.permit(1);
    assert_eq!(wait(next).await, Ok(5));
}

/// A damaged value stays damaged until an operator repairs it, so reading it for each request is
/// useless.
#[tokio::test]
async fn a_damaged_value_is_read_once_a_second_and_delays_no_other_key() {
    let (cache, database) = cache(10);
    database.permit(100);
    database.fail_like(2);
    for _ in 0..100 {
        assert_eq!(wait(cache.get("a")).await, Err(FailureKind::Corrupt));
    }
    assert_eq!(database.reads(), 1);
    database.fail_like(0);
    assert_eq!(wait(cache.get("b")).await, Ok(1));
    cache.invalidate("a");
    assert_eq!(wait(cache.get("a")).await, Ok(1), "it was repaired");
}
