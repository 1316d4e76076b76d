//! Counting: it is exact, charges all limits or none, and is reported correctly.

use std::time::Duration;

use reqwest::Method;
use rl_core::adapter::HttpLimiter;
use rl_core::headers::{HeaderFamily, Headers};
use rl_tests::web::{Fetch, Site, Target, client, limiter, new_year};

/// Returns a site behind one limiter with these limits, and its clock.
fn site<T: Target>(limits: &[&str]) -> (Site, std::sync::Arc<rl_core::time::ManualClock>) {
    let clock = new_year();
    (T::serve(vec![HttpLimiter::new(limiter(&clock, limits))]), clock)
}

pub(super) async fn headers_count_down_to_a_denial<T: Target>() {
    let (site, clock) = site::<T>(&["3/minute"]);
    for standing in ["200 3-2-60", "200 3-1-60", "200 3-0-60", "429 3-0-60, retry 60"] {
        assert_eq!(site.get("/").fetch().await.standing(), standing);
    }
    clock.advance(Duration::from_millis(18_500));
    assert_eq!(site.get("/").fetch().await.standing(), "429 3-0-42, retry 42");
}

pub(super) async fn waiting_for_retry_after_is_enough_and_less_is_not<T: Target>() {
    let (site, clock) = site::<T>(&["1/minute"]);
    assert_eq!(site.get("/").fetch().await.standing(), "200 1-0-60");
    clock.advance(Duration::from_secs(13));
    let denied = site.get("/").fetch().await;
    assert_eq!(denied.standing(), "429 1-0-47, retry 47");

    clock.advance(Duration::from_micros(46_999_999));
    assert_eq!(site.get("/").fetch().await.standing(), "429 1-0-1, retry 1");
    clock.advance(Duration::from_micros(1));
    assert_eq!(site.get("/").fetch().await.standing(), "200 1-0-60");
}

pub(super) async fn retry_after_is_the_longest_wait_of_all_limits<T: Target>() {
    let (site, clock) = site::<T>(&["1/second", "1/hour"]);
    assert_eq!(site.get("/").fetch().await.standing(), "200 1-0-1");
    // The header fields describe the limit per second, because it is the shortest limit that
    // denies. `Retry-After` is the wait of the limit per hour.
    assert_eq!(site.get("/").fetch().await.standing(), "429 1-0-1, retry 3600");
    clock.advance(Duration::from_secs(3_599));
    assert_eq!(site.get("/").fetch().await.standing(), "429 1-0-1, retry 1");
    clock.advance(Duration::from_secs(1));
    assert_eq!(site.get("/").fetch().await.standing(), "200 1-0-1");
}

