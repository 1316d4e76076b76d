use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rl_core::time::{Clock, ManualClock};
use tokio::sync::Semaphore;

use super::*;

/// A database of one number, that answers when it is let.
#[derive(Clone)]
struct Database(Arc<Inner>);

struct Inner {
    number: AtomicU64,
    fails: AtomicU64,
    asked: AtomicU64,
    may_answer: Semaphore,
    clock: ManualClock,
}

impl Load<u64> for Database {
    fn load(&self, _: Arc<str>) -> BoxFuture<'static, Result<u64, FailureKind>> {
        let this = self.0.clone();
        this.asked.fetch_add(1, Ordering::SeqCst);
        let read = this.number.load(Ordering::SeqCst);
        async move {
            this.may_answer.acquire().await.unwrap().forget();
            match this.fails.load(Ordering::SeqCst) {
                0 => Ok(read),
                1 => Err(FailureKind::Unavailable),
                2 => Err(FailureKind::Corrupt),
                _ => panic!("a loader with a mistake"),
            }
        }
        .boxed()
    }

    fn now(&self) -> Timestamp {
        self.0.clock.now()
    }
}

/// So many look-ups at the same time.
const AT_ONCE: u64 = 4;

fn cache(capacity: usize) -> (Arc<Cache<u64>>, Database) {
    let database = Database(Arc::new(Inner {
        number: AtomicU64::new(1),
        fails: AtomicU64::new(0),
        asked: AtomicU64::new(0),
        may_answer: Semaphore::new(0),
        clock: ManualClock::at(Timestamp::from_secs(1_000)),
    }));
    let gate = Gate::new(AT_ONCE as usize);
    let cache = Cache::new(database.clone(), gate, capacity, 3_600_000_000, Handle::current());
    (Arc::new(cache), database)
}

impl Database {
    fn answer(&self, questions: usize) {
        self.0.may_answer.add_permits(questions);
    }

    fn asked(&self) -> u64 {
        self.0.asked.load(Ordering::SeqCst)
    }

    fn hold(&self, number: u64) {
        self.0.number.store(number, Ordering::SeqCst);
    }

    fn fail(&self, is_down: bool) {
        self.fail_like(is_down.into());
    }

    /// 0 answers, 1 is down, 2 is damaged, 3 panics.
    fn fail_like(&self, how: u64) {
        self.0.fails.store(how, Ordering::SeqCst);
    }

    async fn until_asked(&self, questions: u64) {
        while self.asked() < questions {
            tokio::task::yield_now().await;
        }
    }
}

async fn wait(found: Found<u64>) -> Result<u64, FailureKind> {
    match found {
        Found::Known(value) => Ok(*value),
        Found::Wait(flight, last) => match (flight.await, last) {
            (Ok(value), _) | (Err(_), Some(value)) => Ok(*value),
            (Err(kind), None) => Err(kind),
        },
        Found::No(kind) => Err(kind),
    }
}

fn known(found: &Found<u64>) -> Option<u64> {
    if let Found::Known(value) = found { Some(**value) } else { None }
}

#[tokio::test]
async fn of_many_who_ask_at_once_one_asks_the_database() {
    let (cache, database) = cache(10);
    let waiting: Vec<_> = (0..50).map(|_| wait(cache.get("a"))).collect();
    database.answer(1);
    for answer in futures::future::join_all(waiting).await {
        assert_eq!(answer, Ok(1));
    }
    assert_eq!(database.asked(), 1);
    assert_eq!(known(&cache.get("a")), Some(1));
}

#[tokio::test]
async fn the_look_up_goes_on_when_who_began_it_goes_away() {
    let (cache, database) = cache(10);
    drop(cache.get("a"));
    let second = wait(cache.get("a"));
    database.answer(1);
    assert_eq!(second.await, Ok(1));
    assert_eq!(database.asked(), 1);
}

