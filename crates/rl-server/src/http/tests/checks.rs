//! `/v1/check` and its siblings, and the paths for operators.

use axum::Router;
use axum::http::StatusCode;
use rl_core::OnFailure;
use serde_json::{Value, json};

use super::call::{
    GATEWAY, LOCAL, STRANGER, SentHeaders, TOKEN, app, app_of, call, limiter, post, settings,
    with_token,
};
use super::failing_store::FailingStore;
use crate::http::{BearerToken, HttpSettings};

const RULES: &str = "
rules:
  clients: { per: 'header:x-api-key', limits: [10/minute, 100/day] }
  addresses: { match: { path: /login }, per: address, limits: 3/minute }
  consumers: { match: { path: /orders }, per: identified, limits: 5/minute }
  export: { match: { path: /export }, per: address, limits: 60/hour, cost: 20 }
  fleet: { match: { path: /login }, limits: 1000/second, shadow: true }
";

/// Returns the status, the reason, and the remaining units of each limit.
async fn decide(app: &Router, path: &str, json: &str) -> (u16, Value, Vec<u64>) {
    let answer = post(app, path, json).await;
    let (status, answer) = (answer.status.as_u16(), answer.json());
    assert_eq!(answer["allowed"], status == 200, "{answer}");
    let limits = answer["limits"].as_array().unwrap_or_else(|| panic!("{answer}"));
    let remaining = limits.iter().filter_map(|limit| limit["remaining"].as_u64());
    (status, answer["reason"].clone(), remaining.collect())
}

#[tokio::test]
async fn subjects_under_named_rules_are_all_charged_or_none() {
    let app = app(RULES);
    let both = r#"{"subjects": [
        {"rule": "clients", "subject": "consumer:abc", "cost": 4},
        {"rule": "addresses", "subject": "ip:192.0.2.7"}
    ]}"#;
    assert_eq!(decide(&app, "/v1/check", both).await, (200, Value::Null, vec![6, 96, 2]));
    assert_eq!(decide(&app, "/v1/check", both).await, (200, Value::Null, vec![2, 92, 1]));
    let denied = post(&app, "/v1/check", both).await;
    assert_eq!(denied.status, StatusCode::TOO_MANY_REQUESTS);
    let denied = denied.json();
    assert_eq!((&denied["allowed"], &denied["reason"]), (&json!(false), &json!("over_limit")));
    let wait = denied["retry_after"].as_u64().unwrap();
    assert!((1..=60).contains(&wait), "{wait}");
    assert_eq!(denied["headers"]["retry-after"], wait.to_string());
    let minute = &denied["limits"][0];
    assert_eq!((&minute["rule"], &minute["name"]), (&json!("clients"), &json!("minute")));
    assert_eq!((&minute["limit"], &minute["remaining"]), (&json!(10), &json!(2)));
    assert_eq!((&minute["over"], &minute["shadow"]), (&json!(true), &json!(false)));
    assert_eq!(denied["limits"][2]["over"], false);
    // The denial charged nothing to the address.
    let address = r#"{"subjects": [{"rule": "addresses", "subject": "ip:192.0.2.7"}]}"#;
    assert_eq!(decide(&app, "/v1/check", address).await, (200, Value::Null, vec![0]));
}

#[tokio::test]
async fn a_described_request_is_decided_under_the_rules_that_match_it() {
    let app = app(RULES);
    let login = r#"{"request": {
        "method": "POST", "path": "/login", "query": "a=b", "host": "app.example",
        "address": "192.0.2.7", "headers": {"x-api-key": "k", "accept": ["a", "b"]}
    }}"#;
    assert_eq!(decide(&app, "/v1/check", login).await, (200, Value::Null, vec![9, 99, 2, 999]));
    let orders =
        r#"{"request": {"path": "/orders", "headers": {"x-api-key": "k"}, "consumer": "abc"}}"#;
    assert_eq!(decide(&app, "/v1/check", orders).await, (200, Value::Null, vec![8, 98, 4]));
    // The subject of a described request is that of its rule.
    let abc = r#"{"subjects": [{"rule": "consumers", "subject": "consumer:abc"}]}"#;
    assert_eq!(decide(&app, "/v1/peek", abc).await, (200, Value::Null, vec![4]));
}