pub(super) async fn a_denial_charges_no_limit<T: Target>() {
    let clock = new_year();
    let http = HttpLimiter::new(limiter(&clock, &["2/second", "5/minute"]));
    let site = T::serve(vec![http.headers(Headers::new(HeaderFamily::IetfDraft11))]);
    let standings = [
        (200, r#""second";r=1;t=1, "minute";r=4;t=60"#),
        (200, r#""second";r=0;t=1, "minute";r=3;t=60"#),
        (429, r#""second";r=0;t=1, "minute";r=3;t=60"#),
        (429, r#""second";r=0;t=1, "minute";r=3;t=60"#),
    ];
    for (status, standing) in standings {
        let answer = site.get("/").fetch().await;
        assert_eq!((answer.status, answer.header("ratelimit")), (status, Some(standing)));
    }
    clock.advance(Duration::from_secs(1));
    let answer = site.get("/").fetch().await;
    assert_eq!(answer.header("ratelimit"), Some(r#""second";r=1;t=1, "minute";r=2;t=59"#));
}

pub(super) async fn a_denied_request_does_not_reach_the_handler<T: Target>() {
    let (site, _) = site::<T>(&["2/minute"]);
    let mut statuses = Vec::new();
    for _ in 0..5 {
        statuses.push(site.get("/").fetch().await.status);
    }
    assert_eq!((statuses, site.handled()), (vec![200, 200, 429, 429, 429], 2));
}

pub(super) async fn the_handler_finds_the_decision<T: Target>() {
    let (site, _) = site::<T>(&["3/second", "9/day"]);
    assert_eq!(site.get("/").fetch().await.body, "store second 1/3 day 1/9");
    assert_eq!(site.get("/").fetch().await.body, "store second 2/3 day 2/9");
}

pub(super) async fn every_method_is_counted<T: Target>() {
    let (site, _) = site::<T>(&["8/minute"]);
    let methods = ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "BREW"];
    for (counted, method) in methods.iter().enumerate() {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let answer = site.request(method.clone(), "/").fetch().await;
        assert_eq!(answer.standing(), format!("200 8-{}-60", 7 - counted), "{method}");
    }
    assert_eq!(site.request(Method::HEAD, "/").fetch().await.status, 429);
}

pub(super) async fn a_body_passes_through_unchanged<T: Target>() {
    let (site, _) = site::<T>(&["2/minute"]);
    let body: String = (0..50_000).map(|n| char::from(b'a' + (n % 26) as u8)).collect();
    let answer = site.post("/echo").body(body.clone()).fetch().await;
    assert_eq!((answer.standing().as_str(), answer.body == body), ("200 2-1-60", true));
    let answer = site.post("/echo").body("").fetch().await;
    assert_eq!((answer.standing().as_str(), answer.body.as_str()), ("200 2-0-60", ""));
    // A denied request does not reach the handler, so its body is not read. The server may then
    // close the connection.
    let answer = site.post("/echo").body(body).fetch().await;
    assert_eq!((answer.status, site.handled()), (429, 2));
}

/// The body of a denial has the announced length, and a response to `HEAD` has no body. Otherwise
/// the client would read the rest of one response as the beginning of the next.
pub(super) async fn a_denial_leaves_the_connection_usable<T: Target>() {
    let (site, clock) = site::<T>(&["1/minute"]);
    let one_connection = client();
    let get = |method: Method| one_connection.request(method, site.url("/"));
    assert_eq!(get(Method::GET).fetch().await.status, 200);
    for method in [Method::HEAD, Method::GET, Method::HEAD, Method::OPTIONS] {
        let denied = get(method.clone()).fetch().await;
        assert_eq!(denied.status, 429, "{method}");
        assert_eq!(denied.body.is_empty(), method == Method::HEAD, "{method}");
        assert_eq!(denied.header("connection"), None);
    }
    clock.advance(Duration::from_secs(60));
    assert_eq!(get(Method::GET).fetch().await.body, "store minute 1/1");
}

pub(super) async fn paths_without_a_handler_are_counted<T: Target>() {
    let (site, _) = site::<T>(&["2/minute"]);
    assert_eq!(site.get("/no/such/path").fetch().await.standing(), "404 2-1-60");
    assert_eq!(site.get("/../%2e%2e//").fetch().await.standing(), "404 2-0-60");
    assert_eq!(site.get("/no/such/path").fetch().await.status, 429);
}

pub(super) async fn all_connections_and_workers_count_together<T: Target>() {
    let (site, _) = site::<T>(&["20/minute"]);
    let clients: Vec<_> = (0..12).map(|_| client()).collect();
    let requests = (0..60).map(|n| {
        let request = clients[n % clients.len()].get(site.url("/"));
        tokio::spawn(async move { request.fetch().await })
    });
    let requests: Vec<_> = requests.collect();
    let mut remaining = Vec::new();
    let mut denied = 0;
    for request in requests {
        let answer = request.await.unwrap();
        match answer.status {
            200 => remaining.push(answer.header("x-rate-limit-remaining").unwrap().to_owned()),
            429 => denied += 1,
            status => panic!("{status}"),
        }
    }
    assert_eq!((remaining.len(), denied, site.handled()), (20, 40, 20));
    // Each allowed response must report a different number of remaining units.
    remaining.sort_by_key(|text| text.parse::<u32>().unwrap());
    assert_eq!(remaining, (0..20).map(|n| n.to_string()).collect::<Vec<_>>());
}
