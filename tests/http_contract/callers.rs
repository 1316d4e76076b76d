//! The subject of a request: keys, consumers, routes.

use reqwest::RequestBuilder;
use reqwest::header::HeaderValue;
use rl_core::MissingKey;
use rl_core::adapter::HttpLimiter;
use rl_core::key::{ApiKey, ClientAddress, Header, Identified, KeyExtractor, KeySecret, Route};
use rl_core::source::Preset;
use rl_core::{Limit, Policy, RateLimiter, Realm, Subject};
use rl_tests::web::{Fetch, Site, Target, limiter, new_year};

fn secret() -> KeySecret {
    KeySecret::new(b"a secret of the tests").unwrap()
}

/// Returns a site that allows three requests per minute for each subject that `key` finds.
fn site<T: Target>(key: impl KeyExtractor) -> Site {
    T::serve(vec![HttpLimiter::new(limiter(&new_year(), &["3/minute"])).key(key)])
}

async fn standing(request: RequestBuilder) -> String {
    request.fetch().await.standing()
}

pub(super) async fn api_keys_are_read_from_headers_queries_cookies_and_bearer_tokens<T: Target>() {
    let site = site::<T>(
        ApiKey::header("X-Api-Key", secret())
            .unwrap()
            .or(ApiKey::query("api_key", secret()))
            .or(ApiKey::cookie("session", secret()))
            .or(ApiKey::bearer(secret())),
    );
    // Each key has its own count. A key is the same subject wherever a request contains it: in a
    // header, in the query, in a cookie, or as a bearer token.
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
    let site = T::serve(vec![HttpLimiter::new(limiter).key(key)]);
    for (key, standing) in [("gold-1", "200 5000-4999-3600"), ("other", "200 60-59-3600")] {
        assert_eq!(site.get("/").header("x-api-key", key).fetch().await.standing(), standing);
    }
}

/// A request with two keys could show one of them to the limiter and the other one to the service.
/// It must be rejected. If it counted as a request without a key, the client would be counted by
/// its address, or not at all.
pub(super) async fn keys_that_can_be_read_in_two_ways_are_rejected_and_count_nowhere<T: Target>() {
    let limiter = limiter(&new_year(), &["3/minute"]);
    let key = || {
        ApiKey::header("x-api-key", secret())
            .unwrap()
            .or(ApiKey::query("api_key", secret()))
            .or(ApiKey::cookie("session", secret()))
            .or(ApiKey::bearer(secret()))
            .or(Identified)
            .or(ClientAddress::default())
    };
    for missing_key in [MissingKey::Reject, MissingKey::Allow, MissingKey::Share] {
        let site = T::serve(vec![
            HttpLimiter::new(limiter.clone()).key(key()).on_missing_key(missing_key),
        ]);
        let get = || site.get("/").header("x-consumer", "alice");
        let ambiguous = [
            get().header("x-api-key", "a").header("x-api-key", "a"),
            get().header("x-api-key", "a").header("X-API-KEY", "b"),
            get().header("x-api-key", "a").header("x-api-key", ""),
            get().header("x-api-key", "a, b"),
            site.get("/?api_key=a&api_key=a"),
            site.get("/?api_key=a&api%5Fkey=b"),
            site.get("/?API_KEY=a"),
            site.get("/?api%255Fkey=a"),
            site.get("/?api_key=a;x=1"),
            site.get("/?api_key=%20a"),
            get().header("cookie", "session=a; session=a"),
            get().header("cookie", "session=a").header("cookie", "session=b"),
            get().header("cookie", "x=1, session=a"),
            get().header("authorization", "Bearer a").header("authorization", "Bearer a"),
            get().header("authorization", "Basic a").header("authorization", "Bearer a"),
            get().header("authorization", "Basic a, Bearer a"),
            get().header("authorization", "Bearer a b"),
            get().header("authorization", "Bearer\ta"),
        ];
        for request in ambiguous {
            let shown = format!("{request:?}");
            let answer = request.fetch().await;
            assert_eq!(answer.standing(), "400", "{shown}");
            assert!(answer.body.contains("The credential is given more than once"), "{shown}");
        }
        assert_eq!(site.handled(), 0);
    }
    let address = Subject::ip([127, 0, 0, 1]);
    let unknown = Subject::new(Realm::Unknown, "");
    let keys = ["a", "b", ""].map(|key| secret().subject(Realm::Key, key.as_bytes()));
    for subject in [Subject::consumer("alice"), address, unknown].into_iter().chain(keys) {
        let usage = limiter.usage(&subject).await.unwrap();
        assert_eq!(usage.limits().next().unwrap().used(), 0, "{subject:?}");
    }
}

