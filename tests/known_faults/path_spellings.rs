//! Ways to write a path with which clients got around a rule.
//!
//! A rule allows three requests, and a client sends twenty.

use std::sync::Arc;
use std::time::Duration;

use actix_web::middleware::{Condition, NormalizePath, TrailingSlash};
use actix_web::{App, web};
use axum::Router;
use axum::extract::{Path, Request};
use axum::response::IntoResponse;
use axum::routing::{any, get};
use http::{Method, StatusCode, Uri};
use rl_actix::RateLimit;
use rl_core::key::ClientAddress;
use rl_core::rules::{Match, Rule, Rules};
use rl_core::time::ManualClock;
use rl_core::{Limit, MemoryStore, RateLimiter};
use rl_tests::web::{Site, actix, axum as axum_web, new_year, statuses};
use rl_tower::RateLimitLayer;
use tower::{Layer, ServiceExt};
use tower_http::normalize_path::NormalizePathLayer;

const SPELLINGS: [&str; 37] = [
    "/%65xport/a%2Fb",
    "/%65xport/%2F",
    "/%65xport/.",
    "/%65xport/%2e%2e",
    "/%65xport/a%252Fb",
    "/%65xport/a%2F",
    "/%65xport/%c3%28%2Fb",
    "/export/a%2Fb",
    "/export/a%2Fb/",
    "/export/a/",
    "/export/..",
    "/export/%2F",
    "/export/%c3%28/",
    "//export/a%2Fb",
    "//export/a%2Fb/?x=1",
    "///export/..//",
    "/./export/a%2Fb/",
    "/x/../export/a%2Fb",
    "/%2e/export/a%2Fb",
    "http://h/export/a%2Fb/",
    "http://h//export/a%2Fb",
    "/%74enants/a%2Fb/login",
    "/%74enants/../login",
    "/%74enants/%2e/login",
    "/tenants/../login",
    "/tenants/../login/",
    "/tenants/%2e%2e/login/",
    "//tenants/a%2Fb/login",
    "/tenants//login/",
    "//tenants//login",
    "/tenants//login//",
    "/%61pi/..",
    "/%61pi/.",
    "/%61pi/%2e%2e",
    "/%61pi/../../x",
    "/api/../x/",
    "//api/..",
];

/// Returns a limiter with a rule for each route, which allows three requests per hour.
fn limiter(clock: &Arc<ManualClock>) -> RateLimiter {
    let rule = |name: &str, template: &str| {
        let rule = Rule::named(name).matching(Match::new().path(template));
        rule.per(ClientAddress::default()).limit(Limit::per_hour(3))
    };
    let rules = Rules::new()
        .rule(rule("export", "/export/{name}"))
        .rule(rule("login", "/tenants/{tenant}/login"))
        .rule(rule("api", "/api/{*rest}"));
    let store = MemoryStore::builder().clock(Arc::clone(clock)).build();
    RateLimiter::builder().rules(rules).store(store).build().unwrap()
}

/// Sends each path twenty times in an hour of its own. Checks that three of these requests reach a
/// handler, or none, and returns the number of paths that reach one.
async fn attack(serve: impl FnOnce(RateLimiter) -> Site) -> usize {
    let clock = new_year();
    let site = serve(limiter(&clock));
    let mut reached = 0;
    for path in SPELLINGS {
        clock.advance(Duration::from_secs(3_600));
        let mut served = 0;
        for _ in 0..20 {
            let request = format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
            let status = statuses(&site.send(request).await);
            assert!(matches!(*status, [200 | 301 | 400 | 404 | 429]), "{path}: {status:?}");
            served += usize::from(status == [200]);
        }
        assert!([0, 3].contains(&served), "{path} was served {served} times of 20");
        reached += usize::from(served > 0);
    }
    reached
}

async fn show(Path(name): Path<String>) -> String {
    name
}

