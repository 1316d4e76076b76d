//! `/decide`, `/authz` and `/json`, as gateways and hostile clients call them.

use axum::body::Body;
use axum::http::{HeaderValue, Request, StatusCode};
use rl_core::{OnFailure, RateLimiter};
use serde_json::{Value, json};

use super::call::{
    Answer, GATEWAY, LOCAL, STRANGER, SentHeaders, TOKEN, app, app_of, call, call_with, limiter,
    settings, with_token,
};
use super::failing_store::FailingStore;
use crate::http::HttpSettings;

const LOGIN: &str =
    "rules: { login: { match: { method: POST, path: /login }, per: address, limits: 2/minute } }";

/// The headers of a gateway for `POST /login` of this client.
fn forwarded(client: &str) -> [(&str, &str); 5] {
    [
        ("x-forwarded-method", "POST"),
        ("x-forwarded-uri", "/login?next=home"),
        ("x-forwarded-host", "app.example"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-for", client),
    ]
}

async fn decide(app: &axum::Router, client: &str) -> Answer {
    call(app, GATEWAY, "GET /decide", &forwarded(client), "").await
}

#[tokio::test]
async fn a_request_is_allowed_with_headers_and_then_denied_with_the_response_for_the_client() {
    let app = app(LOGIN);
    for remaining in ["1", "0"] {
        let allowed = decide(&app, "192.0.2.7").await;
        assert_eq!((allowed.status, &*allowed.body), (StatusCode::OK, ""));
        assert_eq!(allowed.header("x-rate-limit-remaining"), Some(remaining), "{allowed:?}");
        assert_eq!(allowed.header("cache-control"), Some("no-store"));
    }
    let denied = decide(&app, "192.0.2.7").await;
    assert_eq!(denied.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(denied.header("content-type"), Some("application/json"));
    assert_eq!(denied.json()["code"], 429);
    let retry: u64 = denied.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&retry), "{retry}");
    let lines = denied.response.headers().get_all("cache-control").iter().count();
    assert_eq!(lines, 1);

    assert_eq!(decide(&app, "192.0.2.8").await.status, StatusCode::OK, "another client");
    let head = call(&app, GATEWAY, "HEAD /decide", &forwarded("192.0.2.7"), "").await;
    assert_eq!((head.status, &*head.body), (StatusCode::TOO_MANY_REQUESTS, ""));
    let other = [
        ("x-forwarded-method", "GET"),
        ("x-forwarded-uri", "/login"),
        ("x-forwarded-for", "192.0.2.7"),
    ];
    let uncounted = call(&app, GATEWAY, "POST /decide", &other, "ignored").await;
    assert_eq!(
        (uncounted.status, uncounted.header("x-rate-limit-remaining")),
        (StatusCode::OK, None)
    );
}

#[tokio::test]
async fn only_trusted_gateways_are_believed() {
    let app = app(LOGIN);
    for target in ["GET /decide", "GET /decide/original", "GET /authz/login"] {
        for peer in [STRANGER, LOCAL] {
            let answer = call(&app, peer, target, &forwarded("192.0.2.7"), "").await;
            assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR, "{target}");
            let message = answer.message();
            assert!(message.contains(peer) && message.contains("proxies"), "{message}");
        }
    }
    // A gateway on IPv4 may reach a socket of IPv6.
    let mapped = format!("::ffff:{GATEWAY}");
    let answer = call(&app, &mapped, "GET /decide", &forwarded("192.0.2.7"), "").await;
    assert_eq!(answer.status, StatusCode::OK);
}

#[tokio::test]
async fn the_client_address_is_the_last_hop_before_the_trusted_gateways() {
    let app = app(LOGIN);
    for invented in ["", "192.0.2.1, ", "192.0.2.2, 10.0.0.9, "] {
        let hops = format!("{invented}192.0.2.7, 10.0.0.2");
        let answer = decide(&app, &hops).await;
        let expected = if invented.len() < 15 { 200 } else { 429 };
        assert_eq!(answer.status.as_u16(), expected, "{hops}");
    }
}

