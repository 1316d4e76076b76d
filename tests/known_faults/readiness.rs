//! Faults T1 to T5 of `README.md`: violations of the contract of tower's `Service`.

use std::convert::Infallible;
use std::marker::PhantomData;
use std::pin::pin;

use axum::routing::get;
use futures::FutureExt;
use http::{Request, StatusCode};
use rl_core::MissingKey;
use rl_core::RateLimiter;
use rl_core::adapter::HttpLimiter;
use rl_core::key::Identified;
use rl_tests::web::{Axum, Fetch, Target, limiter, new_year};
use rl_tower::{RateLimit, RateLimitLayer};
use tower::buffer::Buffer;
use tower::limit::{ConcurrencyLimit, GlobalConcurrencyLimitLayer};
use tower::{Layer, Service, ServiceBuilder, ServiceExt};

use super::{RecordingService, ScriptedStore, call, is_ready, layer};

fn request() -> Request<String> {
    Request::new(String::new())
}

fn one_per_minute() -> RateLimiter {
    limiter(&new_year(), &["1/minute"])
}

/// Some middlewares clone the inner service in `call`, and call the clone, which was never polled
/// for readiness. The inner service of this test panics if it is called in this way, like some
/// services of tower.
#[tokio::test]
async fn t01_the_service_that_is_ready_is_called() {
    let probe = RecordingService::default();
    let calls = probe.calls();

    let mut in_memory = layer(&limiter(&new_year(), &["9/minute"])).layer(probe.clone());
    for _ in 0..2 {
        call(&mut in_memory, request()).await.await.unwrap();
    }
    assert_eq!(calls(), 2);

    let store = ScriptedStore::default();
    let mut elsewhere = layer(&store.limiter()).layer(probe);
    for called in 3..=4 {
        let answer = call(&mut elsewhere, request()).await;
        assert!(store.grant());
        answer.await.unwrap();
        assert_eq!(calls(), called);
    }
}

/// Only the instance that was ready has the slot of a `Buffer` or the permit of a
/// `ConcurrencyLimit`. So a middleware must call that instance, not a clone.
#[tokio::test]
async fn t01_buffers_and_concurrency_limits_work_inside_the_layer() {
    let (store, probe) = (ScriptedStore::default(), RecordingService::default());
    let calls = probe.calls();
    let inside = ServiceBuilder::new().concurrency_limit(2).service(probe);
    let stack = Buffer::new(ConcurrencyLimit::new(inside, 1), 1);
    let mut limited = layer(&store.limiter()).layer(stack);
    for called in 1..=5 {
        let answer = call(&mut limited, request()).await;
        assert!(store.grant());
        assert_eq!(answer.await.unwrap().status(), StatusCode::OK);
        assert_eq!(calls(), called);
    }
}

/// A `Buffer` sends the request during `call`, before the returned future is polled. If a layer
/// calls the `Buffer` before the store has decided, a denied request is served.
#[tokio::test]
async fn t02_nothing_is_called_before_the_verdict() {
    let (store, probe) = (ScriptedStore::default(), RecordingService::default());
    let calls = probe.calls();
    let mut buffer = Buffer::new(probe, 8);
    let mut limited = layer(&store.limiter()).layer(buffer.clone());

    let denied = tokio::spawn(call(&mut limited, request()).await);
    let granted = tokio::spawn(call(&mut limited, request()).await);
    assert_eq!(store.asked(), 2);
    // The buffer serves requests in order. If the two requests above had reached it, it would serve
    // them before the next one.
    call(&mut buffer, request()).await.await.unwrap();
    assert_eq!(calls(), 1);

    assert!(store.deny());
    assert_eq!(denied.await.unwrap().unwrap().status(), StatusCode::TOO_MANY_REQUESTS);
    call(&mut buffer, request()).await.await.unwrap();
    assert_eq!(calls(), 2);

    assert!(store.grant());
    assert_eq!(granted.await.unwrap().unwrap().status(), StatusCode::OK);
    assert_eq!(calls(), 3);
}

/// A ready service may hold a scarce resource, such as a permit. If denied requests kept it, a few
/// denied clients would keep all others out.
#[tokio::test]
async fn t03_a_denial_gives_back_what_readiness_holds() {
    let (store, probe) = (ScriptedStore::default(), RecordingService::default());
    let calls = probe.calls();
    let only_one = GlobalConcurrencyLimitLayer::new(1).layer(probe);
    let mut other = only_one.clone();
    let mut limited = layer(&store.limiter()).layer(only_one);

    let mut answer = pin!(call(&mut limited, request()).await);
    assert!(answer.as_mut().now_or_never().is_none());
    assert!(!is_ready(&mut other));

    assert!(store.deny());
    let denied = answer.as_mut().await.unwrap();
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    // The response, its future and the middleware still exist. None of them may hold the permit any
    // more.
    assert!(is_ready(&mut other));
    assert_eq!(calls(), 0);
}

