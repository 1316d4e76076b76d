//! Requests that are not counted.

use reqwest::{Method, RequestBuilder};
use rl_core::OverLimit;
use rl_core::adapter::HttpLimiter;
use rl_core::key::RequestInfo;
use rl_core::{Cost, Subject};
use rl_tests::web::{Fetch, Site, Target, limiter, new_year};

fn http() -> HttpLimiter {
    HttpLimiter::new(limiter(&new_year(), &["2/minute"]))
}

fn preflight(site: &Site) -> RequestBuilder {
    let options = site.request(Method::OPTIONS, "/").header("origin", "https://example.org");
    options.header("access-control-request-method", "PUT")
}

pub(super) async fn preflights_are_counted<T: Target>() {
    let site = T::serve(vec![http()]);
    assert_eq!(preflight(&site).fetch().await.standing(), "200 2-1-60");
    assert_eq!(preflight(&site).fetch().await.standing(), "200 2-0-60");
    assert_eq!(preflight(&site).fetch().await.status, 429);
}

pub(super) async fn preflights_are_exempt_when_set<T: Target>() {
    let site = T::serve(vec![http().exempt_preflights()]);
    for _ in 0..5 {
        let answer = preflight(&site).fetch().await;
        assert_eq!((answer.status, answer.limit_lines()), (200, vec![]));
    }
    assert_eq!(site.get("/").fetch().await.standing(), "200 2-1-60");
}

/// If all `OPTIONS` requests were exempt, clients could send them without a limit to proxies, and
/// to handlers that accept all methods.
pub(super) async fn an_options_request_that_is_no_preflight_is_counted<T: Target>() {
    const METHOD: &str = "access-control-request-method";

    let http = HttpLimiter::new(limiter(&new_year(), &["9/minute"])).exempt_preflights();
    let site = T::serve(vec![http]);
    let options = || site.request(Method::OPTIONS, "/").header("x", "y");
    let requests = [
        options(),
        options().header(METHOD, "PUT"),
        options().header("origin", "https://example.org"),
        options().header("origin", "https://example.org").header(METHOD, "P U T"),
        preflight(&site).header(METHOD, "PUT"),
        preflight(&site).body("work"),
        preflight(&site).header("x-http-method-override", "POST"),
        site.get("/").header("origin", "https://example.org").header(METHOD, "PUT"),
    ];
    for (counted, request) in requests.into_iter().enumerate() {
        let shown = format!("{request:?}");
        assert_eq!(
            request.fetch().await.standing(),
            format!("200 9-{}-60", 8 - counted),
            "{shown}"
        );
    }
    let chunked = "OPTIONS / HTTP/1.1\r\nhost: a\r\norigin: https://example.org\r\n\
                   access-control-request-method: PUT\r\ntransfer-encoding: chunked\r\n\
                   connection: close\r\n\r\n4\r\nwork\r\n0\r\n\r\n";
    let answer = String::from_utf8(site.send(chunked).await).unwrap();
    assert!(answer.to_ascii_lowercase().contains("x-rate-limit-remaining: 0"), "{answer}");
}

pub(super) async fn exempt_requests_have_no_headers_and_are_not_counted<T: Target>() {
    let http = http()
        .exempt(|request| request.path() == "/health")
        .exempt(|request| request.only_header("x-probe") == Ok(Some(b"yes")));
    let site = T::serve(vec![http]);
    for _ in 0..3 {
        for exempt in [site.get("/health"), site.get("/").header("x-probe", "yes")] {
            let answer = exempt.fetch().await;
            assert_eq!((answer.status, answer.body.as_str()), (200, "no decision"));
            assert_eq!(answer.limit_lines(), [""; 0]);
        }
    }
    let counted = site.get("/").header("x-probe", "yes").header("x-probe", "yes");
    assert_eq!(counted.fetch().await.standing(), "200 2-1-60");
    assert_eq!(site.get("/health/").fetch().await.standing(), "404 2-0-60");
}

/// The exemption, the cost, the reaction to a denial and the subject all come from the extensions
/// that an outer layer has set.
pub(super) async fn settings_read_the_extensions_of_an_earlier_layer<T: Target>() {
    fn consumer<T: Target>(request: &dyn RequestInfo) -> Option<&Subject> {
        T::extension(request)
    }

    let is_called = |name: &'static str| {
        move |request: &dyn RequestInfo| {
            consumer::<T>(request).is_some_and(|it| it.id().as_text() == Some(name))
        }
    };
    let (is_staff, is_dear, is_guest) = (is_called("staff"), is_called("dear"), is_called("guest"));
    let http =
        http()
            .key(|request: &dyn RequestInfo| consumer::<T>(request).cloned())
            .exempt(is_staff)
            .cost(move |request| if is_dear(request) { Cost::new(2) } else { Cost::ONE })
            .on_over_limit_by(move |request| {
                if is_guest(request) { OverLimit::Degrade } else { OverLimit::Reject }
            });
    let site = T::serve(vec![http]);
    let of = |consumer: &str| site.get("/").header("x-consumer", consumer);
    assert_eq!(of("staff").fetch().await.body, "no decision");
    assert_eq!(of("dear").fetch().await.standing(), "200 2-0-60");
    assert_eq!(of("dear").fetch().await.status, 429);
    for body in ["store minute 1/2", "store minute 2/2", "degraded store minute 2/2"] {
        assert_eq!(of("guest").fetch().await.body, body);
    }
    assert_eq!(site.get("/").fetch().await.status, 403);
}
