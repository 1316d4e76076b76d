//! Roles and the operations that they allow.

use rl_admin::Role;
use serde_json::json;

use super::{
    ACTIVE, ALICE, Bank, CALL_LIMITS, RATE_LIMITS, WITHOUT_ROLES, in_every_world, message, record,
    stored, token_of,
};

/// Every operation: its method, its path, and the role that it requires.
const OPERATIONS: [(&str, &str, Option<Role>); 61] = [
    ("GET", "/management/rate-limiting", None),
    ("GET", "/health/redis", None),
    ("GET", "/openapi.json", None),
    ("GET", CALL_LIMITS, Some(Role::CanReadCallLimits)),
    ("PUT", CALL_LIMITS, Some(Role::CanSetCallLimits)),
    ("GET", RATE_LIMITS, Some(Role::CanReadCallLimits)),
    ("POST", RATE_LIMITS, Some(Role::CanCreateRateLimits)),
    ("GET", ID, Some(Role::CanReadCallLimits)),
    ("PUT", ID, Some(Role::CanUpdateRateLimits)),
    ("DELETE", ID, Some(Role::CanDeleteRateLimits)),
    ("GET", ID_HISTORY, Some(Role::CanGetRateLimits)),
    ("GET", "/management/rate-limits", Some(Role::CanGetRateLimits)),
    ("GET", "/management/limits", Some(Role::CanGetRateLimits)),
    ("POST", "/management/limits", Some(Role::CanCreateRateLimits)),
    ("GET", LIMITS, Some(Role::CanGetRateLimits)),
    ("PUT", LIMITS, Some(Role::CanUpdateRateLimits)),
    ("DELETE", LIMITS, Some(Role::CanDeleteRateLimits)),
    ("GET", LIMITS_HISTORY, Some(Role::CanGetRateLimits)),
    ("GET", "/management/history", Some(Role::CanGetRateLimits)),
    ("GET", "/management/consumers/abc", Some(Role::CanGetRateLimits)),
    ("GET", ACTIVE, Some(Role::CanGetRateLimits)),
    (
        "GET",
        "/management/consumers/abc/active-rate-limits/2025-12-31-13",
        Some(Role::CanGetRateLimits),
    ),
    ("GET", "/management/consumers/abc/call-counters", Some(Role::CanGetRateLimits)),
    ("DELETE", "/management/consumers/abc/call-counters", Some(Role::CanResetCallCounters)),
    ("DELETE", "/management/consumers/abc/call-counters/per_day", Some(Role::CanResetCallCounters)),
    ("GET", "/management/consumers/abc/history", Some(Role::CanGetRateLimits)),
    ("GET", "/management/consumers/abc/explain", Some(Role::CanGetRateLimits)),
    ("PUT", "/management/consumers/abc/block", Some(Role::CanCreateRateLimits)),
    ("GET", "/management/consumers/abc/block", Some(Role::CanReadCallLimits)),
    ("DELETE", "/management/consumers/abc/block", Some(Role::CanDeleteRateLimits)),
    ("GET", "/management/subjects/ip/192.0.2.7/usage", Some(Role::CanGetRateLimits)),
    ("DELETE", "/management/subjects/ip/192.0.2.7/usage", Some(Role::CanResetCallCounters)),
    ("DELETE", "/management/subjects/ip/192.0.2.7/usage/hour", Some(Role::CanResetCallCounters)),
    ("GET", "/management/subjects/ip/192.0.2.7/explain", Some(Role::CanGetRateLimits)),
    ("DELETE", "/management/subjects/ip/192.0.2.7/usage?rule=x", Some(Role::CanResetCallCounters)),
    ("GET", "/management/consumers/abc/call-counters?rule=x", Some(Role::CanGetRateLimits)),
    (
        "GET",
        "/management/consumers/abc/explain?path=/&method=GET&address=192.0.2.7",
        Some(Role::CanGetRateLimits),
    ),
    ("GET", "/management/top-subjects", Some(Role::CanGetRateLimits)),
    ("GET", "/management/resources", Some(Role::CanGetRateLimits)),
    ("POST", "/management/resources", Some(Role::CanCreateRateLimits)),
    ("PUT", "/management/resources/payments", Some(Role::CanUpdateRateLimits)),
    ("DELETE", "/management/resources/payments", Some(Role::CanDeleteRateLimits)),
    ("GET", "/management/resources/payments", Some(Role::CanGetRateLimits)),
    ("GET", "/management/resources/payments/usage", Some(Role::CanGetRateLimits)),
    ("GET", "/management/resources/payments/history", Some(Role::CanGetRateLimits)),
    ("GET", "/management/consumers", Some(Role::CanGetRateLimits)),
    ("GET", "/management/tiers", Some(Role::CanGetRateLimits)),
    ("GET", "/management/tiers/gold", Some(Role::CanGetRateLimits)),
    ("POST", "/management/tiers/gold", Some(Role::CanCreateRateLimits)),
    ("PUT", "/management/tiers/gold", Some(Role::CanUpdateRateLimits)),
    ("DELETE", "/management/tiers/gold", Some(Role::CanDeleteRateLimits)),
    ("GET", "/management/subjects/consumer/abc/tier", Some(Role::CanReadCallLimits)),
    ("PUT", "/management/subjects/consumer/abc/tier", Some(Role::CanSetCallLimits)),
    ("DELETE", "/management/subjects/consumer/abc/tier", Some(Role::CanSetCallLimits)),
    ("GET", "/management/subscriptions", Some(Role::CanGetRateLimits)),
    ("POST", "/management/subscriptions", Some(Role::CanCreateRateLimits)),
    ("GET", SUBSCRIPTION, Some(Role::CanGetRateLimits)),
    ("PUT", SUBSCRIPTION_STATUS, Some(Role::CanSetSubscriptionStatus)),
    ("PUT", SUBSCRIPTION_DATES, Some(Role::CanUpdateRateLimits)),
    ("GET", SUBSCRIPTION_HISTORY, Some(Role::CanGetRateLimits)),
    ("GET", "/management/applications/shop/resources", Some(Role::CanGetRateLimits)),
];