#[tokio::test]
async fn only_the_selected_family_of_headers_is_read() {
    let app = app(LOGIN);
    let mixed = [
        ("x-original-method", "POST"),
        ("x-original-uri", "/login"),
        ("x-forwarded-method", "GET"),
        ("x-forwarded-uri", "/"),
        ("x-forwarded-for", "192.0.2.7"),
    ];
    let counted = call(&app, GATEWAY, "GET /decide/original", &mixed, "").await;
    assert_eq!(counted.header("x-rate-limit-remaining"), Some("1"));
    let uncounted = call(&app, GATEWAY, "GET /decide", &mixed, "").await;
    assert_eq!(uncounted.header("x-rate-limit-remaining"), None);
    let answer = call(&app, GATEWAY, "GET /decide/original", &mixed[2..], "").await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert_eq!(answer.message(), "X-Original-Method: expected one line, found none");
}

#[tokio::test]
async fn ambiguous_headers_are_refused() {
    let app = app(LOGIN);
    for name in ["x-forwarded-uri", "x-forwarded-method", "x-forwarded-host"] {
        let mut headers = forwarded("192.0.2.7").to_vec();
        headers.push((name, "/"));
        let answer = call(&app, GATEWAY, "GET /decide", &headers, "").await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{name}");
        assert!(answer.message().ends_with("expected one line, found two"), "{}", answer.message());
    }
}

/// Fault: some gateways append the query of the client, which could select the other headers.
#[tokio::test]
async fn the_query_of_a_call_is_ignored() {
    let app = app(LOGIN);
    for (query, expected) in [("", 200), ("?headers=original", 200), ("?deny=200", 429)] {
        let target = format!("GET /decide{query}");
        let answer = call(&app, GATEWAY, &target, &forwarded("192.0.2.7"), "").await;
        assert_eq!(answer.status.as_u16(), expected, "{query}");
    }
}

/// Fault: the denial of a gRPC call has the status 200, with which every gateway lets the request
/// pass. A client chooses its content type.
#[tokio::test]
async fn a_denied_grpc_request_gets_an_error_status() {
    let app = app(LOGIN);
    let mut headers = forwarded("192.0.2.7").to_vec();
    headers.push(("content-type", "application/grpc"));
    for expected in [200, 200, 429] {
        let answer = call(&app, GATEWAY, "GET /decide", &headers, "").await;
        assert_eq!(answer.status.as_u16(), expected);
    }
    let answer = call(&app, GATEWAY, "GET /decide", &headers, "").await;
    assert_eq!(answer.header("grpc-status"), Some("8"));
}

#[tokio::test]
async fn nginx_gets_403_for_every_denial() {
    let keys = "rules: { keys: { per: 'header:x-api-key', limits: 1/minute } }";
    let app = app(keys);
    let of = |keys: &[&'static str]| {
        let mut headers = forwarded("192.0.2.7").to_vec();
        headers.extend(keys.iter().map(|key| ("x-api-key", *key)));
        headers
    };
    for (keys, path, expected) in [
        (&["a"][..], "/decide", 200),
        (&["a"], "/decide", 429),
        (&["a"], "/decide/403", 403),
        (&["a", "b"], "/decide", 400),
        (&["a", "b"], "/decide/403", 403),
        (&[], "/decide", 403),
        (&[], "/decide/403", 403),
    ] {
        let target = format!("GET {path}");
        let answer = call(&app, GATEWAY, &target, &of(keys), "").await;
        assert_eq!(answer.status.as_u16(), expected, "{keys:?} {path}");
    }
}