fn router() -> Router {
    Router::new()
        .route("/export/{name}", get(show))
        .route("/tenants/{tenant}/login", get(show))
        .route("/api/{*rest}", get(show))
}

#[tokio::test]
async fn spellings_of_a_path_avoid_no_rule_on_axum() {
    let trim = NormalizePathLayer::trim_trailing_slash;
    let alone = |limiter| axum_web::serve(router().layer(RateLimitLayer::new(limiter)));
    assert!(attack(alone).await >= 5);
    // The outermost router keeps the path as it was sent, in `OriginalUri`.
    let outside = |limiter| {
        let inner = RateLimitLayer::new(limiter).layer(trim().layer(router()));
        let into_response = |response: http::Response<_>| response.into_response();
        let inner = ServiceExt::<Request>::map_response(inner, into_response);
        axum_web::serve(Router::new().fallback_service(inner))
    };
    assert!(attack(outside).await >= 12);
    let inside = |limiter| {
        let inner = trim().layer(router().layer(RateLimitLayer::new(limiter)));
        axum_web::serve(Router::new().fallback_service(inner))
    };
    assert!(attack(inside).await >= 12);
    let with_slash = |limiter| {
        let append = NormalizePathLayer::append_trailing_slash();
        let routes = Router::new().route("/tenants/{tenant}/login/", get(show));
        let inner = append.layer(routes.layer(RateLimitLayer::new(limiter)));
        axum_web::serve(Router::new().fallback_service(inner))
    };
    assert!(attack(with_slash).await >= 3);
}

/// Returns a site on actix-web, with a middleware that normalizes paths if a style is given.
fn on_actix(limiter: RateLimiter, style: Option<TrailingSlash>, is_limiter_outside: bool) -> Site {
    let limit = RateLimit::new(limiter);
    actix::serve(move || {
        let show = || web::get().to(|name: web::Path<String>| async move { name.into_inner() });
        let normalize = NormalizePath::new(style.unwrap_or(TrailingSlash::MergeOnly));
        App::new()
            .wrap(Condition::new(!is_limiter_outside, limit.clone()))
            .wrap(Condition::new(style.is_some(), normalize))
            .wrap(Condition::new(is_limiter_outside, limit.clone()))
            .route("/export/{name}", show())
            .route("/tenants/{tenant}/login", show())
            .route("/api/{rest:.+}", show())
    })
}

#[tokio::test]
async fn spellings_of_a_path_avoid_no_rule_on_actix() {
    assert!(attack(|limiter| on_actix(limiter, None, true)).await >= 16);
    for style in [TrailingSlash::Trim, TrailingSlash::MergeOnly] {
        for is_limiter_outside in [true, false] {
            let serve = |limiter| on_actix(limiter, Some(style), is_limiter_outside);
            assert!(attack(serve).await >= 16);
        }
    }
}

/// Returns a limiter with a rule for a path, which allows three requests per hour.
fn limiter_of(path: &str) -> RateLimiter {
    let rule = Rule::named("path").matching(Match::new().path(path)).per(ClientAddress::default());
    let store = MemoryStore::builder().clock(new_year()).build();
    let rules = Rules::new().rule(rule.limit(Limit::per_hour(3)));
    RateLimiter::builder().rules(rules).store(store).build().unwrap()
}

/// Returns a limiter with a rule for `GET` to a path, which allows three requests per hour.
fn get_limiter(path: &str) -> RateLimiter {
    let rule = Rule::named("socket").on("GET", path).per(ClientAddress::default());
    let store = MemoryStore::builder().clock(new_year()).build();
    let rules = Rules::new().rule(rule.limit(Limit::per_hour(3)));
    RateLimiter::builder().rules(rules).store(store).build().unwrap()
}

