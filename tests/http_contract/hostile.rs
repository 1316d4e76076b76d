//! Requests that are made to do harm. Most client libraries could not send some of them.

use std::collections::BTreeSet;
use std::net::Ipv6Addr;
use std::time::Duration;

use reqwest::header::HeaderValue;
use rl_core::adapter::HttpLimiter;
use rl_core::client_ip::ClientIp;
use rl_core::denial::DenialBody;
use rl_core::headers::{HeaderFamily, Headers};
use rl_core::key::{ApiKey, ClientAddress, Constant, Header, KeyExtractor, KeySecret};
use rl_core::rules::{Match, Rule, Rules};
use rl_core::{Limit, MemoryStore, RateLimiter, Realm, RedisStore, Subject};
use rl_tests::RedisServer;
use rl_tests::web::{Fetch, Site, Target, eventually, limiter, new_year, statuses};

/// A timeout that is long enough for a machine that is busy with other tests.
const PATIENCE: Duration = Duration::from_secs(60);

async fn used(limiter: &RateLimiter, subject: &Subject) -> u64 {
    let usage = limiter.usage(subject).await.unwrap();
    usage.limits().next().unwrap().used()
}

/// Returns a site that counts all clients together under `limit`, and its limiter.
fn together<T: Target>(limit: &str) -> (Site, RateLimiter) {
    let limiter = limiter(&new_year(), &[limit]);
    (T::serve(vec![HttpLimiter::new(limiter.clone()).key(Constant)]), limiter)
}

