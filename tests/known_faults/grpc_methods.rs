//! Requests to gRPC services with another method than `POST`, over HTTP/2 and beside routes of
//! axum.
//!
//! tonic chooses the handler by the path alone, so clients got around rules for `POST`.

use std::net::{Ipv4Addr, SocketAddr};

use axum::Router;
use axum::response::IntoResponse;
use axum::routing::any;
use http::{Request, Response};
use http_body_util::Full;
use rl_core::key::{ClientAddress, Method};
use rl_core::rules::{Match, Rule, Rules};
use rl_core::{Limit, MemoryStore, RateLimiter};
use rl_tests::web::{axum as axum_web, new_year};
use rl_tower::RateLimitLayer;
use tonic::Code;
use tonic::body::Body;
use tonic::service::Routes;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tower::{Layer, Service, ServiceExt};

const CHECK: &str = "/grpc.health.v1.Health/Check";
const METHODS: [&str; 8] = ["POST", "PUT", "GET", "HEAD", "OPTIONS", "DELETE", "BREW", "post"];
/// A message without fields, as gRPC frames it.
const MESSAGE: [u8; 5] = [0; 5];

fn limiter(rules: Rules) -> RateLimiter {
    let store = MemoryStore::builder().clock(new_year()).build();
    RateLimiter::builder().rules(rules).store(store).build().unwrap()
}

fn layer(rules: Rules) -> RateLimitLayer {
    RateLimitLayer::new(limiter(rules))
}

fn calls(max: u32) -> Rule {
    Rule::named("calls").per(ClientAddress::default()).limit(Limit::per_hour(max))
}

fn posts(path: &str, max: u32) -> Rules {
    Rules::new().rule(calls(max).on("POST", path))
}

fn health() -> Routes {
    Routes::new(tonic_health::server::health_reporter().1)
}

/// Serves the routes over HTTP/2 without TLS, and connects a client.
async fn serve(layer: RateLimitLayer, routes: Routes) -> Channel {
    let incoming = TcpIncoming::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let address: SocketAddr = incoming.local_addr().unwrap();
    let server = Server::builder().layer(layer).add_routes(routes);
    tokio::spawn(server.serve_with_incoming(incoming));
    connect(address).await
}

async fn connect(address: SocketAddr) -> Channel {
    Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap()
}

fn request(method: &str, path: &str) -> http::request::Builder {
    Request::builder().method(method).uri(path).header("content-type", "application/grpc")
}

async fn send(
    channel: &mut Channel,
    request: http::request::Builder,
    body: &[u8],
) -> Response<Body> {
    let body = if body.is_empty() {
        Body::empty()
    } else {
        Body::new(Full::new(axum::body::Bytes::copy_from_slice(body)))
    };
    let ready = channel.ready().await.unwrap();
    ready.call(request.body(body).unwrap()).await.unwrap()
}

fn is_denied(response: &Response<Body>) -> bool {
    let status = response.headers().get("grpc-status");
    response.status() == 429
        || status.is_some_and(|status| status == &*(Code::ResourceExhausted as i32).to_string())
}

/// Sends a call with each method and two types of content. Returns how many were not denied.
async fn served(channel: &mut Channel, lines: &[(&str, &str)], body: &[u8]) -> usize {
    let mut served = 0;
    for method in METHODS {
        for content_type in ["application/grpc", "text/plain"] {
            let request = Request::builder().method(method).uri(CHECK);
            let request = request.header("content-type", content_type);
            let request =
                lines.iter().fold(request, |all, (name, value)| all.header(*name, *value));
            let response = send(channel, request, body).await;
            served += usize::from(!is_denied(&response));
        }
    }
    served
}

#[tokio::test]
async fn a_rule_for_post_counts_grpc_calls_of_every_method() {
    let mut channel = serve(layer(posts(CHECK, 3)), health()).await;
    let response = send(&mut channel, request("PUT", CHECK), &MESSAGE).await;
    let answer = http_body_util::BodyExt::collect(response.into_body()).await.unwrap();
    let status = answer.trailers().unwrap().get("grpc-status").unwrap().clone();
    assert_eq!(status, "0", "tonic serves the call");
    assert_eq!(served(&mut channel, &[], &MESSAGE).await, 2, "of 3, one is used up");
}

#[tokio::test]
async fn no_method_exempts_a_grpc_call() {
    let preflight = [("origin", "https://example.org"), ("access-control-request-method", "PUT")];
    let any_method = || Rules::new().rule(calls(3));
    let exempt = METHODS[1..7]
        .iter()
        .fold(any_method(), |rules, method| rules.exempt(Match::new().method(*method).path(CHECK)));
    for layer in [
        layer(any_method()).exempt_preflights(),
        layer(any_method()).exempt(|request| request.method() != "POST"),
        layer(exempt),
    ] {
        let mut channel = serve(layer, health()).await;
        assert_eq!(served(&mut channel, &preflight, &[]).await, 3);
    }
}

#[tokio::test]
async fn grpc_calls_of_all_methods_have_one_counter() {
    let rule = Rule::named("calls").per(Method).limit(Limit::per_hour(3));
    let mut channel = serve(layer(Rules::new().rule(rule)), health()).await;
    assert_eq!(served(&mut channel, &[], &MESSAGE).await, 3);
}

/// Returns a router of axum with a gRPC service and a route of its own.
fn mixed() -> Router {
    health().into_axum_router().route("/page", any(async || "page"))
}