/// The memory store denies without waiting. This path must release the inner service as well.
#[tokio::test]
async fn t03_a_denial_at_once_gives_back_what_readiness_holds() {
    let only_one = GlobalConcurrencyLimitLayer::new(1).layer(RecordingService::default());
    let mut other = only_one.clone();

    let mut limited = layer(&one_per_minute()).layer(only_one.clone());
    let answer = call(&mut limited, request()).await.await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    let denied = call(&mut limited, request()).await.await.unwrap();
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(is_ready(&mut other));
    drop(other);

    let mut other = only_one.clone();
    let http =
        HttpLimiter::new(one_per_minute()).key(Identified).on_missing_key(MissingKey::Reject);
    let mut limited = RateLimitLayer::from(http).layer(only_one);
    let denied = call(&mut limited, request()).await.await.unwrap();
    assert_eq!(denied.status(), StatusCode::FORBIDDEN);
    assert!(is_ready(&mut other));
}

/// A client disconnects while the store decides. Its request is not served, and the inner service
/// is released.
#[tokio::test]
async fn t03_a_client_that_hangs_up_leaves_nothing_behind() {
    let (store, probe) = (ScriptedStore::default(), RecordingService::default());
    let calls = probe.calls();
    let only_one = GlobalConcurrencyLimitLayer::new(1).layer(probe);
    let mut limited = layer(&store.limiter()).layer(only_one);

    for _ in 0..3 {
        let answer = call(&mut limited, request()).await;
        assert_eq!(store.asked(), 1);
        drop(answer);
        assert!(!store.grant(), "the caller no longer waits for the answer");
    }
    assert_eq!((store.asked(), calls()), (0, 0));

    let answer = call(&mut limited, request()).await;
    assert!(store.grant());
    assert_eq!(answer.await.unwrap().status(), StatusCode::OK);
    assert_eq!(calls(), 1);
}

/// Over the network, the server notices that the client has disconnected, and drops the request.
/// (actix-web serves it to its end.)
#[tokio::test]
async fn t03_the_request_of_a_connection_that_ends_is_not_served() {
    let store = ScriptedStore::default();
    let site = Axum::serve(vec![HttpLimiter::new(store.limiter())]);
    let impatient = tokio::spawn(site.get("/").fetch());
    store.is_asked().await;
    impatient.abort();
    store.is_given_up().await;

    let patient = tokio::spawn(site.get("/").fetch());
    store.is_asked().await;
    assert!(store.grant());
    assert_eq!((patient.await.unwrap().status, site.handled()), (200, 1));
}

/// axum creates a service for each route, and clones it for each connection. Counters inside the
/// service would be separate for each connection.
#[tokio::test]
async fn t04_clones_and_siblings_count_together() {
    let layer = layer(&limiter(&new_year(), &["4/minute"]));
    let one = layer.layer(RecordingService::default());
    let services = [
        one.clone(),
        one,
        layer.layer(RecordingService::default()),
        layer.clone().layer(RecordingService::default()),
    ];
    let mut statuses = Vec::new();
    for service in services.iter().chain(&services[..2]) {
        statuses.push(service.clone().oneshot(request()).await.unwrap().status().as_u16());
    }
    assert_eq!(statuses, [200, 200, 200, 200, 429, 429]);
}

/// A middleware with its own error type, or with a boxed one, cannot be used in `Router::layer`.
#[tokio::test]
async fn t05_a_denial_is_a_response_and_the_error_type_is_that_of_the_inner_service() {
    fn error<S: Service<Request<String>>>(_: &S) -> PhantomData<S::Error> {
        PhantomData
    }
    let service: RateLimit<RecordingService> =
        layer(&one_per_minute()).layer(RecordingService::default());
    let _: PhantomData<Infallible> = error(&service);

    let app = axum::Router::new().route("/", get(async || "hello"));
    let site = rl_tests::web::axum::serve(app.layer(layer(&one_per_minute())));
    assert_eq!(site.get("/").fetch().await.status, 200);
    assert_eq!(site.get("/").fetch().await.status, 429);
}