/// Returns a request with this additional header line. The server closes the connection after it
/// has responded.
fn with_line(line: &[u8]) -> Vec<u8> {
    [b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n", line, b"\r\n\r\n"].concat()
}

fn under(rules: Rules) -> RateLimiter {
    let store = MemoryStore::builder().clock(new_year()).build();
    RateLimiter::builder().rules(rules).store(store).build().unwrap()
}

/// Fault: the limiter read the host of a target without its user and its port, which a service may
/// read in another way.
pub(super) async fn the_target_of_a_request_hides_no_host<T: Target>() {
    for authority in [
        "api.example.org:80@free.example.org",
        "api.example.org@free.example.org",
        "@free.example.org",
        "free.example.org:99999",
        "free.example.org:+1",
    ] {
        let per_client = |name: &str| Rule::named(name).per(Constant).limit(Limit::per_hour(3));
        let api = Match::new().host("api.example.org");
        let free = Match::new().host("free.example.org");
        for rules in [
            Rules::new().rule(per_client("api").matching(api)),
            Rules::new().rule(per_client("all")).exempt(free),
        ] {
            let site = T::serve(vec![HttpLimiter::new(under(rules))]);
            let request = format!(
                "GET http://{authority}/ HTTP/1.1\r\nhost: free.example.org\r\n\
                 connection: close\r\n\r\n"
            );
            for _ in 0..5 {
                site.send(&request).await;
            }
            assert!(site.handled() <= 3, "{authority}: {}", site.handled());
        }
    }
}

/// A response must repeat nothing of its request, because another client may get it from a cache.
pub(super) async fn nothing_of_a_request_is_repeated_in_an_answer<T: Target>() {
    const MARK: &str = "x4711x";
    let bodies = [
        DenialBody::json(),
        DenialBody::open_bank(),
        DenialBody::problem(),
        DenialBody::text(),
        DenialBody::empty(),
    ];
    for body in bodies {
        let headers = Headers::new(HeaderFamily::IetfDraft11).and(HeaderFamily::OpenBank);
        let key = Header::new("x-key", Realm::Consumer).unwrap();
        let http = HttpLimiter::new(limiter(&new_year(), &["1/minute"])).key(key);
        let site = T::serve(vec![http.headers(headers).denial_body(body)]);
        // The requests are, in this order: an allowed one, a denied one, a denied gRPC call, and
        // one without a key.
        for (key, kind, status) in [
            ("x-key", "text/x", 200),
            ("x-key", "text/x", 429),
            ("x-key", "application/grpc", 200),
            ("y", "text/x", 403),
        ] {
            let method = if kind == "application/grpc" { "POST" } else { MARK };
            let request = format!(
                "{method} /users/{MARK}%0d%0a{MARK}?{MARK}={MARK} HTTP/1.1\r\nhost: {MARK}\r\n\
                 {key}: {MARK}\" \\{{}}\r\nx-consumer: {MARK}\r\nx-forwarded-for: {MARK}\r\n\
                 forwarded: for={MARK}\r\ncookie: {MARK}={MARK}\r\norigin: {MARK}\r\n\
                 x-request-id: {MARK}\r\ncontent-type: {kind}; {MARK}\r\nconnection: close\r\n\r\n"
            );
            let answer = site.send(request).await;
            let text = String::from_utf8_lossy(&answer);
            assert_eq!(statuses(&answer), [status], "{text}");
            assert!(!text.contains(MARK), "{text}");
        }
        assert_eq!(site.handled(), 1);
    }
}

/// A line break in a value must not begin a new line in a response or in a store. The server
/// rejects such a request before it reaches the limiter.
pub(super) async fn control_characters_in_a_value_reach_no_header<T: Target>() {
    let limiter = limiter(&new_year(), &["9/minute"]);
    let key = Header::new("x-key", Realm::Consumer).unwrap();
    let site = T::serve(vec![HttpLimiter::new(limiter).key(key)]);
    for value in [&b"a\0b"[..], b"a\rb", b"a\x01b", b"a\x1bb", b"a\x7fb", b"a\r\n b", b"\0"] {
        let answer = site.send(with_line(&[b"x-key: ", value].concat())).await;
        let statuses = statuses(&answer);
        assert_eq!(statuses, [400], "{}", value.escape_ascii());
    }
    assert_eq!(site.handled(), 0);
    // Some servers accept a line feed alone as the end of a line. They read two lines here, and the
    // first value ends at the line feed.
    let answer = site.send(with_line(b"x-key: a\nx-key: b")).await;
    assert!(matches!(statuses(&answer)[..], [] | [400 | 403]));
    assert_eq!(site.get("/").header("x-key", "a").fetch().await.standing(), "200 9-8-60");
}

/// A key may be up to 64 KiB long. A longer value counts as ambiguous, not as missing. Only the
/// right end of a long header of addresses is read.
pub(super) async fn values_that_are_too_long_are_rejected<T: Target>() {
    let secret = KeySecret::new(b"a secret of the tests").unwrap();
    let key = ApiKey::header("x-key", secret).unwrap().or(ClientAddress::default());
    let site = T::serve(vec![HttpLimiter::new(limiter(&new_year(), &["9/minute"])).key(key)]);
    for (length, expected) in [(60_000, 200), (70_000, 400), (1_000_000, 431)] {
        let line = format!("x-key: {}", "k".repeat(length));
        let statuses = statuses(&site.send(with_line(line.as_bytes())).await);
        // A server may reject a long head before it has read all of it. It then sends an error, or
        // closes the connection without a response.
        let is_cut = length > 70_000 && matches!(statuses[..], [] | [400 | 413]);
        assert!(is_cut || statuses == [expected], "{length}: {statuses:?}");
    }
    assert_eq!(site.handled(), 1);
    for standing in ["200 9-8-60", "200 9-7-60"] {
        assert_eq!(site.get("/").fetch().await.standing(), standing, "by address");
    }

    let behind = ClientAddress::new(ClientIp::with_proxies("127.0.0.0/8".parse().unwrap()));
    let site = T::serve(vec![HttpLimiter::new(limiter(&new_year(), &["9/minute"])).key(behind)]);
    let long = format!("{}, 198.51.100.7", "6".repeat(60_000));
    for remaining in [8, 7] {
        let answer = site.get("/").header("x-forwarded-for", &long).fetch().await;
        assert_eq!(answer.standing(), format!("200 9-{remaining}-60"), "as the client");
    }
    assert_eq!(site.get("/").fetch().await.standing(), "200 9-8-60", "as the proxy");
}

/// A packet contains several requests, and each of them is charged once.
pub(super) async fn pipelined_requests_are_charged_one_by_one<T: Target>() {
    let (site, limiter) = together::<T>("4/minute");
    let get = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";
    let head = "HEAD / HTTP/1.1\r\nhost: a\r\n\r\n";
    let post = "POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello";
    let last = "GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    let answers = site.send([get, head, post, get, get, head, last].concat()).await;
    assert_eq!(statuses(&answers), [200, 200, 200, 200, 429, 429, 429]);
    assert_eq!((used(&limiter, &Subject::global()).await, site.handled()), (4, 4));
}

/// Each request contains two lengths. Servers differ in which one they use, and therefore in where
/// the request ends for them. In all cases, no request may be served without being counted.
pub(super) async fn requests_of_two_lengths_are_not_served_uncharged<T: Target>() {
    let inner = "GET /users/7 HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    let lengths = [
        "content-length: 5\r\ntransfer-encoding: chunked".to_owned(),
        "transfer-encoding: chunked\r\ncontent-length: 5".to_owned(),
        "content-length: 5\r\ncontent-length: 6".to_owned(),
        format!("content-length: 5\r\ncontent-length: {}", 5 + inner.len()),
        "content-length: 5, 6".to_owned(),
        "content-length: +5".to_owned(),
        "content-length: 0x5".to_owned(),
        "transfer-encoding: chunked, identity\r\ncontent-length: 5".to_owned(),
        "transfer-encoding: xchunked\r\ncontent-length: 5".to_owned(),
        "transfer-encoding : chunked\r\ncontent-length: 5".to_owned(),
    ];
    for length in lengths {
        let (site, limiter) = together::<T>("9/minute");
        let outer = format!("POST /echo HTTP/1.1\r\nhost: a\r\n{length}\r\n\r\n0\r\n\r\n");
        let answers = site.send(format!("{outer}{inner}")).await;
        let statuses = statuses(&answers);
        let served = statuses.iter().filter(|status| **status == 200).count();
        assert!(statuses.iter().all(|status| matches!(status, 200 | 400 | 501)), "{statuses:?}");
        let counted = used(&limiter, &Subject::global()).await;
        assert!(served <= site.handled() && served <= 2, "{length}: {statuses:?}");
        // A request whose body the server reads as empty is counted, but may fail before it reaches
        // its handler. So `counted` may exceed the number of handled requests.
        assert!((site.handled() as u64..=2).contains(&counted), "{length}: {counted}");
        assert_eq!(together::<T>("9/minute").0.get("/").fetch().await.status, 200);
    }
}

