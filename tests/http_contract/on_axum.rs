//! The ways to install a limiter in axum.

use std::sync::Arc;

use axum::extract::Request;
use axum::extract::ws::WebSocketUpgrade;
use axum::routing::get;
use axum::{Extension, Router};
use rl_core::OverLimit;
use rl_core::adapter::HttpLimiter;
use rl_core::denial::DenialBody;
use rl_core::key::Route;
use rl_core::{Permit, Subject};
use rl_tests::web::axum::{application, serve};
use rl_tests::web::{Axum, Fetch, Target, limiter, new_year};
use rl_tower::{DegradeLayer, Denied, RateLimit, RateLimitLayer};
use tower::{Layer, ServiceBuilder};

use super::settling::{settles_at, ten};

fn layer(limit: &str) -> RateLimitLayer {
    RateLimitLayer::new(limiter(&new_year(), &[limit]))
}

fn app() -> Router {
    application(&Arc::default())
}

#[tokio::test]
async fn a_layer_counts_all_routes_and_the_fallback_together() {
    let site = serve(app().layer(layer("3/minute")));
    assert_eq!(site.get("/").fetch().await.standing(), "200 3-2-60");
    assert_eq!(site.get("/users/7").fetch().await.standing(), "200 3-1-60");
    assert_eq!(site.get("/nowhere").fetch().await.standing(), "404 3-0-60");
    assert_eq!(site.get("/health").fetch().await.status, 429);
}

#[tokio::test]
async fn a_route_layer_counts_only_what_a_route_answers() {
    let site = serve(app().route_layer(layer("2/minute")));
    assert_eq!(site.get("/nowhere").fetch().await.standing(), "404");
    assert_eq!(site.get("/").fetch().await.standing(), "200 2-1-60");
    assert_eq!(site.get("/users/7").fetch().await.standing(), "200 2-0-60");
    assert_eq!(site.get("/").fetch().await.status, 429);
    assert_eq!(site.get("/nowhere").fetch().await.standing(), "404");
}

#[tokio::test]
async fn a_single_route_has_a_limit_of_its_own() {
    let limited = get(async || "limited").layer(layer("1/minute"));
    let site = serve(app().route("/limited", limited));
    assert_eq!(site.get("/limited").fetch().await.standing(), "200 1-0-60");
    assert_eq!(site.get("/limited").fetch().await.status, 429);
    assert_eq!(site.get("/").fetch().await.standing(), "200");
}

#[tokio::test]
async fn the_first_layer_of_a_stack_is_the_outermost() {
    let stack = ServiceBuilder::new().layer(layer("5/hour")).layer(layer("2/minute"));
    let site = serve(app().layer(stack));
    let answer = site.get("/").fetch().await;
    assert_eq!(answer.body, "store minute 1/2 < store hour 1/5");
    assert_eq!(answer.standing(), "200 2-1-60");
}

#[tokio::test]
async fn a_nested_router_has_limits_of_its_own_and_counts_whole_patterns() {
    let http = HttpLimiter::new(limiter(&new_year(), &["2/minute"])).key(Route);
    let inner = app().layer(RateLimitLayer::from(http));
    let site = serve(app().nest("/api", inner));
    assert_eq!(site.get("/users/1").fetch().await.standing(), "200");
    assert_eq!(site.get("/api/users/1").fetch().await.standing(), "200 2-1-60");
    assert_eq!(site.get("/api/users/2").fetch().await.standing(), "200 2-0-60");
    assert_eq!(site.get("/api/users/3").fetch().await.status, 429);
    assert_eq!(site.get("/api/health").fetch().await.standing(), "200 2-1-60");
    assert_eq!(site.get("/users/1").fetch().await.standing(), "200");
}

/// A layer that is added in two places is one limiter.
#[tokio::test]
async fn clones_of_a_layer_count_together() {
    let layer = layer("2/minute");
    let one = Router::new().route("/one", get(async || "")).layer(layer.clone());
    let two = Router::new().route("/two", get(async || "")).layer(layer);
    let site = serve(one.merge(two));
    assert_eq!(site.get("/one").fetch().await.standing(), "200 2-1-60");
    assert_eq!(site.get("/two").fetch().await.standing(), "200 2-0-60");
    assert_eq!(site.get("/one").fetch().await.status, 429);
}

/// The limiter is in front of a proxy. A denied request does not reach the service behind the
/// proxy.
#[tokio::test]
async fn a_limiter_in_front_of_a_proxy_spares_the_service_behind_it() {
    let http = HttpLimiter::new(limiter(&new_year(), &["1000/hour"]));
    let behind = Arc::new(Axum::serve(vec![http]));
    let upstream = Arc::clone(&behind);
    let proxy = async move |request: Request| {
        let path = request.uri().path();
        upstream.request(request.method().clone(), path).fetch().await.body
    };
    let site = serve(Router::new().fallback(proxy).layer(layer("2/minute")));
    let answer = site.get("/users/7").fetch().await;
    assert_eq!((answer.standing().as_str(), &*answer.body), ("200 2-1-60", "store hour 1/1000"));
    assert_eq!(site.post("/").fetch().await.standing(), "200 2-0-60");
    assert_eq!(site.get("/").fetch().await.standing(), "429 2-0-60, retry 60");
    assert_eq!(behind.handled(), 2);
}