#[tokio::test]
async fn what_is_old_is_served_while_it_is_looked_up_again() {
    let (cache, database) = cache(10);
    database.answer(1);
    assert_eq!(wait(cache.get("a")).await, Ok(1));
    database.hold(2);
    database.0.clock.advance(Duration::from_micros(3_599_999_999));
    assert_eq!(known(&cache.get("a")), Some(1));
    assert!(cache.state().flights.is_empty());
    database.0.clock.advance(Duration::from_micros(1));
    assert_eq!(known(&cache.get("a")), Some(1));
    let flight = cache.state().flights["a"].flight.clone();
    assert_eq!(known(&cache.get("a")), Some(1));
    database.answer(1);
    flight.await.unwrap();
    assert_eq!(known(&cache.get("a")), Some(2));
    assert_eq!(database.asked(), 2);
}

#[tokio::test]
async fn after_a_change_nobody_gets_the_old_value() {
    let (cache, database) = cache(10);
    database.answer(1);
    assert_eq!(wait(cache.get("a")).await, Ok(1));
    database.hold(2);
    cache.changed("a");
    let next = cache.get("a");
    assert_eq!(known(&next), None);
    database.answer(1);
    assert_eq!(wait(next).await, Ok(2));
}

/// A look-up that has read the old value, and ends after the change was announced, brought it back
/// for an hour.
#[tokio::test]
async fn values_that_changed_together_are_looked_up_few_at_once_and_those_used_last_first() {
    let (cache, database) = cache(100);
    database.answer(10);
    for key in 0..10 {
        wait(cache.get(&key.to_string())).await.unwrap();
    }
    known(&cache.get("3")).unwrap();
    database.hold(2);
    cache.all_changed();
    let refreshing = tokio::spawn(cache.refresh_if(|_| true));
    database.until_asked(10 + TOGETHER as u64).await;
    let flying = || cache.state().flights.keys().map(ToString::to_string).collect::<Vec<_>>();
    let mut first = flying();
    first.sort_unstable();
    assert_eq!(first, ["3", "7", "8", "9"]);
    database.answer(10);
    refreshing.await.unwrap();
    assert_eq!(database.asked(), 20);
    assert_eq!((0..10).filter_map(|key| known(&cache.get(&key.to_string()))).sum::<u64>(), 20);
}

#[tokio::test]
async fn a_change_during_a_look_up_makes_it_look_again() {
    let (cache, database) = cache(10);
    let first = cache.get("a");
    database.until_asked(1).await;
    database.hold(2);
    cache.all_changed();
    database.answer(2);
    assert_eq!(wait(first).await, Ok(2));
    assert_eq!(known(&cache.get("a")), Some(2));
}

#[tokio::test]
async fn while_the_database_is_down_the_last_value_holds_and_few_questions_are_asked() {
    let (cache, database) = cache(10);
    database.answer(1);
    assert_eq!(wait(cache.get("a")).await, Ok(1));
    database.fail(true);
    database.answer(1_000);
    cache.changed("a");
    for _ in 0..100 {
        assert_eq!(wait(cache.get("a")).await, Ok(1));
        assert_eq!(wait(cache.get("never seen")).await, Err(FailureKind::Unavailable));
    }
    assert_eq!(database.asked(), 2);
    database.fail(false);
    database.hold(2);
    database.0.clock.advance(Duration::from_secs(1));
    assert_eq!(wait(cache.get("a")).await, Ok(2), "the change is not forgotten");
    assert_eq!(wait(cache.get("never seen")).await, Ok(2));
}

/// With a database that hangs, every request waited as long as it may.
#[tokio::test]
async fn when_one_has_waited_long_enough_nobody_else_waits() {
    let (cache, database) = cache(10);
    database.answer(1);
    assert_eq!(wait(cache.get("a")).await, Ok(1));
    database.hold(2);
    cache.changed("a");
    let first = cache.get("a");
    assert_eq!(known(&first), None);
    cache.give_up("a");
    assert_eq!(known(&cache.get("a")), Some(1));
    database.answer(1);
    assert_eq!(wait(first).await, Ok(2));
    assert_eq!(known(&cache.get("a")), Some(2));
    cache.changed("a");
    assert_eq!(known(&cache.get("a")), None, "the next change is waited for again");
}