/// Sends six requests. Returns how many are not denied.
async fn served_by_axum(path: &str, method: Method, target: &Uri) -> usize {
    let peer: std::net::SocketAddr = "192.0.2.1:9".parse().unwrap();
    let router =
        Router::new().route("/socket", any(async || "open")).fallback(async || "forwarded");
    let router = router.layer(RateLimitLayer::new(get_limiter(path)));
    let mut served = 0;
    for _ in 0..6 {
        let request = Request::builder().method(&method).uri(target);
        let request = request.extension(axum::extract::ConnectInfo(peer));
        let request = request.body(axum::body::Body::empty()).unwrap();
        let status = router.clone().oneshot(request).await.unwrap().status();
        served += usize::from(status == StatusCode::OK);
    }
    served
}

/// A handler that forwards requests completes a path without a slash. `http` 1 refuses all of them
/// except `*`; the version of actix-web accepts more.
#[tokio::test]
async fn a_path_without_a_slash_avoids_no_rule_on_axum() {
    assert_eq!(served_by_axum("/login", Method::GET, &Uri::from_static("*")).await, 3);
}

/// Over HTTP/2, a client opens a WebSocket with `CONNECT` and a path.
#[tokio::test]
async fn a_web_socket_that_is_opened_by_connect_avoids_no_rule_for_get_on_axum() {
    let target = Uri::from_static("http://localhost/socket");
    assert_eq!(served_by_axum("/socket", Method::CONNECT, &target).await, 3);
}

#[test]
fn a_path_without_a_slash_avoids_no_rule_on_actix() {
    use actix_web::http::uri::{Parts, PathAndQuery, Uri};
    use actix_web::test::{TestRequest, init_service};

    actix_web::rt::System::new().block_on(async {
        for path in ["", "*", "login"] {
            let mut target = Parts::default();
            target.path_and_query = Some(PathAndQuery::try_from(path).unwrap());
            let target = Uri::from_parts(target).unwrap();
            let limit = RateLimit::new(get_limiter("/login"));
            let app = App::new().default_service(web::to(async || "forwarded")).wrap(limit);
            let app = init_service(app).await;
            let mut served = 0;
            for _ in 0..6 {
                let request = TestRequest::default().peer_addr("192.0.2.1:9".parse().unwrap());
                let mut request = request.to_request();
                request.head_mut().uri = target.clone();
                let response = actix_web::dev::Service::call(&app, request).await.unwrap();
                served += usize::from(response.status() == 200);
            }
            assert_eq!(served, 3, "{path:?}");
        }
    });
}

/// Sends six requests with a path. Returns how many responses end with the path `target`, which a
/// gateway has reached.
async fn reaching(site: &Site, path: &str, target: &str) -> usize {
    let mut reached = 0;
    for _ in 0..6 {
        let request = format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        reached += usize::from(site.send(request).await.ends_with(target.as_bytes()));
    }
    reached
}

/// A gateway forwards each request to a URL, in which a backslash is a slash.
#[tokio::test]
async fn a_backslash_avoids_no_rule_of_a_gateway() {
    async fn forward(request: Request) -> String {
        let target = format!("http://upstream{}", request.uri());
        reqwest::Url::parse(&target).map_or_else(|error| error.to_string(), |url| url.path().into())
    }
    for path in
        ["/login", "/x\\..\\login", "/x/..\\login", "/pub/a\\..\\..\\login", "/pub/%2e.\\login"]
    {
        let login = Match::new().path("/login");
        let rule = |name: &str| Rule::named(name).per(ClientAddress::default());
        let all = Rules::new().rule(rule("all").limit(Limit::per_hour(3)));
        for rules in [
            Rules::new().rule(rule("login").matching(login).limit(Limit::per_hour(3))),
            all.exempt(Match::new().path("/pub/{*rest}")),
        ] {
            let store = MemoryStore::builder().clock(new_year()).build();
            let limiter = RateLimiter::builder().rules(rules).store(store).build().unwrap();
            let gateway = Router::new().fallback(forward).layer(RateLimitLayer::new(limiter));
            let site = axum_web::serve(gateway);
            assert_eq!(reaching(&site, path, "/login").await, 3, "{path}");
        }
    }
}