#[tokio::test]
async fn the_service_inside_can_be_reached() {
    let mut limited: RateLimit<Router> = layer("1/minute").layer(app());
    assert!(limited.get_ref().has_routes());
    assert!(limited.get_mut().has_routes());
    assert!(limited.clone().into_inner().has_routes());
}

#[tokio::test]
async fn another_service_answers_degraded_requests() {
    let http =
        HttpLimiter::new(limiter(&new_year(), &["1/minute"])).on_over_limit(OverLimit::Degrade);
    let cached = Router::new().fallback(async || "from the cache");
    let site = serve(app().layer(DegradeLayer::new(cached)).layer(RateLimitLayer::from(http)));
    assert_eq!(site.get("/").fetch().await.body, "store minute 1/1");
    let degraded = site.get("/").fetch().await;
    assert_eq!((degraded.standing().as_str(), &*degraded.body), ("200 1-0-60", "from the cache"));
}

/// When the client disconnects, axum settles the request immediately. actix-web settles it only
/// when it next writes to the connection, which fails.
#[tokio::test]
async fn a_request_is_settled_when_its_client_disconnects() {
    let limiter = ten();
    let site = Axum::serve(vec![HttpLimiter::new(limiter.clone()).metered()]);
    let mut response = site.get("/streams").send().await.unwrap();
    assert_eq!(response.chunk().await.unwrap().unwrap(), "first ");
    drop(response);
    settles_at(&limiter, 5).await;
}

/// When the client disconnects, axum drops the handler of its request. actix-web lets the handler
/// run to its end.
#[tokio::test]
async fn a_place_is_free_when_the_client_disconnects() {
    let limiter = limiter(&new_year(), &["1:concurrency"]);
    let site = Axum::serve(vec![HttpLimiter::new(limiter.clone())]);
    let request = tokio::spawn(site.get("/waits").send());
    site.reached(1).await;
    assert_eq!(site.get("/").fetch().await.status, 429);
    request.abort();
    settles_at(&limiter, 0).await;
    assert_eq!(site.get("/").fetch().await.status, 200);
}

/// For hyper, the response to an upgrade ends immediately, so the handler has to hold the permit.
#[tokio::test]
async fn a_web_socket_holds_its_permit_until_it_is_closed() {
    let limiter = limiter(&new_year(), &["1:concurrency"]);
    let chat = async |upgrade: WebSocketUpgrade, Extension(permit): Extension<Permit>| {
        upgrade.on_upgrade(async move |mut socket| {
            while socket.recv().await.is_some() {}
            drop(permit);
        })
    };
    let app = app().route("/chat", get(chat)).layer(RateLimitLayer::new(limiter.clone()));
    let site = serve(app);
    let address = site.url("/chat").replacen("http", "ws", 1);
    let (mut socket, _) = tokio_tungstenite::connect_async(address).await.unwrap();
    assert_eq!(site.get("/").fetch().await.status, 429);
    socket.close(None).await.unwrap();
    settles_at(&limiter, 0).await;
    assert_eq!(site.get("/").fetch().await.status, 200);
}

#[tokio::test]
async fn a_denied_decision_is_returned_from_a_handler() {
    let limiter = limiter(&new_year(), &["1/minute"]);
    let handler = async move || {
        let caller = Subject::user("alice");
        let decision = limiter.check(&caller, 1).await;
        Denied::check(decision, &caller).map(|_| "allowed")
    };
    let site = serve(Router::new().route("/", get(handler)));
    assert_eq!(site.get("/").fetch().await.standing(), "200");
    let denied = site.get("/").fetch().await;
    assert_eq!(denied.standing(), "429 1-0-60, retry 60");
    assert_eq!(
        denied.body,
        r#"{"code":429,"message":"Too many requests: 1 per minute. Try again in 60 seconds.","limit":"minute"}"#
    );
    assert_eq!(denied.header("cache-control"), Some("no-store"));
}

/// The inner decision is stricter than the outer one, because it denies. The response shows the
/// values of the inner decision.
#[tokio::test]
async fn a_denied_decision_of_a_handler_survives_the_layer_around_it() {
    let (inner, outer) = (limiter(&new_year(), &["0/minute"]), layer("9/hour"));
    let http = HttpLimiter::new(inner).denial_body(DenialBody::text());
    let handler = async move || -> Result<(), Denied> {
        let caller = Subject::user("alice");
        let decision = http.limiter().check(&caller, 1).await;
        Err(http.denied(decision, &caller).into())
    };
    let site = serve(Router::new().route("/", get(handler)).layer(outer));
    let denied = site.get("/").fetch().await;
    assert_eq!(denied.body, "Blocked: no requests are allowed.");
    assert_eq!((denied.status, denied.standing().as_str()), (429, "429 0-0"));
}
