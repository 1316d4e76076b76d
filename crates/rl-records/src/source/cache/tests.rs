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
    is_down: AtomicU64,
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
            let is_down = this.is_down.load(Ordering::SeqCst) == 1;
            if is_down { Err(FailureKind::Unavailable) } else { Ok(read) }
        }
        .boxed()
    }

    fn now(&self) -> Timestamp {
        self.0.clock.now()
    }
}

fn cache(capacity: usize) -> (Arc<Cache<u64>>, Database) {
    let database = Database(Arc::new(Inner {
        number: AtomicU64::new(1),
        is_down: AtomicU64::new(0),
        asked: AtomicU64::new(0),
        may_answer: Semaphore::new(0),
        clock: ManualClock::at(Timestamp::from_secs(1_000)),
    }));
    let cache = Cache::new(database.clone(), capacity, 3_600_000_000, Handle::current());
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
        self.0.is_down.store(is_down.into(), Ordering::SeqCst);
    }
}

async fn wait(found: Found<u64>) -> Result<u64, FailureKind> {
    match found {
        Found::Known(value) => Ok(*value),
        Found::Wait(flight, last) => match (flight.await, last) {
            (Ok(value), _) | (Err(_), Some(value)) => Ok(*value),
            (Err(kind), None) => Err(kind),
        },
        Found::Down => Err(FailureKind::Unavailable),
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
    assert!(cache.state().slots["a"].flight.is_none());
    database.0.clock.advance(Duration::from_micros(1));
    assert_eq!(known(&cache.get("a")), Some(1));
    let flight = cache.state().slots["a"].flight.clone().unwrap();
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
async fn a_change_during_a_look_up_makes_it_look_again() {
    let (cache, database) = cache(10);
    let first = cache.get("a");
    while database.asked() == 0 {
        tokio::task::yield_now().await;
    }
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

#[tokio::test]
async fn it_holds_as_many_as_it_was_told_and_forgets_who_is_idle() {
    let (cache, database) = cache(100);
    database.answer(100_000);
    for number in 0..1_000 {
        wait(cache.get(&number.to_string())).await.unwrap();
        assert!(
            known(&cache.get("busy")).is_some()
                || number < 1
                || wait(cache.get("busy")).await.is_ok()
        );
        assert!(cache.len() <= 100);
    }
    assert_eq!(cache.len(), 100);
    assert!(known(&cache.get("busy")).is_some());
}
