//! Fault T13 of `README.md`: connections without an address.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use actix_web::dev::{Service, ServiceResponse};
use actix_web::test::TestRequest;
use actix_web::{App, HttpServer, web};
use axum::Router;
use axum::routing::get;
use rl_actix::RateLimit;
use rl_core::adapter::HttpLimiter;
use rl_core::client_ip::ClientIp;
use rl_core::key::{ClientAddress, Identified};
use rl_core::rules::{Match, Rule, Rules, RulesFile};
use rl_core::{Limit, MissingKey, RateLimiter};
use rl_tests::web::{Answer, Fetch, limiter, new_year};
use rl_tower::RateLimitLayer;
use tower::ServiceExt;

fn http() -> HttpLimiter {
    HttpLimiter::new(limiter(&new_year(), &["1/minute"]))
}

fn app() -> Router {
    Router::new().route("/", get(async || "hello"))
}

/// Sends a request to the server that listens on a Unix socket.
async fn ask(socket: &Path, forwarded_for: &str) -> Answer {
    let client = reqwest::Client::builder().unix_socket(socket).build().unwrap();
    client.get("http://localhost/").header("x-forwarded-for", forwarded_for).fetch().await
}

/// Checks the three ways to treat connections without an address: reject them, count them together,
/// or trust their forwarding header.
async fn contract(strict: &Path, shared: &Path, behind_a_proxy: &Path) {
    // By default no forwarding header is trusted.
    assert_eq!(ask(strict, "198.51.100.7").await.standing(), "500");

    assert_eq!(ask(shared, "198.51.100.7").await.standing(), "200 1-0-60");
    assert_eq!(ask(shared, "198.51.100.8").await.standing(), "429 1-0-60, retry 60");

    assert_eq!(ask(behind_a_proxy, "198.51.100.7").await.standing(), "200 1-0-60");
    assert_eq!(ask(behind_a_proxy, "198.51.100.8").await.standing(), "200 1-0-60");
    assert_eq!(ask(behind_a_proxy, "198.51.100.7").await.standing(), "429 1-0-60, retry 60");
}

fn limiters() -> [HttpLimiter; 3] {
    let local = ClientIp::with_proxies("10.0.0.0/8".parse().unwrap()).trust_local();
    [http(), http().on_missing_key(MissingKey::Share), http().key(ClientAddress::new(local))]
}

/// A `peer_addr().unwrap()` would panic for each request over a Unix socket.
#[tokio::test]
async fn t13_over_a_unix_socket_axum_answers_as_it_is_set() {
    let folder = tempfile::tempdir().unwrap();
    let sockets = ["strict", "shared", "behind"].map(|name| folder.path().join(name));
    for (socket, http) in sockets.iter().zip(limiters()) {
        let listener = tokio::net::UnixListener::bind(socket).unwrap();
        let app = app().layer(RateLimitLayer::from(http));
        tokio::spawn(async move { axum::serve(listener, app).await });
    }
    contract(&sockets[0], &sockets[1], &sockets[2]).await;
}

#[tokio::test]
async fn t13_over_a_unix_socket_actix_answers_as_it_is_set() {
    let folder = tempfile::tempdir().unwrap();
    let sockets = ["strict", "shared", "behind"].map(|name| folder.path().join(name));
    for (socket, http) in sockets.iter().zip(limiters()) {
        let limit = RateLimit::from(http);
        let hello = || web::get().to(async || "hello");
        let app = move || App::new().wrap(limit.clone()).route("/", hello());
        let server = HttpServer::new(app).workers(1).disable_signals();
        tokio::spawn(server.bind_uds(socket).unwrap().run());
    }
    contract(&sockets[0], &sockets[1], &sockets[2]).await;
}

/// Returns limiters that need the address: for the default key, for the key of a rule, for the
/// match of a rule, and for the key of a rule in a file.
fn by_address() -> [HttpLimiter; 4] {
    let limiter =
        |rules: Rules| HttpLimiter::new(RateLimiter::builder().rules(rules).build().unwrap());
    let under = |rule: Rule| limiter(Rules::new().rule(rule.limit(Limit::per_minute(1))));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("limits.yaml");
    std::fs::write(folder.path().join("keys.yaml"), "[]").unwrap();
    let file = "keys: { from: bearer, file: keys.yaml }\n\
                rules: { clients: { per: [key, address], limits: 1/minute } }";
    std::fs::write(&path, file).unwrap();
    let from_file = RulesFile::builder(&path).pause(Duration::from_millis(10)).read().unwrap();
    let everywhere = Match::new().address("0.0.0.0/0").address("::/0");
    [
        http(),
        under(Rule::named("clients").per(Identified).per(ClientAddress::default())),
        under(Rule::named("everywhere").matching(everywhere)),
        limiter(from_file),
    ]
}

/// Fault: the server did not report the peer, and the client was blamed with 403. A rule that
/// matches by address did not count such requests at all.
#[tokio::test]
async fn without_connect_info_axum_reports_a_fault_of_the_server() {
    for http in by_address() {
        let limited = app().layer(RateLimitLayer::from(http));
        for (peer, status) in
            [(None, 500), (Some([192, 0, 2, 7]), 200), (Some([192, 0, 2, 7]), 429)]
        {
            let mut request = http::Request::new(axum::body::Body::empty());
            if let Some(peer) = peer {
                request.extensions_mut().insert(SocketAddr::from((peer, 80)));
            }
            let answer = limited.clone().oneshot(request).await.unwrap();
            assert_eq!(answer.status(), status);
        }
    }
}

#[test]
fn without_a_peer_actix_reports_a_fault_of_the_server() {
    actix_web::rt::System::new().block_on(async {
        for http in by_address() {
            let hello = web::get().to(async || "hello");
            let app = App::new().wrap(RateLimit::from(http)).route("/", hello);
            let app = actix_web::test::init_service(app).await;
            let request = TestRequest::get;
            let answer: ServiceResponse<_> = app.call(request().to_request()).await.unwrap();
            assert_eq!(answer.status().as_u16(), 500);
            for status in [200, 429] {
                let request = request().peer_addr(([192, 0, 2, 7], 80).into());
                let answer: ServiceResponse<_> = app.call(request.to_request()).await.unwrap();
                assert_eq!(answer.status().as_u16(), status);
            }
        }
    });
}

/// axum provides the peer address only with connect-info.
#[tokio::test]
async fn t13_without_connect_info_axum_answers_as_it_is_set() {
    for (http, status) in limiters().into_iter().zip([500, 200, 403]) {
        let limited = app().layer(RateLimitLayer::from(http));
        let answer = limited.oneshot(http::Request::new(axum::body::Body::empty())).await.unwrap();
        assert_eq!(answer.status(), status);
    }
}

/// Requests in unit tests of actix-web have no peer address either.
#[test]
fn t13_in_a_test_of_actix_the_answer_is_as_it_is_set() {
    actix_web::rt::System::new().block_on(async {
        for (http, status) in limiters().into_iter().zip([500, 200, 403]) {
            let hello = web::get().to(async || "hello");
            let app = App::new().wrap(RateLimit::from(http)).route("/", hello);
            let app = actix_web::test::init_service(app).await;
            let answer: ServiceResponse<_> =
                app.call(TestRequest::get().to_request()).await.unwrap();
            assert_eq!(answer.status().as_u16(), status);
        }
    });
}