/// Nobody looks "busy" up after the first time: with 1 000 others in 100 places, it stays because it is
/// used.
#[tokio::test]
async fn it_holds_as_many_as_it_was_told_and_forgets_who_is_idle() {
    let (cache, database) = cache(100);
    database.answer(100_000);
    wait(cache.get("busy")).await.unwrap();
    let mut lost = 0;
    for number in 0..1_000 {
        wait(cache.get(&number.to_string())).await.unwrap();
        lost += u64::from(known(&cache.get("busy")).is_none());
        assert!(cache.len() <= 100);
    }
    assert_eq!(cache.len(), 100);
    // Each of the 1 000 was asked for once. The oldest of a sample makes room: that all of a sample are
    // the one that is used does not happen.
    assert_eq!((database.asked(), lost), (1_001, 0));
}

/// One task and one connection each, for every name that somebody invents.
#[tokio::test]
async fn however_many_names_are_invented_few_are_looked_up_at_once() {
    let (cache, database) = cache(100_000);
    let found: Vec<_> = (0..10_000).map(|number| cache.get(&number.to_string())).collect();
    let waiting = found.iter().filter(|found| matches!(found, Found::Wait(..))).count();
    assert!(waiting < 1_000, "{waiting} wait");
    let at_once = |found: &&Found<u64>| matches!(found, Found::No(FailureKind::Overloaded));
    assert_eq!(found.iter().filter(at_once).count(), 10_000 - waiting);
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(database.asked(), AT_ONCE, "it hangs");
    // What is known has places of its own.
    database.answer(100_000);
    for found in found {
        let _ = wait(found).await;
    }
    database.0.may_answer.forget_permits(usize::MAX);
    let _hanging: Vec<_> = (0..10_000).map(|number| cache.get(&format!("new {number}"))).collect();
    cache.changed("0");
    assert!(matches!(cache.get("0"), Found::Wait(..)));
}

/// After an outage of an hour everything that is known is old: everybody asked at once, and went on to
/// ask while nobody answered.
#[tokio::test]
async fn while_the_database_is_down_one_asks_for_all() {
    let (cache, database) = cache(1_000);
    database.answer(100_000);
    for number in 0..100 {
        wait(cache.get(&number.to_string())).await.unwrap();
    }
    database.fail(true);
    let asked = |from: u64| database.asked() - from;
    for outage in 0..5 {
        database.0.clock.advance(Duration::from_secs(3_600));
        let before = database.asked();
        let all: Vec<_> = (0..100).map(|number| cache.get(&number.to_string())).collect();
        for found in all {
            assert_eq!(wait(found).await, Ok(1), "the last value holds");
        }
        for number in 0..100 {
            assert!(wait(cache.get(&format!("new {number}"))).await.is_err());
        }
        while cache.state().flights.values().any(|flying| flying.flight.peek().is_none()) {
            tokio::task::yield_now().await;
        }
        let most = if outage == 0 { AT_ONCE } else { 1 };
        assert!((1..=most).contains(&asked(before)), "{}", asked(before));
    }
    database.0.clock.advance(Duration::from_secs(1));
    let before = database.asked();
    let all: Vec<_> = (0..100).map(|number| cache.get(&format!("x{number}"))).collect();
    let answers = futures::future::join_all(all.into_iter().map(wait)).await;
    assert!(answers.iter().all(Result::is_err));
    assert_eq!(asked(before), 1);

    database.fail(false);
    database.0.clock.advance(Duration::from_secs(1));
    assert_eq!(wait(cache.get("x0")).await, Ok(1));
    let before = database.asked();
    let all: Vec<_> = (1..11).map(|number| cache.get(&format!("x{number}"))).collect();
    let answers = futures::future::join_all(all.into_iter().map(wait)).await;
    assert!(answers.iter().all(Result::is_ok), "one has succeeded");
    assert_eq!(asked(before), 10);
}