#[tokio::test]
async fn rules_see_the_headers_of_the_client_and_not_those_of_the_call() {
    // Each rule has a limit of 0, so it denies a request that has the header.
    for (header, is_seen) in [
        ("x-api-key", true),
        ("authorization", true),
        ("x-forwarded-for", true),
        ("host", false),
        ("content-length", false),
        ("connection", false),
        ("transfer-encoding", false),
        ("x-forwarded-proto", false),
        ("x-forwarded-port", false),
        ("x-original-uri", false),
    ] {
        let rules = format!(
            "rules: {{ denied: {{ match: {{ header: {{ {header}: '*' }} }}, limits: 0/minute }} }}"
        );
        let app = app(&rules);
        let mut headers = vec![("x-forwarded-method", "GET"), ("x-forwarded-uri", "/")];
        headers.extend([(header, "1"), ("x-forwarded-for", "192.0.2.7")]);
        let answer = call(&app, GATEWAY, "GET /decide", &headers, "").await;
        let expected = if is_seen { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::OK };
        assert_eq!(answer.status, expected, "{header}");
    }
}

/// Fault: without its address, a client was counted as the gateway, with all others.
#[tokio::test]
async fn a_client_without_an_address_is_refused_and_not_counted_as_the_gateway() {
    let app = app(LOGIN);
    for (address, expected) in [
        (None, 400),
        (Some(""), 400),
        (Some("unknown"), 400),
        (Some("192.0.2.7, x"), 400),
        (Some("x, 192.0.2.7"), 200),
        (Some("192.0.2.7:4711"), 200),
        (Some("[2001:db8::1]"), 200),
        (Some("2001:db8::1"), 200),
    ] {
        let headers = [("x-forwarded-method", "GET"), ("x-forwarded-uri", "/other")];
        let address = address.map(|address| ("x-forwarded-for", address));
        let headers: Vec<_> = headers.into_iter().chain(address).collect();
        let answer = call(&app, GATEWAY, "GET /decide", &headers, "").await;
        assert_eq!(answer.status.as_u16(), expected, "{address:?}: {}", answer.body);
    }
}

#[tokio::test]
async fn the_host_is_that_of_the_client() {
    let app = app("rules: { app: { match: { host: app.example }, limits: 0/minute } }");
    let with = |host| {
        let call = [
            ("x-forwarded-method", "GET"),
            ("x-forwarded-uri", "/"),
            ("x-forwarded-for", "192.0.2.7"),
            ("host", "app.example"),
        ];
        call.into_iter().chain([("x-forwarded-host", host)]).collect::<Vec<_>>()
    };
    for (host, expected) in [("app.example", 429), ("other.example", 200)] {
        let answer = call(&app, GATEWAY, "GET /decide", &with(host), "").await;
        assert_eq!(answer.status.as_u16(), expected, "{host}");
    }
    // Only the gateway sets the host of its call; X-Forwarded-Host may be that of a client.
    let original = [
        ("x-original-method", "GET"),
        ("x-original-uri", "/"),
        ("x-forwarded-for", "192.0.2.7"),
        ("host", "app.example"),
        ("x-forwarded-host", "other.example"),
    ];
    let answer = call(&app, GATEWAY, "GET /decide/original", &original, "").await;
    assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn a_path_is_decided_in_every_form_that_a_service_may_read() {
    let app = app("rules: { login: { match: { path: /login }, limits: 0/minute } }");
    for path in ["/login", "//login", "/%6Cogin", "/login?x=/", "/x/../login", "login"] {
        let headers = [
            ("x-forwarded-method", "GET"),
            ("x-forwarded-uri", path),
            ("x-forwarded-for", "192.0.2.7"),
        ];
        let answer = call(&app, GATEWAY, "GET /decide", &headers, "").await;
        assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS, "{path}");
    }
    // Bytes that are not UTF-8 are no failure of the call.
    let request = Request::get("/decide").header("x-forwarded-method", "GET");
    let request = request.header("x-forwarded-for", "192.0.2.7");
    let bytes = HeaderValue::from_bytes(b"/other/\xff\xc3\xa9").unwrap();
    let request = request.header("x-forwarded-uri", bytes).body(Body::empty()).unwrap();
    assert_eq!(call_with(&app, GATEWAY, request).await.status, StatusCode::OK);
}