pub(super) async fn ambiguous_keys_of_grpc_calls_are_invalid_arguments<T: Target>() {
    let site = site::<T>(ApiKey::header("x-api-key", secret()).unwrap());
    let call = site.post("/").header("content-type", "application/grpc");
    let answer = call.header("x-api-key", "a").header("x-api-key", "b").fetch().await;
    assert_eq!((answer.status, answer.header("grpc-status")), (200, Some("3")));
    assert_eq!((&*answer.body, site.handled()), ("", 0));
}

/// A limiter in shadow rejects no request.
pub(super) async fn ambiguous_keys_pass_a_limiter_in_shadow<T: Target>() {
    let limiter = RateLimiter::builder().limit(Limit::per_minute(3)).shadow(true).build().unwrap();
    let key = ApiKey::header("x-api-key", secret()).unwrap();
    let site = T::serve(vec![HttpLimiter::new(limiter).key(key)]);
    let twice = site.get("/").header("x-api-key", "a").header("x-api-key", "b");
    assert_eq!((standing(twice).await.as_str(), site.handled()), ("200", 1));
}

/// `Preset::OpenBank` has separate limits for consumers and for addresses. A client must not be
/// able to choose between them by sending its key twice.
pub(super) async fn an_ambiguous_key_does_not_lead_to_another_policy<T: Target>() {
    let limiter = RateLimiter::builder().policies(Preset::OpenBank).build().unwrap();
    let key = Header::new("x-consumer-id", Realm::Consumer).unwrap().or(ClientAddress::default());
    let site = T::serve(vec![HttpLimiter::new(limiter.clone()).key(key.and(Route))]);
    let one = || site.get("/").header("x-consumer-id", "alice");
    assert_eq!(standing(one().header("x-consumer-id", "alice")).await, "400");
    assert_eq!(one().fetch().await.status, 200);
    assert!(standing(site.get("/")).await.starts_with("200 1000-999-"));
}

/// Fault: a client got new counters for each key that it invented.
pub(super) async fn invented_keys_count_by_address<T: Target>() {
    let sold = secret().subject(Realm::Key, b"sold");
    let (known, tier) = (sold.clone(), Policy::new([Limit::per_hour(50)]).unwrap());
    let anonymous = Policy::new([Limit::per_hour(3)]).unwrap();
    let limiter = RateLimiter::builder()
        .policies(move |subject: &Subject| {
            Some(if *subject.owner() == sold { tier.clone() } else { anonymous.clone() })
        })
        .build()
        .unwrap();
    let key = ApiKey::header("x-api-key", secret()).unwrap();
    let key = key.known(move |key| *key == known).or(ClientAddress::default());
    // Each subject is a pair of a key and a route. The owner of the pair is the key, so the key
    // determines the policy.
    let site = T::serve(vec![HttpLimiter::new(limiter).key(key.and(Route))]);
    let mut passed = 0;
    for n in 0..20 {
        let invented = site.get("/").header("x-api-key", format!("invented-{n}"));
        passed += u32::from(invented.fetch().await.status == 200);
    }
    assert_eq!(passed, 3);
    assert_eq!(site.get("/").fetch().await.status, 429);
    let sold = site.get("/").header("x-api-key", "sold");
    assert_eq!(standing(sold).await, "200 50-49-3600");
}