/// Returns the path that a gateway requests from another service. It has decoded the rest of the
/// path that was sent to it, and has written it after the slash of a URL.
type Forward = fn(&str) -> Option<String>;

fn in_url(rest: &str) -> Option<String> {
    let url = reqwest::Url::parse(&format!("http://upstream/{rest}")).ok()?;
    Some(url.path().to_owned())
}

fn as_path_of_url(rest: &str) -> Option<String> {
    let mut url = reqwest::Url::parse("http://upstream/").ok()?;
    url.set_path(rest);
    Some(url.path().to_owned())
}

fn in_target(rest: &str) -> Option<String> {
    let target: Uri = format!("http://upstream/{rest}").parse().ok()?;
    Some(target.path().to_owned())
}

/// The steps of a client of URLs were one step. A client that does only some of them, or a service
/// that merges slashes at one place only, read a path that was none of the forms.
#[tokio::test]
async fn a_decoded_path_avoids_no_rule_of_a_gateway() {
    for (template, forward, path, target) in [
        ("/login", in_url as Forward, "/pub/x%00%5c..%5c..%5clogin", "/login"),
        ("/login", in_url, "/pub/x%00/.%09./.%09./login", "/login"),
        ("/login", as_path_of_url, "/pub/x%3f%5c..%5c..%5clogin", "/login"),
        ("/login", as_path_of_url, "/pub/x%23%5c..%5c..%5clogin", "/login"),
        ("/v1/{tenant}/login", in_url, "/pub%5c..%5cv1/x%00%5clogin", "/v1/x%00/login"),
        ("/items/{id}", in_target, "/items/a%5cb%3fx/y", "/items/a\\b"),
        ("/items/{id}", in_url, "/items/%20%3fx/y", "/items/%20"),
        ("/v1/{tenant}/login", in_target, "//v1//login", "//v1//login"),
        ("/c++/{id}", in_target, "/c%2B%2B/a", "/c++/a"),
    ] {
        let rule = |name: &str| Rule::named(name).per(ClientAddress::default());
        let limited = rule("limited").matching(Match::new().path(template));
        let all = Rules::new().rule(rule("all").limit(Limit::per_hour(3)));
        for rules in [
            Rules::new().rule(limited.limit(Limit::per_hour(3))),
            all.exempt(Match::new().path("/pub/{*rest}")),
        ] {
            let store = MemoryStore::builder().clock(new_year()).build();
            let limiter = RateLimiter::builder().rules(rules).store(store).build().unwrap();
            let handler = async move |Path(rest): Path<String>| forward(&rest).unwrap_or_default();
            let gateway = Router::new().route("/{*rest}", any(handler));
            let site = axum_web::serve(gateway.layer(RateLimitLayer::new(limiter)));
            assert_eq!(reaching(&site, path, target).await, 3, "{path}");
        }
    }
}

/// Steps changed all places of a path at once. A service that changed one of them, and had a
/// parameter at another one, read a path that was none of the forms.
#[tokio::test]
async fn a_separator_at_each_place_avoids_no_rule() {
    let routes = |path: &str| Router::new().route(path, any(async || "/reached"));
    let in_language = || Router::new().nest_service("/{lang}/api", routes("/login"));
    let in_api = || Router::new().nest_service("/api", routes("/tenants/{tenant}/login"));
    let in_pages = || Router::new().nest_service("/pages/{page}", routes("/"));
    let forward = async |Path((_, rest)): Path<(String, String)>| {
        in_url(&rest).filter(|path| path == "/api/login").map_or("other", |_| "/reached")
    };
    let gateway = || Router::new().route("/{lang}/{*rest}", any(forward));
    for (rule, router, paths) in [
        ("/{lang}/api/login", in_language(), &["/en/api/login", "//api//login"][..]),
        ("/api/tenants/{tenant}/login", in_api(), &["/api//tenants//login"]),
        ("/pages/{page}", in_pages(), &["/pages//"]),
        ("/v{number}", routes("/v{number}/"), &["/v1/", "/v/"]),
        (
            "/{lang}/api/login",
            gateway(),
            &["/a%2Fb/api%2Flogin", "/a\\b/api\\login", "/./api/./login", "/a%3Fb/api/login%3Fc"],
        ),
    ] {
        for path in paths {
            let router = router.clone().layer(RateLimitLayer::new(limiter_of(rule)));
            let site = axum_web::serve(router);
            assert_eq!(reaching(&site, path, "/reached").await, 3, "{path}");
        }
    }
}