/// Fault: `path` of Envoy has the query, so a rule with a descriptor counts one spelling of it only.
#[tokio::test]
async fn a_rule_with_a_path_counts_requests_of_envoy_with_any_query() {
    let app = app("rules: { login: { match: { path: /login }, per: address, limits: 2/minute } }");
    for (path, expected) in [("/login", 200), ("/login?x=1", 200), ("/%6Cogin?y", 429)] {
        let entries = json!([
            { "key": "path", "value": path },
            { "key": "remote_address", "value": "192.0.2.7" },
        ]);
        let body = json!({ "domain": "edge", "descriptors": [{ "entries": entries }] });
        let answer = call(&app, LOCAL, "POST /json", &[], body.to_string()).await;
        assert_eq!(answer.status.as_u16(), expected, "{path}: {}", answer.body);
    }
}

/// Fault: a call of Envoy that only asks what is left was charged to the rules that match it.
#[tokio::test]
async fn a_call_of_envoy_with_a_cost_of_0_charges_no_rule() {
    let app = app("rules: { all: { per: address, limits: 1/minute } }");
    let ask = async |hits: &str| {
        let body = format!(
            r#"{{"domain": "edge", "descriptors": [
                {{"entries": [{{"key": "remote_address", "value": "192.0.2.7"}}]{hits}}}
            ]}}"#
        );
        call(&app, LOCAL, "POST /json", &[], body).await.status.as_u16()
    };
    for (hits, expected) in [(r#", "hitsAddend": "0""#, 200), ("", 200), ("", 429)] {
        assert_eq!(ask(hits).await, expected, "{hits}");
    }
}

#[tokio::test]
async fn authz_decides_the_method_and_path_of_the_call() {
    let app = app(LOGIN);
    // A client may add headers of the other families.
    let headers = [
        ("x-forwarded-for", "192.0.2.7"),
        ("x-forwarded-uri", "/"),
        ("x-original-uri", "/"),
        ("host", "app.example"),
    ];
    for (target, expected) in [
        ("POST /authz/login", 200),
        ("GET /authz/login", 200),
        ("POST /authz/%6Cogin?a=b", 200),
        ("POST /authz//login", 429),
        ("POST /authz/", 200),
        ("POST /authz", 200),
        ("DELETE /authz/any/path", 200),
    ] {
        let answer = call(&app, GATEWAY, target, &headers, "").await;
        assert_eq!(answer.status.as_u16(), expected, "{target}");
    }
}

#[tokio::test]
async fn a_failing_store_is_answered_as_the_failure_policy_says() {
    for (on_failure, expected) in [(OnFailure::Allow, 200), (OnFailure::Reject, 503)] {
        let limiter = limiter(LOGIN).store(FailingStore).on_store_failure(on_failure);
        let app = app_of(&limiter.build().unwrap(), settings());
        assert_eq!(decide(&app, "192.0.2.7").await.status.as_u16(), expected);
    }
}

fn descriptors(hits: &str) -> String {
    format!(
        r#"{{"domain": "edge", "descriptors": [
            {{"entries": [{{"key": "user", "value": "alice"}}]{hits}}},
            {{"entries": [{{"key": "unknown", "value": "x"}}]}}
        ]}}"#
    )
}