const ID: &str =
    "/management/consumers/abc/consumer/rate-limits/00000000-0000-4000-8000-000000000000";
const ID_HISTORY: &str =
    "/management/consumers/abc/consumer/rate-limits/00000000-0000-4000-8000-000000000000/history";
const LIMITS: &str = "/management/limits/00000000-0000-4000-8000-000000000000";
const LIMITS_HISTORY: &str = "/management/limits/00000000-0000-4000-8000-000000000000/history";
const SUBSCRIPTION: &str = "/management/subscriptions/00000000-0000-4000-8000-000000000000";
const SUBSCRIPTION_STATUS: &str =
    "/management/subscriptions/00000000-0000-4000-8000-000000000000/status";
const SUBSCRIPTION_DATES: &str =
    "/management/subscriptions/00000000-0000-4000-8000-000000000000/dates";
const SUBSCRIPTION_HISTORY: &str =
    "/management/subscriptions/00000000-0000-4000-8000-000000000000/history";

fn body_of(method: &str) -> Option<serde_json::Value> {
    ["POST", "PUT"].contains(&method).then(|| record([1, -1, -1, -1, -1, -1]))
}

/// Requests without credentials or with unknown credentials are rejected.
#[tokio::test]
async fn unknown_credentials_get_401_on_every_route() {
    in_every_world(async |bank: Bank| {
        let long = "x".repeat(4_000);
        for (method, path, _) in OPERATIONS
            .into_iter()
            .chain([("GET", "/nothing", None), ("PATCH", "/management/history", None)])
        {
            for token in ["", "wrong", ALICE.trim_end_matches('l'), &format!("{ALICE}x"), &long] {
                let answer = bank.as_who(token, method, path, body_of(method)).await;
                assert_eq!(answer.status, 401, "{method} {path} {token}");
                assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
                assert!(message(&answer).starts_with("OBP-20001: "), "{}", answer.body);
            }
        }
        for value in ["", "Bearer", "Bearer ", "Basic YWxpY2U6", ALICE, "Bearer \u{fc}"] {
            let request = bank.site.get(&format!("/obp/v6.0.0{RATE_LIMITS}"));
            let answer = request.header("authorization", value.as_bytes()).send().await.unwrap();
            assert_eq!(answer.status(), 401, "{value}");
        }
        let twice = bank.site.get(&format!("/obp/v6.0.0{RATE_LIMITS}"));
        let twice =
            twice.bearer_auth(ALICE).header("authorization", format!("Bearer {WITHOUT_ROLES}"));
        assert_eq!(twice.send().await.unwrap().status(), 400, "it is not clear who it is");
        assert_eq!(stored(&bank.records).await, 0);
    })
    .await;
}

