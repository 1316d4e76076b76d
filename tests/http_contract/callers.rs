//! Who is counted: keys, consumers, routes.

use reqwest::RequestBuilder;
use reqwest::header::HeaderValue;
use rl_core::key::{ApiKey, ClientAddress, Header, Identified, KeyExtractor, KeySecret, Route};
use rl_core::{Gate, Limit, Policy, RateLimiter, Realm, Subject};
use rl_tests::web::{Fetch, Site, Target, limiter, new_year};

fn secret() -> KeySecret {
    KeySecret::new(b"a secret of the tests").unwrap()
}

/// Three requests per minute for whom `key` finds.
fn site<T: Target>(key: impl KeyExtractor) -> Site {
    T::serve(vec![Gate::new(limiter(&new_year(), &["3/minute"])).key(key)])
}

async fn standing(request: RequestBuilder) -> String {
    request.fetch().await.standing()
}

pub(super) async fn api_keys_stand_in_headers_queries_cookies_and_bearer_tokens<T: Target>() {
    let site = site::<T>(
        ApiKey::header("X-Api-Key", secret())
            .unwrap()
            .or(ApiKey::query("api_key", secret()))
            .or(ApiKey::cookie("session", secret()))
            .or(ApiKey::bearer(secret())),
    );
    // Each has a count of its own, and the same key is the same caller wherever it stands.
    let header = || site.get("/").header("x-api-key", "alpha");
    assert_eq!(standing(header()).await, "200 3-2-60");
    assert_eq!(standing(site.get("/?a=b&api_key=beta")).await, "200 3-2-60");
    assert_eq!(standing(site.get("/").header("cookie", "a=b; session=gamma")).await, "200 3-2-60");
    assert_eq!(standing(site.get("/").header("authorization", "Bearer delta")).await, "200 3-2-60");

    assert_eq!(standing(site.get("/?api_key=%61lpha")).await, "200 3-1-60");
    assert_eq!(standing(site.get("/").header("cookie", "session=\"alpha\"")).await, "200 3-0-60");
    let bearer = site.get("/").header("authorization", "bearer  alpha");
    assert_eq!(standing(bearer).await, "429 3-0-60, retry 60");
    assert_eq!(standing(header()).await, "429 3-0-60, retry 60");
    assert_eq!(standing(site.get("/")).await, "403");
}

pub(super) async fn tiers_of_keys_have_limits_of_their_own<T: Target>() {
    let policy = |max| Policy::new([Limit::per_hour(max)]).unwrap();
    let (gold, free) = (policy(5_000), policy(60));
    let golden = secret().subject(Realm::Key, b"gold-1");
    let limiter = RateLimiter::builder()
        .policies(move |subject: &Subject| {
            Some(if *subject == golden { gold.clone() } else { free.clone() })
        })
        .build()
        .unwrap();
    let key = ApiKey::header("x-api-key", secret()).unwrap();
    let site = T::serve(vec![Gate::new(limiter).key(key)]);
    for (key, standing) in [("gold-1", "200 5000-4999-3600"), ("other", "200 60-59-3600")] {
        assert_eq!(site.get("/").header("x-api-key", key).fetch().await.standing(), standing);
    }
}

/// One of the two values would be shown to the limiter and the other to the service.
pub(super) async fn headers_that_can_be_read_in_two_ways_name_nobody<T: Target>() {
    let site = site::<T>(
        ApiKey::header("x-api-key", secret())
            .unwrap()
            .or(ApiKey::query("api_key", secret()))
            .or(ApiKey::cookie("session", secret()))
            .or(ApiKey::bearer(secret())),
    );
    let twice = [
        site.get("/").header("x-api-key", "a").header("x-api-key", "a"),
        site.get("/").header("x-api-key", "a").header("X-API-KEY", "b"),
        site.get("/?api_key=a&api%5Fkey=b"),
        site.get("/").header("cookie", "session=a; session=b"),
        site.get("/").header("cookie", "session=a").header("cookie", "session=b"),
        site.get("/").header("authorization", "Bearer a").header("authorization", "Bearer b"),
        site.get("/").header("authorization", "Basic a"),
    ];
    for request in twice {
        let shown = format!("{request:?}");
        assert_eq!(standing(request).await, "403", "{shown}");
    }
    assert_eq!(site.handled(), 0);
}