#[tokio::test]
async fn json_is_that_of_envoys_service() {
    let app = app(LOGIN);
    let json = |hits: &str| {
        let body = descriptors(hits);
        let app = app.clone();
        async move { call(&app, LOCAL, "POST /json", &[], body).await }
    };
    for (hits, remaining) in [
        ("", 9),
        (r#", "hitsAddend": 2"#, 7),
        (r#", "hits_addend": "3""#, 4),
        (r#", "hitsAddend": null"#, 3),
    ] {
        let answer = json(hits).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
        let answer = answer.json();
        assert_eq!(answer["overallCode"], "OK");
        let statuses = answer["statuses"].as_array().unwrap();
        assert_eq!((statuses.len(), &statuses[1]), (2, &json!({ "code": "OK" })));
        assert_eq!(statuses[0]["limitRemaining"], remaining);
        let limit = &statuses[0]["currentLimit"];
        assert_eq!((&limit["requestsPerUnit"], &limit["unit"]), (&json!(10), &json!("MINUTE")));
        let reset = statuses[0]["durationUntilReset"].as_str().unwrap();
        assert!(reset.ends_with('s') && reset[..reset.len() - 1].parse::<f64>().is_ok(), "{reset}");
        assert!(has_header(&answer, "x-rate-limit-remaining"), "{answer}");
    }
    let denied = json(r#", "hitsAddend": 4"#).await;
    assert_eq!(denied.status, StatusCode::TOO_MANY_REQUESTS);
    let answer = denied.json();
    assert_eq!(
        (&answer["overallCode"], &answer["statuses"][0]["code"]),
        (&json!("OVER_LIMIT"), &json!("OVER_LIMIT"))
    );
    assert!(has_header(&answer, "retry-after") && answer["rawBody"].is_string(), "{answer}");
    let limit = r#", "limit": {"requests_per_unit": 1, "unit": "HOUR"}"#;
    for expected in [200, 429] {
        assert_eq!(json(limit).await.status.as_u16(), expected);
    }
}

fn has_header(answer: &Value, name: &str) -> bool {
    let headers = answer["responseHeadersToAdd"].as_array().unwrap();
    headers.iter().any(|header| header["key"] == name)
}

#[tokio::test]
async fn errors_of_json_name_the_field_the_value_and_what_is_expected() {
    let app = app(LOGIN);
    for (body, expected) in [
        (
            r#"{"domian": "edge"}"#,
            "domian: unknown field `domian`, expected one of `domain`, `descriptors`, `hitsAddend`, `hits_addend`",
        ),
        (r#"{"domain": 1}"#, "domain: invalid type: integer `1`, expected text"),
        (
            r#"{"hitsAddend": -1}"#,
            "hitsAddend: invalid type: integer `-1`, expected a whole number that is not negative",
        ),
        (
            r#"{"hitsAddend": 4294967296}"#,
            "hitsAddend: invalid value: integer `4294967296`, expected a whole number from 0 to 4294967295",
        ),
        (
            r#"{"descriptors": [{"limit": {"unit": "FORTNIGHT"}}]}"#,
            "descriptors[0].limit.unit: invalid value: string \"FORTNIGHT\", expected SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR",
        ),
        (
            r#"{"descriptors": [{"limit": {"requestsPerUnit": 1}}]}"#,
            "limit.unit 0: expected SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR",
        ),
        ("{", "body: not JSON: EOF while parsing an object at line 1, column 1"),
        ("{} x", "body: not JSON: trailing characters at line 1, column 4"),
    ] {
        let answer = call(&app, LOCAL, "POST /json", &[], body).await;
        assert_eq!((answer.status, &*answer.message()), (StatusCode::BAD_REQUEST, expected));
    }
}

#[tokio::test]
async fn json_is_for_gateways_and_for_callers_with_the_token() {
    let limiter: RateLimiter = limiter(LOGIN).build().unwrap();
    let bearer = format!("Bearer {TOKEN}");
    let of_proxy = ("x-forwarded-for", "192.0.2.7");
    let token = ("authorization", &*bearer);
    let cases: [(HttpSettings, &str, SentHeaders<'_>, u16); 8] = [
        (settings(), GATEWAY, &[], 200),
        (settings(), LOCAL, &[], 200),
        (settings(), LOCAL, &[of_proxy], 403),
        (settings(), LOCAL, &[("origin", "https://other.example")], 403),
        (settings(), STRANGER, &[token], 403),
        (with_token(), GATEWAY, &[], 200),
        (with_token(), LOCAL, &[], 401),
        (with_token(), STRANGER, &[token], 200),
    ];
    for (settings, peer, headers, expected) in cases {
        let app = app_of(&limiter, settings);
        let answer = call(&app, peer, "POST /json", headers, "{}").await;
        assert_eq!(answer.status.as_u16(), expected, "{peer} {headers:?}");
    }
}