/// A client with an IPv6 network has 2^64 addresses, and each address has several notations. All of
/// them count as one client.
pub(super) async fn changing_addresses_within_a_network_gains_nothing<T: Target>() {
    let behind = ClientAddress::new(ClientIp::with_proxies("127.0.0.0/8".parse().unwrap()));
    let site = T::serve(vec![HttpLimiter::new(limiter(&new_year(), &["20/minute"])).key(behind)]);
    let network = 0x2001_0db8_0001_0002_u128 << 64;
    let mut passed = 0;
    for n in 0..200_u128 {
        let host = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) & u128::from(u64::MAX);
        let address = Ipv6Addr::from_bits(network | host);
        let groups = address.segments().map(|group| format!("{group:04X}")).join(":");
        let written = match n % 4 {
            0 => address.to_string(),
            1 => groups,
            2 => format!("[{groups}]:{}", 1_024 + n),
            _ => format!("{address}%eth{n}"),
        };
        let answer = site.get("/").header("x-forwarded-for", written).fetch().await;
        passed += u32::from(answer.status == 200);
    }
    assert_eq!((passed, site.handled()), (20, 20));
    let neighbour = site.get("/").header("x-forwarded-for", "2001:db8:1:3::1").fetch().await;
    assert_eq!(neighbour.standing(), "200 20-19-60");
}

/// The proxy overwrites the header. If a request has two such headers, the client has sent one of
/// them, so the request is counted under the address of the proxy.
pub(super) async fn an_address_that_is_forwarded_twice_is_not_trusted<T: Target>() {
    let rule = ClientIp::with_proxies("127.0.0.0/8".parse().unwrap());
    let rule = rule.single_header("x-real-ip").unwrap();
    let http = HttpLimiter::new(limiter(&new_year(), &["9/minute"])).key(ClientAddress::new(rule));
    let site = T::serve(vec![http]);
    let one = site.get("/").header("x-real-ip", "198.51.100.7").fetch().await;
    assert_eq!(one.standing(), "200 9-8-60");
    for (remaining, other) in [(8, "198.51.100.7"), (7, "6.6.6.6"), (6, "")] {
        let twice = site.get("/").header("x-real-ip", "198.51.100.7").header("x-real-ip", other);
        assert_eq!(twice.fetch().await.standing(), format!("200 9-{remaining}-60"), "the proxy's");
    }
}