/// Returns rules for the routes of [`mixed`] below a prefix.
fn mixed_rules(prefix: &str) -> Rules {
    let page = Rule::named("page").on("POST", format!("{prefix}/page"));
    posts(&format!("{prefix}{CHECK}"), 3).rule(page.limit(Limit::per_hour(1)))
}

/// The limiter recognizes the routes of gRPC services. Outside the routes, it recognizes the path
/// of a call.
#[tokio::test]
async fn a_rule_for_post_counts_grpc_calls_beside_routes_of_axum() {
    let outside = layer(mixed_rules("")).layer(mixed());
    let outside =
        ServiceExt::<axum::extract::Request>::map_response(outside, |response: Response<_>| {
            response.into_response()
        });
    let by_hand = Router::new()
        .route_service("/grpc.health.v1.Health/{method}", tonic_health::server::health_reporter().1)
        .route("/page", any(async || "page"))
        .layer(layer(mixed_rules("")));
    let [any_path, any_service] = ["/{*rest}", "/{service}/{method}"].map(|route| {
        let health = tonic_health::server::health_reporter().1;
        let router =
            Router::new().route_service(route, health).route("/page", any(async || "page"));
        router.layer(layer(mixed_rules("")))
    });
    let nested = Router::new().nest("/v1", mixed()).layer(layer(mixed_rules("/v1")));
    for (router, prefix) in [
        (mixed().layer(layer(mixed_rules(""))), ""),
        (Router::new().fallback_service(outside), ""),
        (by_hand, ""),
        (any_path, ""),
        (any_service, ""),
        (nested, "/v1"),
    ] {
        let site = axum_web::serve(router);
        let mut served = 0;
        for method in METHODS {
            let call = format!(
                "{method} {prefix}{CHECK} HTTP/1.1\r\nhost: a\r\ncontent-type: text/plain\r\n\
                 content-length: 5\r\nconnection: close\r\n\r\n\0\0\0\0\0"
            );
            served += usize::from(rl_tests::web::statuses(&site.send(call).await) == [200]);
        }
        assert_eq!(served, 3, "{prefix}");
        for method in ["GET", "PUT", "GET"] {
            let call =
                format!("{method} {prefix}/page HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
            let status = rl_tests::web::statuses(&site.send(call).await);
            assert_eq!(status, [200], "no rule for POST counts {method}");
        }
    }
}

/// Fault: under a route that does not name the service, the method avoided every rule.
#[tokio::test]
async fn a_route_for_any_service_avoids_no_rule_inside_a_server_of_tonic() {
    let preflight = [("origin", "https://example.org"), ("access-control-request-method", "PUT")];
    for route in ["/{*rest}", "/{service}/{method}", "/{service}/{*rest}"] {
        for (limited, lines) in [
            (layer(posts(CHECK, 3)), &[][..]),
            (layer(Rules::new().rule(calls(3))).exempt_preflights(), &preflight[..]),
        ] {
            let health = tonic_health::server::health_reporter().1;
            let router = Router::new().route_service(route, health).layer(limited);
            let incoming = TcpIncoming::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
            let address = incoming.local_addr().unwrap();
            let server = Server::builder().add_routes(Routes::from(router));
            tokio::spawn(server.serve_with_incoming(incoming));
            let mut channel = connect(address).await;
            assert_eq!(served(&mut channel, lines, &[]).await, 3, "{route}");
        }
    }
}

/// Fault: the route of a router outside of a middleware that rewrites the path hid the call.
#[tokio::test]
async fn a_route_outside_of_a_rewritten_path_hides_no_call() {
    let limited = layer(posts(CHECK, 3)).layer(health().into_axum_router());
    let rewrite = |mut request: axum::extract::Request| {
        *request.uri_mut() = http::Uri::from_static(CHECK);
        request
    };
    let rewritten = limited.map_request(rewrite).map_response(IntoResponse::into_response);
    let site = axum_web::serve(Router::new().route_service("/check", rewritten));
    let mut served = 0;
    for method in METHODS {
        let call = format!(
            "{method} /check HTTP/1.1\r\nhost: a\r\ncontent-type: text/plain\r\n\
             content-length: 5\r\nconnection: close\r\n\r\n\0\0\0\0\0"
        );
        served += usize::from(rl_tests::web::statuses(&site.send(call).await) == [200]);
    }
    assert_eq!(served, 3);
}

/// Over HTTP/2, the headers of a request need not announce its body.
#[tokio::test]
async fn a_preflight_with_a_body_is_counted_over_http_2() {
    let limited = layer(Rules::new().rule(calls(2))).exempt_preflights();
    let router = Router::new().route("/page", any(async || "page")).layer(limited);
    let incoming = TcpIncoming::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let address = incoming.local_addr().unwrap();
    let server = Server::builder().add_routes(Routes::from(router));
    tokio::spawn(server.serve_with_incoming(incoming));
    let mut channel = connect(address).await;
    let preflight = || {
        let request = Request::options("/page").header("origin", "https://example.org");
        request.header("access-control-request-method", "PUT")
    };
    for _ in 0..5 {
        let response = send(&mut channel, preflight(), &[]).await;
        assert_eq!(response.status(), 200);
        assert!(!response.headers().contains_key("x-rate-limit-remaining"), "it is exempt");
    }
    for expected in [200, 200, 429] {
        let body = Body::new(http_body_util::StreamBody::new(futures::stream::iter([Ok::<
            _,
            tonic::Status,
        >(
            http_body::Frame::data(axum::body::Bytes::from_static(b"work")),
        )])));
        let ready = channel.ready().await.unwrap();
        let response = ready.call(preflight().body(body).unwrap()).await.unwrap();
        assert_eq!(response.status(), expected);
    }
}
