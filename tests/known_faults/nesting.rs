//! Faults T9 and T10 of `README.md`: limiters in limiters, and requests that browsers send on their
//! own.

use reqwest::Method;
use rl_core::adapter::HttpLimiter;
use rl_tests::web::{Actix, Axum, Fetch, Target, limiter, new_year};

/// Some outer limiters overwrite the headers of an inner one. The response then reports many
/// remaining units, although the inner limiter denies the next request.
#[tokio::test]
async fn t09_the_stricter_numbers_survive_nesting() {
    async fn contract<T: Target>() {
        for limits in [["2/minute", "1000/hour"], ["1000/hour", "2/minute"]] {
            let limiters = limits.map(|limit| HttpLimiter::new(limiter(&new_year(), &[limit])));
            let site = T::serve(limiters.to_vec());
            for standing in ["200 2-1-60", "200 2-0-60", "429 2-0-60, retry 60"] {
                assert_eq!(site.get("/").fetch().await.standing(), standing, "{limits:?}");
            }
        }
    }
    contract::<Axum>().await;
    contract::<Actix>().await;
}

/// Browsers send a preflight before some requests. If preflights are charged, a page gets only half
/// of its quota. If one is denied, the page sees a network error without a reason. So a CORS layer
/// outside the limiter answers preflights, or a setting exempts them.
#[tokio::test]
async fn t10_preflights_and_health_checks_are_not_charged() {
    async fn contract<T: Target>() {
        let http = HttpLimiter::new(limiter(&new_year(), &["1/minute"]));
        let http = http.exempt(|request| request.path() == "/health").exempt_preflights();
        let site = T::serve(vec![http]);
        for expected in ["200 1-0-60", "429 1-0-60, retry 60"] {
            let preflight =
                site.request(Method::OPTIONS, "/").header("origin", "https://a.example");
            let preflight = preflight.header("access-control-request-method", "GET");
            assert_eq!(preflight.fetch().await.standing(), "200");
            assert_eq!(site.get("/health").fetch().await.standing(), "200");
            assert_eq!(site.get("/").fetch().await.standing(), expected);
        }
    }
    contract::<Axum>().await;
    contract::<Actix>().await;
}