/// The braces in a Redis key determine the server of a cluster that stores it. Colons separate the
/// namespace, the realm and the id. An id that contains these characters must change neither.
pub(super) async fn an_id_cannot_change_the_other_parts_of_its_key<T: Target>() {
    let redis = RedisServer::start();
    let store = RedisStore::builder(&redis.url()).connection_wait(PATIENCE).connect().await;
    let limits = RateLimiter::builder().limit(Limit::per_day(2)).deadline(PATIENCE);
    let limiter = limits.store(store.unwrap()).build().unwrap();
    let key = Header::new("x-key", Realm::Consumer).unwrap();
    let site = T::serve(vec![HttpLimiter::new(limiter).key(key)]);
    let mut ids = BTreeSet::from(
        [
            "a", "{a}", "a}:b{", "}", "{", "a:{b}", "%7Ba%7D", "*", "?[a]", "~a", "~~a", "a|b",
            "..", "a b",
        ]
        .map(str::to_owned),
    );
    // Two of these ids look like `é`, and three look like the id `a` above. All of them are
    // different.
    ids.extend(
        ["\u{e9}", "e\u{301}", "\u{430}", "a\u{200b}", "\u{202e}a", "💥"].map(str::to_owned),
    );
    ids.extend([300, 301, 4_096].map(|length| "{}".repeat(length / 2) + &"x".repeat(length % 2)));
    for standing in ["200 2-1-86400", "200 2-0-86400", "429 2-0-86400, retry 86400"] {
        for id in &ids {
            let value = HeaderValue::from_bytes(id.as_bytes()).unwrap();
            let answer = site.get("/").header("x-key", value).fetch().await.standing();
            // The clock of the server advances, so the seconds may differ.
            let (answer, expected) = (answer.split(['-', ',']), standing.split(['-', ',']));
            assert!(answer.take(2).eq(expected.take(2)), "{id:?}");
        }
    }
    let keys: Vec<String> = redis.query("KEYS *").await;
    assert_eq!(keys.len(), ids.len());
    for key in keys {
        let id = key.strip_prefix("rl:6:default:consumer:{").and_then(|key| key.strip_suffix('}'));
        let id = id.unwrap_or_else(|| panic!("{key}"));
        assert!(!id.contains(['{', '}', ':', ' ']) && key.len() <= 200, "{key}");
    }
}

/// A client may stop reading the response. The permit then stays in use and its lease is renewed,
/// until the body has ended or cannot be written any more. Servers must therefore limit the time
/// for which a client may pause.
pub(super) async fn a_client_that_stops_reading_holds_its_place_until_the_body_ends<T: Target>() {
    let lease = Duration::from_millis(300);
    let clock = new_year();
    let limiter = limiter(&clock, &["1:concurrency:lease=300ms"]);
    let site = T::serve(vec![HttpLimiter::new(limiter.clone()).key(Constant)]);
    let mut response = site.get("/streams").send().await.unwrap();
    assert_eq!(response.chunk().await.unwrap().unwrap(), "first ");
    for _ in 0..8 {
        // Nearly a whole lease passes. The permit is still held only if its lease was renewed in
        // time.
        clock.advance(lease - Duration::from_millis(1));
        assert_eq!(site.get("/").fetch().await.status, 429);
        let reset = async || {
            let usage = limiter.usage(&Subject::global()).await.unwrap();
            usage.limits().next().unwrap().reset_after()
        };
        eventually(async || reset().await == lease).await;
    }
    drop(response);
    site.cue();
    let free = || async { used(&limiter, &Subject::global()).await == 0 };
    eventually(free).await;
    assert_eq!(site.get("/").fetch().await.status, 200);
}
