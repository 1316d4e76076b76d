//! The connections of a store live in another runtime than a request, as in actix-web.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rl_core::{Limit, Origin, RateLimiter, RedisStore, Subject};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::advance;

use super::GIVE_UP;
use super::fake_redis::FakeRedis;

/// Returns a runtime that only runs while the test blocks on it.
fn runtime(has_paused_clock: bool) -> Runtime {
    Builder::new_current_thread().enable_all().start_paused(has_paused_clock).build().unwrap()
}

/// Lets all tasks of this runtime run until they wait.
async fn run_tasks() {
    for _ in 0..100 {
        yield_now().await;
    }
}

async fn yield_until(mut condition: impl FnMut() -> bool) {
    while !condition() {
        yield_now().await;
    }
}

/// Fault: a request whose timer fired late looked at the socket once more in its own runtime only.
/// The reply that waited in the socket was not read, and the request was allowed undecided.
#[test]
fn a_late_request_waits_until_the_runtime_of_the_store_has_read_its_replies() {
    let in_background = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server = in_background.block_on(FakeRedis::cluster(1)).remove(0);
    let subject = Subject::user("alice");
    for coalesce in [true, false] {
        let [of_store, of_request] = [false, true].map(runtime);
        let store = RedisStore::builder(&server.url()).coalesce(coalesce).connection_wait(GIVE_UP);
        let store = of_store.block_on(store.connect()).unwrap();
        let limiter = RateLimiter::builder().limit(Limit::per_hour(1_000)).store(store);
        let limiter = limiter.deadline(GIVE_UP).build().unwrap();
        let decision = of_store.block_on(async { limiter.check(&subject, 1).await });
        assert_eq!(decision.origin(), Origin::Store);

        // While a blocking task runs, tokio does not advance the clock of the request by itself.
        let (stops_clock, stopped) = mpsc::channel::<()>();
        of_request.spawn_blocking(move || stopped.recv());
        server.hold_replies(true);
        let calls = server.calls();
        let decision = {
            let _in_runtime = of_request.enter();
            tokio::spawn(limiter.check(&subject, 1))
        };
        of_request.block_on(run_tasks());
        of_store.block_on(yield_until(|| server.calls() > calls));
        // The reply arrives, but no thread runs the runtime of the store.
        server.hold_replies(false);
        in_background.block_on(yield_until(|| server.replies() == server.calls()));
        of_request.block_on(async {
            advance(GIVE_UP + Duration::from_millis(100)).await;
            run_tasks().await;
        });
        let (stops_store, stopped_store) = oneshot::channel::<()>();
        let decision = thread::scope(|scope| {
            scope.spawn(|| of_store.block_on(stopped_store));
            let decision = of_request.block_on(decision).unwrap();
            drop(stops_store);
            decision
        });
        assert_eq!(decision.origin(), Origin::Store, "coalesce: {coalesce}");
        drop(stops_clock);
    }
}