#[tokio::test]
async fn a_peek_charges_nothing_and_a_charge_exceeds_the_limits() {
    let app = app(RULES);
    let cost = |cost: u64| {
        format!(
            r#"{{"subjects": [{{"rule": "clients", "subject": "consumer:abc", "cost": {cost}}}]}}"#
        )
    };
    assert_eq!(decide(&app, "/v1/peek", &cost(10)).await, (200, Value::Null, vec![10, 100]));
    assert_eq!(decide(&app, "/v1/peek", &cost(11)).await.0, 429);
    let charged = post(&app, "/v1/charge", &cost(30)).await;
    assert_eq!((charged.status, &charged.json()["allowed"]), (StatusCode::OK, &json!(true)));
    assert_eq!(decide(&app, "/v1/check", &cost(1)).await, (429, json!("over_limit"), vec![0, 70]));
}

#[tokio::test]
async fn the_reason_names_the_cause_if_no_limit_decided() {
    let rules_of_request = r#"{"request": {"path": "/login"}}"#;
    let keyed = r#"{"request": {"path": "/login", "headers": {"x-api-key": "k"}}}"#;
    let ambiguous = r#"{"request": {"headers": {"x-api-key": ["a", "b"]}}}"#;
    let blocked = r#"{"subjects": [{"rule": "banned", "subject": "consumer:abc"}]}"#;
    let uncounted = r#"{"request": {"path": "/free"}}"#;
    let app_of_rules = app(RULES);
    let others = app("rules: { banned: { match: { path: /banned }, limits: 0/minute } }");
    for (app, body, status, reason) in [
        (&app_of_rules, rules_of_request, 429, "missing_key"),
        (&app_of_rules, keyed, 429, "unknown_address"),
        (&app_of_rules, ambiguous, 429, "ambiguous_key"),
        (&others, blocked, 429, "policy"),
        (&others, uncounted, 200, "not_counted"),
    ] {
        let answer = post(app, "/v1/check", body).await;
        assert_eq!((answer.status.as_u16(), &answer.json()["reason"]), (status, &json!(reason)));
        assert_eq!(answer.json()["retry_after"], Value::Null, "{body}");
    }
    let subject = r#"{"subjects": [{"rule": "clients", "subject": "consumer:abc"}]}"#;
    for (on_failure, status, reason) in
        [(OnFailure::Allow, 200, "failed_open"), (OnFailure::Reject, 503, "unavailable")]
    {
        let limiter = limiter(RULES).store(FailingStore).on_store_failure(on_failure);
        let app = app_of(&limiter.build().unwrap(), settings());
        let answer = post(&app, "/v1/check", subject).await;
        assert_eq!((answer.status.as_u16(), &answer.json()["reason"]), (status, &json!(reason)));
    }
}