/// Without the required role, the response names the role, even if the request has other errors.
#[tokio::test]
async fn each_operation_needs_its_role_and_no_other() {
    in_every_world(async |bank: Bank| {
        for (method, path, role) in OPERATIONS {
            let Some(role) = role else {
                let answer = bank.as_who(WITHOUT_ROLES, method, path, None).await;
                assert!([200, 503].contains(&answer.status), "{path}: {}", answer.status);
                continue;
            };
            for other in Role::ALL {
                let token = token_of(other);
                let answer = bank.as_who(&token, method, path, Some(json!({ "wrong": 1 }))).await;
                if other == role {
                    assert!(![401, 403].contains(&answer.status), "{method} {path}");
                } else {
                    assert_eq!(answer.status, 403, "{method} {path} as {other}");
                    assert!(message(&answer).ends_with(&format!("UserHasMissingRoles: {role}")));
                }
            }
        }
        assert_eq!(stored(&bank.records).await, 0);
    })
    .await;
}

/// Under the path of a consumer, a record of another consumer is not found, whatever the operation.
#[tokio::test]
async fn a_record_of_another_consumer_is_not_found() {
    in_every_world(async |bank: Bank| {
        let id = bank.add([1, -1, -1, -1, -1, -1]).await;
        let foreign = format!("/management/consumers/mallory/consumer/rate-limits/{id}");
        for (method, body) in [("GET", None), ("PUT", Some(record([-1; 6]))), ("DELETE", None)] {
            let answer = bank.manage(method, &foreign, body).await;
            assert_eq!(answer.status, 404, "{method}");
            assert_eq!(message(&answer), format!("Rate limiting ID {id} not found"));
        }
        let changes = bank.get(&format!("{foreign}/history")).await;
        assert_eq!(changes["changes"], json!([]));
        assert_eq!(bank.get(&format!("{RATE_LIMITS}/{id}")).await["revision"], 1);
    })
    .await;
}

#[tokio::test]
async fn requests_without_authorization_are_rejected() {
    let records = rl_records::Records::connect("sqlite::memory:").await.unwrap();
    let source = rl_records::RecordSource::start(&records);
    let limiter = rl_core::RateLimiter::builder().policies(source.clone()).build().unwrap();
    let admin = rl_admin::Admin::builder(records, limiter).build();
    let site = rl_tests::web::axum::serve(admin.router());
    for (method, path, _) in OPERATIONS {
        let method = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
        let request = site.request(method, path).bearer_auth(ALICE);
        assert_eq!(request.send().await.unwrap().status(), 401, "{path}");
    }
}

/// The table `OPERATIONS` contains every operation of the OpenAPI document. An operation that is
/// missing in the table would not be tested.
#[tokio::test]
async fn every_operation_of_the_document_is_tried() {
    let bank = Bank::embedded().await;
    let document = bank.get("/openapi.json").await;
    let is_tried = |method: &str, template: &str| {
        OPERATIONS.iter().any(|(tried, path, _)| {
            let mut parts = path.split('/').zip(template.split('/'));
            *tried == method
                && path.matches('/').count() == template.matches('/').count()
                && parts.all(|(part, named)| named.starts_with('{') || part == named)
        })
    };
    for (path, operations) in document["paths"].as_object().unwrap() {
        for method in operations.as_object().unwrap().keys() {
            let method = method.to_uppercase();
            assert!(is_tried(&method, path), "{method} {path}");
        }
    }
}

/// Tools and browsers can read the OpenAPI document without a token, if the setting allows it.
#[tokio::test]
async fn only_the_document_needs_no_token_when_it_is_public() {
    let records = rl_records::Records::connect("sqlite::memory:").await.unwrap();
    let source = rl_records::RecordSource::start(&records);
    let limiter = rl_core::RateLimiter::builder().policies(source.clone()).build().unwrap();
    let admin = rl_admin::Admin::builder(records, limiter).authorize(super::tokens());
    let site = rl_tests::web::axum::serve(admin.public_document(true).build().router());
    let status = async |path: &str| site.get(path).send().await.unwrap().status();
    assert_eq!(status("/openapi.json").await, 200);
    for path in ["/management/rate-limiting", "/nothing", "/openapi.json/"] {
        assert_eq!(status(path).await, 401, "{path}");
    }
}