pub(super) async fn odd_values_are_never_an_error_of_the_server<T: Target>() {
    let api_key = site::<T>(ApiKey::header("x-key", secret()).unwrap());
    let plain = site::<T>(Header::new("x-key", Realm::Consumer).unwrap());
    let bearer = site::<T>(ApiKey::bearer(secret()));
    let long = [b'k'; 5 * 1_024];
    let longest = [b'k'; 4 * 1_024];
    // As an API key, as a plain id, and as a bearer token.
    let values: [(&[u8], [u16; 3]); 9] = [
        (b"", [403, 403, 403]),
        (b"   \t ", [403, 403, 403]),
        (b"Bearer", [200, 200, 403]),
        (b"Bearer \t", [200, 200, 403]),
        (b"Bearer \xff\xfe", [200, 403, 200]),
        (b"\xc3\x28\x80", [200, 403, 403]),
        (b"{a}:b\"%0d%0a\\", [200, 200, 403]),
        (&longest, [200, 200, 403]),
        (&long, [403, 403, 403]),
    ];
    for (value, statuses) in values {
        let value = HeaderValue::from_bytes(value).unwrap();
        let answers = [
            api_key.get("/").header("x-key", value.clone()).fetch().await.status,
            plain.get("/").header("x-key", value.clone()).fetch().await.status,
            bearer.get("/").header("authorization", value.clone()).fetch().await.status,
        ];
        assert_eq!(answers, statuses, "{:?}", value.as_bytes().escape_ascii().to_string());
    }
}

pub(super) async fn consumers_are_whom_the_authentication_names<T: Target>() {
    let site = site::<T>(Identified.or(ClientAddress::default()));
    let of = |consumer: &str| site.get("/").header("x-consumer", consumer);
    assert_eq!(standing(of("alice")).await, "200 3-2-60");
    assert_eq!(standing(of("alice")).await, "200 3-1-60");
    assert_eq!(standing(of("bob")).await, "200 3-2-60");
    // A consumer whose id is the address of an anonymous caller is somebody else.
    assert_eq!(standing(of("127.0.0.1")).await, "200 3-2-60");
    assert_eq!(standing(site.get("/")).await, "200 3-2-60");
    assert_eq!(standing(of("alice")).await, "200 3-0-60");
    assert_eq!(standing(of("alice")).await, "429 3-0-60, retry 60");
    assert_eq!(standing(site.get("/")).await, "200 3-1-60");
}

pub(super) async fn anonymous_callers_count_by_address<T: Target>() {
    let site = site::<T>(ClientAddress::default());
    let from = |address: [u8; 4]| {
        let client = reqwest::Client::builder().no_proxy().local_address(Some(address.into()));
        client.build().unwrap().get(site.url("/"))
    };
    assert_eq!(standing(from([127, 0, 0, 1])).await, "200 3-2-60");
    assert_eq!(standing(from([127, 0, 0, 1])).await, "200 3-1-60");
    assert_eq!(standing(from([127, 0, 0, 2])).await, "200 3-2-60");
}

pub(super) async fn routes_count_by_their_pattern<T: Target>() {
    let site = site::<T>(Route);
    // However the path is written, it reaches the handler of this route.
    for (path, counted) in [("/users/1", "3-2"), ("/users/%32?a=b", "3-1"), ("/users/a%2fb", "3-0")]
    {
        assert_eq!(standing(site.get(path)).await, format!("200 {counted}-60"), "{path}");
    }
    assert_eq!(standing(site.get("/users/4")).await, "429 3-0-60, retry 60");
    assert_eq!(standing(site.get("/")).await, "200 3-2-60");
    // What matches no route does not say.
    assert_eq!(standing(site.get("/nowhere")).await, "403");
}

pub(super) async fn routes_have_limits_of_their_own<T: Target>() {
    let policy = |max| Policy::new([Limit::per_hour(max)]).unwrap();
    let (expensive, other) = (policy(2), policy(50));
    let limiter = RateLimiter::builder()
        .policies(move |route: &Subject| {
            let is_expensive = route.id().as_text() == Some("/users/{id}");
            Some(if is_expensive { expensive.clone() } else { other.clone() })
        })
        .build()
        .unwrap();
    let site = T::serve(vec![Gate::new(limiter).key(Route)]);
    assert_eq!(standing(site.get("/users/1")).await, "200 2-1-3600");
    assert_eq!(standing(site.get("/")).await, "200 50-49-3600");
    assert_eq!(standing(site.get("/users/2")).await, "200 2-0-3600");
    assert_eq!(site.get("/users/3").fetch().await.status, 429);
    assert_eq!(site.get("/").fetch().await.status, 200);
}

pub(super) async fn consumers_count_on_each_route<T: Target>() {
    let site = site::<T>(Identified.and(Route));
    let of = |consumer: &str, path: &str| site.get(path).header("x-consumer", consumer);
    assert_eq!(standing(of("alice", "/users/1")).await, "200 3-2-60");
    assert_eq!(standing(of("alice", "/users/2")).await, "200 3-1-60");
    assert_eq!(standing(of("alice", "/")).await, "200 3-2-60");
    assert_eq!(standing(of("bob", "/users/1")).await, "200 3-2-60");
    assert_eq!(standing(site.get("/users/1")).await, "403");
}