#[tokio::test]
async fn errors_name_the_field_the_value_and_what_is_expected() {
    let app = app(RULES);
    let nine = format!(
        r#"{{"subjects": [{}]}}"#,
        [r#"{"rule": "clients", "subject": "user:a"}"#; 9].join(", ")
    );
    #[rustfmt::skip]
    let table = [
        ("{}", "body: expected one of subjects and request"),
        (r#"{"subjects": [], "request": {}}"#, "request: expected none beside subjects"),
        (r#"{"subjects": []}"#, "subjects: expected 1 to 8 of them, found 0"),
        (&nine, "subjects: expected 1 to 8 of them, found 9"),
        (r#"{"subjects": [{"rule": "clients"}]}"#, "subjects[0]: missing field `subject`"),
        (r#"{"subjects": [{"rule": "client", "subject": "user:a"}]}"#, "subjects[0].rule \"client\": expected one of the rules: clients, addresses, consumers, export, fleet, edge.user, edge.override"),
        (r#"{"subjects": [{"rule": "clients", "subject": "abc"}]}"#, "subjects[0].subject \"abc\": expected realm:id, such as consumer:abc"),
        (r#"{"subjects": [{"rule": "clients", "subject": "user:a", "cost": "2"}]}"#, "subjects[0].cost: invalid type: string \"2\", expected a whole number from 0 to 9007199254740991"),
        (r#"{"subjects": [{"rule": "clients", "subject": "user:a", "cost": 9007199254740992}]}"#, "subjects[0].cost \"9007199254740992\": expected a whole number from 0 to 9007199254740991"),
        (r#"{"subjects": [{"rule": "clients", "subject": "user:a", "costs": 2}]}"#, "subjects[0].costs: unknown field `costs`, expected one of `rule`, `subject`, `cost`"),
        (r#"{"subjects": {}}"#, "subjects: invalid type: map, expected a list"),
        (r#"{"request": {"method": "a b"}}"#, "request.method \"a b\": expected a method such as GET"),
        (r#"{"request": {"path": "/a?b"}}"#, "request.path \"/a?b\": expected a path without ?, and the rest in request.query"),
        (r#"{"request": {"address": "localhost"}}"#, "request.address \"localhost\": expected an address such as 192.0.2.7 or 2001:db8::1"),
        (r#"{"request": {"headers": {"a b": "c"}}}"#, "request.headers \"a b\": expected a name of a header"),
        (r#"{"request": {"headers": {"authorization": "secret\u0000"}}}"#, "request.headers.authorization: expected no control characters"),
        (r#"{"request": {"headers": {"a": 1}}}"#, "request.headers.a: invalid type: integer `1`, expected text or a list of texts"),
        (r#"{"request": {"consumer": ""}}"#, "request.consumer \"\": expected an id that is not empty"),
    ];
    for (body, expected) in table {
        let answer = post(&app, "/v1/check", body).await;
        assert_eq!((answer.status.as_u16(), &*answer.message()), (400, expected), "{body}");
        assert!(answer.json()["field"].is_string(), "{}", answer.body);
    }
    let long = "x".repeat(10_000);
    let answer = post(&app, "/v1/check", &format!(r#"{{"request": "{long}"}}"#)).await;
    assert!(answer.status == 400 && answer.message().len() < 300, "{}", answer.message());
}

#[tokio::test]
async fn bodies_are_bounded_and_must_be_declared_as_json() {
    let app = app(RULES);
    let fits = format!(r#"{{"request": {{"query": "{}"}}}}"#, "x".repeat(65_536 - 26));
    assert_eq!(post(&app, "/v1/peek", &fits).await.status, StatusCode::TOO_MANY_REQUESTS);
    let longer = post(&app, "/v1/peek", &format!("{fits} ")).await;
    assert_eq!(longer.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(longer.message(), "body: expected at most 65536 bytes");
    let form = [("content-type", "application/x-www-form-urlencoded")];
    let answer = call(&app, LOCAL, "POST /v1/peek", &form, fits).await;
    assert_eq!(answer.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
}

#[tokio::test]
async fn callers_need_the_token_or_without_one_have_to_be_on_this_machine() {
    let limiter = limiter(RULES).build().unwrap();
    let bearer = format!("Bearer {TOKEN}");
    let (token, wrong) = (("authorization", &*bearer), ("authorization", "Bearer wrong"));
    let short = ("authorization", &bearer[..bearer.len() - 1]);
    let of_proxy = ("x-forwarded-for", "192.0.2.7");
    let cases: [(HttpSettings, &str, SentHeaders<'_>, u16); 22] = [
        (settings(), LOCAL, &[], 200),
        (settings(), LOCAL, &[("host", "localhost:8080")], 200),
        (settings(), LOCAL, &[("host", "[::1]:8080")], 200),
        // A page whose name an attacker resolves to this machine, and a page of another site.
        (settings(), LOCAL, &[("host", "rebound.example:8080")], 403),
        (settings(), LOCAL, &[("host", "localhost.example")], 403),
        (settings(), LOCAL, &[("host", "127.0.0.1"), ("host", "rebound.example")], 403),
        (settings(), LOCAL, &[("host", "user@rebound.example:80")], 403),
        (settings(), LOCAL, &[("host", "")], 403),
        (
            settings(),
            LOCAL,
            &[("host", "127.0.0.1:8080"), ("origin", "http://127.0.0.1:8080")],
            403,
        ),
        (settings(), LOCAL, &[("host", "127.0.0.1:8080"), ("origin", "null")], 403),
        (with_token(), LOCAL, &[token, ("host", "decisions.example"), ("origin", "null")], 200),
        (settings(), "::1", &[], 200),
        (settings(), "::ffff:127.0.0.1", &[], 200),
        (settings(), LOCAL, &[of_proxy], 403),
        (settings(), GATEWAY, &[], 403),
        (settings(), STRANGER, &[token], 403),
        (with_token(), STRANGER, &[token], 200),
        (with_token(), LOCAL, &[], 401),
        (with_token(), GATEWAY, &[wrong], 401),
        (with_token(), GATEWAY, &[short], 401),
        (with_token(), GATEWAY, &[("authorization", TOKEN)], 401),
        (with_token(), GATEWAY, &[token, token], 401),
    ];
    for (settings, peer, headers, expected) in cases {
        let app = app_of(&limiter, settings);
        let mut headers = headers.to_vec();
        headers.push(("content-type", "application/json"));
        let body = r#"{"subjects": [{"rule": "fleet", "subject": "global:-"}]}"#;
        for path in ["check", "peek", "charge", "acquire", "settle", "refund"] {
            let target = format!("POST /v1/{path}");
            let answer = call(&app, peer, &target, &headers, body).await;
            let needs_permit = matches!(path, "settle" | "refund");
            let expected = if needs_permit && expected == 200 { 400 } else { expected };
            assert_eq!(answer.status.as_u16(), expected, "{path} {peer} {headers:?}");
            let challenge = answer.header("www-authenticate");
            assert_eq!(challenge, (expected == 401).then_some("Bearer"));
        }
    }
}

#[test]
fn a_token_is_long_and_never_shown() {
    for token in ["", "short", "nineteen-characters", "twenty characters with spaces"] {
        let error = BearerToken::new(token).unwrap_err();
        assert!(error.to_string().contains("at least 20 visible"), "{error}");
    }
    let shown = format!("{:?}", with_token());
    assert!(!shown.contains(TOKEN), "{shown}");
}

#[tokio::test]
async fn operators_see_the_state_and_the_counts_without_a_token() {
    let healthy = limiter(RULES).build().unwrap();
    let settings = with_token();
    let readiness = settings.readiness.clone();
    let app = app_of(&healthy, settings);
    let get = async |path: &str| call(&app, STRANGER, &format!("GET {path}"), &[], "").await;
    assert_eq!(
        (get("/healthz").await.status, get("/readyz").await.status.as_u16()),
        (StatusCode::OK, 200)
    );
    readiness.set_unready("the server stops");
    let unready = get("/readyz").await;
    assert_eq!(
        (unready.status.as_u16(), unready.json()),
        (503, json!({ "ready": false, "reason": "the server stops", "store_reachable": true }))
    );
    readiness.set_ready();
    assert_eq!(get("/readyz").await.json(), json!({ "ready": true, "store_reachable": true }));

    let headers = [
        ("x-forwarded-method", "GET"),
        ("x-forwarded-uri", "/free"),
        ("x-forwarded-for", "192.0.2.7"),
        ("x-api-key", "k"),
    ];
    call(&app, GATEWAY, "GET /decide", &headers, "").await;
    let metrics = get("/metrics").await;
    let line = "rl_decisions_total{limiter=\"default\",origin=\"store\",outcome=\"allowed\"} 1";
    assert!(metrics.body.contains(line), "{}", metrics.body);
    let unknown =
        r#"{"domain": "other", "descriptors": [{"entries": [{"key": "a", "value": "b"}]}]}"#;
    let of_json = [("content-type", "application/json")];
    let answer = call(&app, GATEWAY, "POST /json", &of_json, unknown).await;
    assert_eq!(answer.status, StatusCode::OK);
    let metrics = get("/metrics").await;
    let line = "rl_server_unknown_domain_requests_total 1\n";
    assert!(metrics.body.contains(line), "{}", metrics.body);

    let failing = limiter(RULES).store(FailingStore).build().unwrap();
    let failing = app_of(&failing, with_token());
    let answer = call(&failing, STRANGER, "GET /readyz", &[], "").await;
    assert_eq!(
        (answer.status.as_u16(), &answer.json()["reason"]),
        (503, &json!("the store has not answered since the start"))
    );
    for (target, expected) in [("GET /", 404), ("DELETE /decide", 405), ("GET /v1/check", 405)] {
        let answer = call(&failing, STRANGER, target, &[], "").await;
        assert_eq!((answer.status.as_u16(), &answer.json()["code"]), (expected, &json!(expected)));
    }
}

#[tokio::test]
async fn the_document_describes_the_paths_and_their_bodies() {
    let app = app(RULES);
    let document = call(&app, STRANGER, "GET /openapi.json", &[], "").await.json();
    let paths: Vec<&str> =
        document["paths"].as_object().unwrap().keys().map(|key| &**key).collect();
    let mut expected = vec![
        "/decide",
        "/decide/403",
        "/decide/original",
        "/decide/original/403",
        "/json",
        "/v1/check",
        "/v1/peek",
        "/v1/charge",
        "/v1/acquire",
        "/v1/settle",
        "/v1/refund",
        "/healthz",
        "/readyz",
    ];
    expected.sort_unstable();
    let mut paths = paths;
    paths.sort_unstable();
    assert_eq!(paths, expected);
    let schemas = &document["components"]["schemas"];
    for name in
        ["CheckInput", "AcquireInput", "CheckAnswer", "AcquireAnswer", "SettleInput", "Problem"]
    {
        assert!(schemas[name].is_object(), "{name}");
    }
    let required = &schemas["CheckAnswer"]["required"];
    assert_eq!(required, &json!(["allowed", "retry_after", "reason", "limits", "headers"]));
    let methods = document["paths"]["/decide"].as_object().unwrap();
    assert_eq!(methods.len(), 3);
}