/// Names that were asked for in vain took the places of those that were known.
#[tokio::test]
async fn in_an_outage_invented_names_displace_nothing() {
    let (cache, database) = cache(100);
    database.answer(1_000_000);
    for number in 0..100 {
        wait(cache.get(&number.to_string())).await.unwrap();
    }
    database.fail(true);
    for number in 0..1_000 {
        database.0.clock.advance(Duration::from_secs(2));
        assert!(wait(cache.get(&format!("new {number}"))).await.is_err());
    }
    for number in 0..100 {
        assert_eq!(known(&cache.get(&number.to_string())), Some(1), "{number}");
    }
}

/// The entry was made afresh while the first look-up for it went on, which then brought the old value.
#[tokio::test]
async fn a_look_up_of_what_was_displaced_does_not_bring_the_old_value_back() {
    let (cache, database) = cache(1);
    let first = cache.get("a");
    database.until_asked(1).await;
    let other = cache.get("b");
    database.until_asked(2).await;
    database.hold(2);
    cache.changed("a");
    let second = cache.get("a");
    database.answer(1_000);
    let _ = (wait(first).await, wait(other).await);
    assert_eq!(wait(second).await, Ok(2));
    assert_eq!(wait(cache.get("a")).await, Ok(2));
}

/// It held for as long as the clock had been ahead.
#[tokio::test]
async fn what_was_read_after_now_is_read_again() {
    let (cache, database) = cache(10);
    database.answer(100);
    assert_eq!(wait(cache.get("a")).await, Ok(1));
    database.hold(2);
    database.0.clock.set(Timestamp::from_secs(10));
    assert_eq!(wait(cache.get("a")).await, Ok(2));
    assert_eq!(known(&cache.get("a")), Some(2));
    assert_eq!(database.asked(), 2);
}

#[tokio::test]
async fn a_look_up_that_dies_is_not_the_last_one() {
    let (cache, database) = cache(10);
    database.answer(100);
    database.fail_like(3);
    assert!(wait(cache.get("a")).await.is_err());
    database.fail_like(0);
    assert_eq!(wait(cache.get("a")).await, Ok(1));
    database.fail_like(3);
    cache.changed("a");
    assert_eq!(wait(cache.get("a")).await, Ok(1), "the last value");
    database.fail_like(0);
    database.hold(2);
    assert_eq!(wait(cache.get("a")).await, Ok(2));
}

#[test]
fn a_runtime_that_has_ended_is_an_error_each_time() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let (cache, database) = runtime.block_on(async { cache(10) });
    database.answer(100);
    runtime.block_on(async { wait(cache.get("a")).await.unwrap() });
    drop(runtime);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        for _ in 0..3 {
            cache.changed("a");
            assert_eq!(wait(cache.get("a")).await, Ok(1));
            assert_eq!(wait(cache.get("b")).await, Err(FailureKind::Unavailable));
        }
    });
}

/// A loader whose value changes each time while it is read: the look-up never ended.
#[tokio::test]
async fn what_changes_more_often_than_it_is_read_is_told_as_it_was_read() {
    let (cache, database) = cache(10);
    let waiting = cache.get("a");
    for round in 1..=4 {
        database.until_asked(round).await;
        database.hold(round + 1);
        cache.changed("a");
        database.answer(1);
    }
    assert_eq!(wait(waiting).await, Ok(4), "as it was at the last reading");
    let next = cache.get("a");
    assert_eq!(known(&next), None, "which is old already");
    database.answer(1);
    assert_eq!(wait(next).await, Ok(5));
}

/// What is damaged lasts until somebody mends it: asking at each request does not.
#[tokio::test]
async fn one_damaged_value_is_asked_for_once_a_second_and_keeps_nobody_else_waiting() {
    let (cache, database) = cache(10);
    database.answer(100);
    database.fail_like(2);
    for _ in 0..100 {
        assert_eq!(wait(cache.get("a")).await, Err(FailureKind::Corrupt));
    }
    assert_eq!(database.asked(), 1);
    database.fail_like(0);
    assert_eq!(wait(cache.get("b")).await, Ok(1));
    cache.changed("a");
    assert_eq!(wait(cache.get("a")).await, Ok(1), "it is mended");
}