pub(super) async fn odd_values_are_never_an_error_of_the_server<T: Target>() {
    let api_key = site::<T>(ApiKey::header("x-key", secret()).unwrap());
    let plain = site::<T>(Header::new("x-key", Realm::Consumer).unwrap());
    let bearer = site::<T>(ApiKey::bearer(secret()));
    let longest = [b'k'; 64 * 1_024];
    let longer = [b'k'; 64 * 1_024 + 1];
    let token = [&b"Bearer "[..], &longest].concat();
    // Each value is tried as an API key, as a plain id, and as a bearer token. The three numbers
    // are the expected statuses.
    let values: [(&[u8], [u16; 3]); 10] = [
        (b"", [403, 403, 403]),
        // Servers trim this value to an empty one.
        (b"   \t ", [403, 403, 403]),
        (b"Bearer", [200, 200, 403]),
        (b"Bearer \t", [200, 200, 403]),
        (b"Bearer \xff\xfe", [400, 400, 400]),
        (b"\xc3\x28\x80", [400, 400, 403]),
        (b"{a}:b\"%0d%0a\\", [200, 200, 403]),
        (&longest, [200, 200, 403]),
        (&longer, [400, 400, 403]),
        (&token, [400, 400, 200]),
    ];
    for (value, statuses) in values {
        let value = HeaderValue::from_bytes(value).unwrap();
        let answers = [
            api_key.get("/").header("x-key", value.clone()).fetch().await.status,
            plain.get("/").header("x-key", value.clone()).fetch().await.status,
            bearer.get("/").header("authorization", value.clone()).fetch().await.status,
        ];
        let shown = &value.as_bytes()[..value.len().min(40)];
        assert_eq!(answers, statuses, "{:?}", shown.escape_ascii().to_string());
    }
}

pub(super) async fn consumers_are_whom_the_authentication_names<T: Target>() {
    let site = site::<T>(Identified.or(ClientAddress::default()));
    let of = |consumer: &str| site.get("/").header("x-consumer", consumer);
    assert_eq!(standing(of("alice")).await, "200 3-2-60");
    assert_eq!(standing(of("alice")).await, "200 3-1-60");
    assert_eq!(standing(of("bob")).await, "200 3-2-60");
    // The consumer `127.0.0.1` and the anonymous client with the address 127.0.0.1 are different
    // subjects.
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
    // All of these paths belong to the route `/users/{id}`, whether percent-encoded or not.
    for (path, counted) in [("/users/1", "3-2"), ("/users/%32?a=b", "3-1"), ("/users/a%2fb", "3-0")]
    {
        assert_eq!(standing(site.get(path)).await, format!("200 {counted}-60"), "{path}");
    }
    assert_eq!(standing(site.get("/users/4")).await, "429 3-0-60, retry 60");
    assert_eq!(standing(site.get("/")).await, "200 3-2-60");
    // Requests that match no route are counted together, and get the 404 of the service.
    for (path, counted) in [("/nowhere", "3-2"), ("/no/where", "3-1"), ("/%6eowhere", "3-0")] {
        assert_eq!(standing(site.get(path)).await, format!("404 {counted}-60"), "{path}");
    }
    assert_eq!(standing(site.get("/else/where")).await, "429 3-0-60, retry 60");
}

/// Fault: in actix-web, a request with an encoded letter in its path reached its route, but was
/// counted with the requests that match no route.
pub(super) async fn an_encoded_path_counts_under_the_route_that_it_reaches<T: Target>() {
    let site = site::<T>(Route);
    let encoded = standing(site.get("/%75sers/1")).await;
    let next = standing(site.get("/users/2")).await;
    match &*encoded {
        // axum compares a path with its routes without decoding the path.
        "404 3-2-60" => assert_eq!(next, "200 3-2-60"),
        _ => assert_eq!((&*encoded, &*next), ("200 3-2-60", "200 3-1-60")),
    }
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
    let site = T::serve(vec![HttpLimiter::new(limiter).key(Route)]);
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
