//! Requests that are not counted.

use reqwest::{Method, RequestBuilder};
use rl_core::Gate;
use rl_tests::web::{Fetch, Site, Target, limiter, new_year};

fn gate() -> Gate {
    Gate::new(limiter(&new_year(), &["2/minute"]))
}

fn preflight(site: &Site) -> RequestBuilder {
    let options = site.request(Method::OPTIONS, "/").header("origin", "https://example.org");
    options.header("access-control-request-method", "PUT")
}

pub(super) async fn preflights_are_not_counted<T: Target>() {
    let site = T::serve(vec![gate()]);
    for _ in 0..5 {
        let answer = preflight(&site).fetch().await;
        assert_eq!((answer.status, answer.told()), (200, vec![]));
    }
    assert_eq!(site.get("/").fetch().await.standing(), "200 2-1-60");
}

pub(super) async fn preflights_are_counted_if_set<T: Target>() {
    let site = T::serve(vec![gate().count_preflight(true)]);
    assert_eq!(preflight(&site).fetch().await.standing(), "200 2-1-60");
    assert_eq!(preflight(&site).fetch().await.standing(), "200 2-0-60");
    assert_eq!(preflight(&site).fetch().await.status, 429);
}

/// Else `OPTIONS` would be a way around the limit.
pub(super) async fn an_options_request_that_is_no_preflight_is_counted<T: Target>() {
    let site = T::serve(vec![gate()]);
    let options = || site.request(Method::OPTIONS, "/");
    assert_eq!(options().fetch().await.standing(), "200 2-1-60");
    let get = site.get("/").header("access-control-request-method", "PUT");
    assert_eq!(get.fetch().await.standing(), "200 2-0-60");
    assert_eq!(options().fetch().await.status, 429);
}

pub(super) async fn exempt_requests_have_no_headers_and_are_not_counted<T: Target>() {
    let gate = gate()
        .exempt(|request| request.path() == "/health")
        .exempt(|request| request.only_header("x-probe") == Some(b"yes"));
    let site = T::serve(vec![gate]);
    for _ in 0..3 {
        for exempt in [site.get("/health"), site.get("/").header("x-probe", "yes")] {
            let answer = exempt.fetch().await;
            assert_eq!((answer.status, answer.body.as_str()), (200, "no decision"));
            assert_eq!(answer.told(), [""; 0]);
        }
    }
    let counted = site.get("/").header("x-probe", "yes").header("x-probe", "yes");
    assert_eq!(counted.fetch().await.standing(), "200 2-1-60");
    assert_eq!(site.get("/health/").fetch().await.standing(), "404 2-0-60");
}