/// A limiter in a nested router took an ordinary path for a rewritten one, because the prefix was
/// encoded in another way, or because axum had not removed it. An exemption then did not apply.
#[tokio::test]
async fn an_ordinary_path_in_a_nested_router_keeps_its_exemption() {
    for (prefix, exempt, path) in [
        ("/users/{email}", "/users/{email}/health", "/users/alice@example.org/health"),
        ("/users/{email}", "/users/{email}/health", "/users/caf%c3%a9/health"),
        ("/v{number}", "/v{number}/health", "/v1/health"),
        ("/@{user}", "/@{user}/health", "/@alice/health"),
    ] {
        let all = Rule::named("all").per(ClientAddress::default()).limit(Limit::per_hour(3));
        let rules = Rules::new().rule(all).exempt(Match::new().path(exempt));
        let limiter = RateLimiter::builder().rules(rules).build().unwrap();
        let inner = Router::new().route("/health", any(async || "/reached"));
        let inner = inner.route("/{*path}", any(async || "/reached"));
        let router = Router::new().nest(prefix, inner.layer(RateLimitLayer::new(limiter)));
        let site = axum_web::serve(router);
        assert_eq!(reaching(&site, path, "/reached").await, 6, "{prefix} {path}");
    }
}

/// A handler removes spaces of any script around the rest of the path.
#[tokio::test]
async fn spaces_that_are_not_ascii_avoid_no_rule() {
    for path in ["/login\u{a0}", "/\u{2003}login", "/login%C2%A0"] {
        let trim = async |Path(rest): Path<String>| format!("/{}", rest.trim());
        let router = Router::new().route("/{*rest}", any(trim));
        let site = axum_web::serve(router.layer(RateLimitLayer::new(limiter_of("/login"))));
        assert_eq!(reaching(&site, path, "/login").await, 3, "{path:?}");
    }
}

/// A gateway removes or adds a prefix, and the client of its URL resolves `..` from there.
#[tokio::test]
async fn dot_segments_avoid_no_rule_of_a_gateway_with_another_root() {
    for (rule, removed, added, paths) in [
        (
            "/proxy/login",
            "/proxy",
            "",
            ["/proxy/login", "/proxy/../login", "/proxy/x/%2e%2e/../login"],
        ),
        ("/login", "", "/v1", ["/login", "/../v1/login", "/x/../../v1/login"]),
        ("/login", "", "", ["/login;v=1", "/x/..;/login", "/x;v=1/../login"]),
    ] {
        for path in paths {
            let forward = async move |request: Request| {
                let path = request.uri().path().strip_prefix(removed).unwrap_or_default();
                // Servlet containers remove parameters before they resolve the dots.
                let path: Vec<_> =
                    path.split('/').map(|part| part.split(';').next().unwrap()).collect();
                let url = reqwest::Url::parse(&format!("http://upstream{added}{}", path.join("/")));
                url.unwrap().path().to_owned()
            };
            let limiter = get_limiter(rule);
            let gateway = Router::new().fallback(forward).layer(RateLimitLayer::new(limiter));
            let site = axum_web::serve(gateway);
            let reached = reaching(&site, path, &format!("{added}/login")).await;
            assert_eq!(reached, 3, "{path}");
        }
    }
}
