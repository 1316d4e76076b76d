//! Faults T11 and T12 of `README.md`: state that is not shared, and state that is lost when a
//! handle is dropped.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use actix_web::{App, web};
use rl_actix::RateLimit;
use rl_core::adapter::HttpLimiter;
use rl_core::store::Store;
use rl_core::{Limit, MemoryStore, RateLimiter, RedisStore, Subject};
use rl_tests::RedisServer;
use rl_tests::web::{self as servers, Fetch, client, limiter, new_year};

use super::layer;

/// actix-web creates its app once for each worker. If an app creates its own counters, each worker
/// grants the whole limit. All workers can share one limiter only if it can be sent to other
/// threads.
#[tokio::test]
async fn t11_workers_count_together() {
    fn assert_shared<T: Clone + Send + Sync + 'static>(_: &T) {}
    let limiter = limiter(&new_year(), &["20/minute"]);
    assert_shared(&limiter);
    assert_shared(&HttpLimiter::new(limiter.clone()));

    let site = servers::actix::serve(move || {
        let worker = async || format!("{:?}", std::thread::current().id());
        App::new().wrap(RateLimit::new(limiter.clone())).route("/", web::get().to(worker))
    });
    let clients: Vec<_> = (0..10).map(|_| client()).collect();
    let mut workers = BTreeSet::new();
    let mut passed = 0;
    for _ in 0..6 {
        for client in &clients {
            let answer = client.get(site.url("/")).fetch().await;
            if answer.status == 200 {
                passed += 1;
                workers.insert(answer.body);
            }
        }
    }
    assert_eq!((passed, workers.len()), (20, 2), "{workers:?}");
}

/// In some limiters, dropping one handle stops a background task or closes connections, and all
/// clones of the handle lose them.
#[tokio::test]
async fn t12_a_dropped_handle_takes_nothing_from_the_others() {
    /// Makes five requests under a limit of four. Drops a clone of the limiter, a layer and an
    /// `HttpLimiter` after each of them.
    async fn contract(store: impl Store + Clone) -> RateLimiter {
        let patient = RateLimiter::builder().deadline(Duration::from_secs(60));
        let limiter = patient.limit(Limit::per_day(4)).store(store.clone()).build().unwrap();
        drop(store);
        for allowed in [true, true, true, true, false] {
            let clone = limiter.clone();
            assert_eq!(clone.check(&Subject::user("alice"), 1).await.is_allowed(), allowed);
            drop((clone, layer(&limiter), HttpLimiter::new(limiter.clone())));
        }
        limiter
    }

    let clock = new_year();
    let memory = contract(Arc::new(MemoryStore::builder().clock(clock.clone()).build())).await;
    clock.advance(Duration::from_secs(86_400));
    assert!(memory.check(&Subject::user("alice"), 1).await.is_allowed());

    let redis = RedisServer::start();
    let patient = RedisStore::builder(&redis.url()).connection_wait(Duration::from_secs(60));
    contract(patient.connect().await.unwrap()).await;
}
