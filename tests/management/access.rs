//! Roles and the operations that they allow.

use reqwest::Method;
use rl_admin::Role::{
    self, CanCreateRateLimits, CanDeleteRateLimits, CanGetRateLimits, CanReadCallLimits,
    CanResetCallCounters, CanSetCallLimits, CanSetSubscriptionStatus, CanUpdateRateLimits,
};
use rl_tests::web::Fetch;
use serde_json::{Value, json};

use super::{
    ALICE, Bank, OWNER_OF_SHOP, PREFIX, RATE_LIMITS, WITHOUT_ROLES, in_every_world, message, parse,
    record, stored, token_of,
};

/// A row of the table of operations.
struct Operation {
    method: &'static str,
    /// The path, in which `{APP}`, `{RECORD}` and so on stand for the objects of an application.
    path: &'static str,
    /// The required role, if there is one.
    role: Option<Role>,
    /// The status for an actor with all roles.
    admin: u16,
    /// The status for the owner of `shop` with all roles, if the path or the body names its objects.
    own: u16,
    /// The status for this owner, if they name those of another application, or none that exist.
    foreign: u16,
}

/// Creates a row whose status is the same for every actor with the role.
const fn open(method: &'static str, path: &'static str, role: Role, status: u16) -> Operation {
    row(method, path, role, [status; 3])
}

/// Creates a row for which the objects of other applications do not exist.
const fn scoped(method: &'static str, path: &'static str, role: Role, status: u16) -> Operation {
    row(method, path, role, [status, status, 404])
}

const fn row(
    method: &'static str,
    path: &'static str,
    role: Role,
    [admin, own, foreign]: [u16; 3],
) -> Operation {
    Operation { method, path, role: Some(role), admin, own, foreign }
}

const fn without_role(path: &'static str) -> Operation {
    Operation { method: "GET", path, role: None, admin: 200, own: 200, foreign: 200 }
}

/// Every operation. The rows are sent in this order, so that an object is deleted at the end.
#[rustfmt::skip]
const OPERATIONS: &[Operation] = &[
    without_role("/management/rate-limiting"),
    without_role("/health/redis"),
    without_role("/openapi.json"),
    scoped("GET", "/management/consumers/{APP}/consumer/call-limits", CanReadCallLimits, 200),
    scoped("PUT", "/management/consumers/{APP}/consumer/call-limits", CanSetCallLimits, 200),
    scoped("GET", "/management/consumers/{APP}/consumer/rate-limits", CanReadCallLimits, 200),
    scoped("POST", "/management/consumers/{APP}/consumer/rate-limits", CanCreateRateLimits, 201),
    scoped("GET", "/management/consumers/{APP}/consumer/rate-limits/{RECORD}", CanReadCallLimits, 200),
    scoped("PUT", "/management/consumers/{APP}/consumer/rate-limits/{RECORD}", CanUpdateRateLimits, 200),
    scoped("GET", "/management/consumers/{APP}/consumer/rate-limits/{RECORD}/history", CanGetRateLimits, 200),
    scoped("DELETE", "/management/consumers/{APP}/consumer/rate-limits/{SPARE}", CanDeleteRateLimits, 204),
    open("GET", "/management/rate-limits", CanGetRateLimits, 200),
    open("GET", "/management/limits", CanGetRateLimits, 200),
    row("POST", "/management/limits", CanCreateRateLimits, [201, 201, 403]),
    scoped("GET", "/management/limits/{RECORD}", CanGetRateLimits, 200),
    scoped("PUT", "/management/limits/{RECORD}", CanUpdateRateLimits, 200),
    scoped("GET", "/management/limits/{RECORD}/history", CanGetRateLimits, 200),
    scoped("DELETE", "/management/limits/{RECORD}", CanDeleteRateLimits, 204),
    scoped("GET", "/management/limits/{RECORD}/history", CanGetRateLimits, 200),
    scoped("GET", "/management/limits/{RECORD}", CanGetRateLimits, 404),
    open("GET", "/management/history", CanGetRateLimits, 200),
    scoped("GET", "/management/consumers/{APP}", CanGetRateLimits, 200),
    scoped("GET", "/management/consumers/{APP}/active-rate-limits", CanGetRateLimits, 200),
    scoped("GET", "/management/consumers/{APP}/active-rate-limits/2025-12-31-13", CanGetRateLimits, 200),
    scoped("GET", "/management/consumers/{APP}/call-counters", CanGetRateLimits, 200),
    scoped("GET", "/management/consumers/{APP}/call-counters?rule=x", CanGetRateLimits, 400),
    scoped("DELETE", "/management/consumers/{APP}/call-counters", CanResetCallCounters, 204),
    scoped("DELETE", "/management/consumers/{APP}/call-counters/per_second", CanResetCallCounters, 204),
    scoped("GET", "/management/consumers/{APP}/history", CanGetRateLimits, 200),
    scoped("GET", "/management/consumers/{APP}/explain", CanGetRateLimits, 200),
    row("GET", "/management/consumers/{APP}/explain?path=/&method=GET&address=192.0.2.7", CanGetRateLimits, [200, 403, 404]),
    scoped("PUT", "/management/consumers/{APP}/block", CanCreateRateLimits, 200),
    scoped("GET", "/management/consumers/{APP}/block", CanReadCallLimits, 200),
    scoped("DELETE", "/management/consumers/{APP}/block", CanDeleteRateLimits, 204),
    scoped("GET", "/management/subjects/consumer/{APP}/usage", CanGetRateLimits, 200),
    scoped("DELETE", "/management/subjects/consumer/{APP}/usage", CanResetCallCounters, 204),
    scoped("DELETE", "/management/subjects/consumer/{APP}/usage/second", CanResetCallCounters, 204),
    scoped("DELETE", "/management/subjects/consumer/{APP}/usage?rule=x", CanResetCallCounters, 400),
    scoped("GET", "/management/subjects/consumer/{APP}/explain", CanGetRateLimits, 200),
    row("GET", "/management/subjects/user/{APP}/usage", CanGetRateLimits, [200, 404, 404]),
    row("GET", "/management/subjects/user/{APP}/explain", CanGetRateLimits, [200, 404, 404]),
    row("GET", "/management/subjects/ip/192.0.2.7/usage", CanGetRateLimits, [200, 404, 404]),
    row("GET", "/management/subjects/global/-/usage", CanGetRateLimits, [200, 404, 404]),
    row("GET", "/management/subjects/resource/{RESOURCE}/usage", CanGetRateLimits, [200, 404, 404]),
    open("GET", "/management/top-subjects", CanGetRateLimits, 200),
    open("GET", "/management/usage", CanGetRateLimits, 200),
    open("GET", "/management/usage?consumer={APP}", CanGetRateLimits, 200),
    open("GET", "/management/usage/2025-12", CanGetRateLimits, 200),
    open("GET", "/management/resources", CanGetRateLimits, 200),
    row("POST", "/management/resources", CanCreateRateLimits, [201, 201, 403]),
    scoped("GET", "/management/resources/{RESOURCE}", CanGetRateLimits, 200),
    scoped("PUT", "/management/resources/{RESOURCE}", CanUpdateRateLimits, 200),
    scoped("GET", "/management/resources/{RESOURCE}/usage", CanGetRateLimits, 200),
    scoped("DELETE", "/management/resources/{RESOURCE}", CanDeleteRateLimits, 204),
    scoped("GET", "/management/resources/{RESOURCE}/history", CanGetRateLimits, 200),
    scoped("GET", "/management/applications/{APP}/resources", CanGetRateLimits, 200),
    open("GET", "/management/consumers", CanGetRateLimits, 200),
    row("GET", "/management/rules", CanGetRateLimits, [200, 404, 404]),
    row("POST", "/management/rules/{APP}-rule", CanCreateRateLimits, [201, 404, 404]),
    row("GET", "/management/rules/{APP}-rule", CanGetRateLimits, [200, 404, 404]),
    row("PUT", "/management/rules/{APP}-rule", CanUpdateRateLimits, [200, 404, 404]),
    row("DELETE", "/management/rules/{APP}-rule", CanDeleteRateLimits, [204, 404, 404]),
    open("GET", "/management/tiers", CanGetRateLimits, 200),
    scoped("GET", "/management/tiers/{TIER}", CanGetRateLimits, 200),
    row("POST", "/management/tiers/{TIER}-2", CanCreateRateLimits, [201, 403, 403]),
    row("PUT", "/management/tiers/{TIER}", CanUpdateRateLimits, [200, 403, 403]),
    row("DELETE", "/management/tiers/{TIER}-2", CanDeleteRateLimits, [204, 403, 403]),
    open("GET", "/management/subscriptions", CanGetRateLimits, 200),
    row("POST", "/management/subscriptions", CanCreateRateLimits, [201, 201, 403]),
    scoped("GET", "/management/subscriptions/{SUBSCRIPTION}", CanGetRateLimits, 200),
    scoped("PUT", "/management/subscriptions/{SUBSCRIPTION}/status", CanSetSubscriptionStatus, 200),
    scoped("PUT", "/management/subscriptions/{SUBSCRIPTION}/dates", CanUpdateRateLimits, 200),
    scoped("GET", "/management/subscriptions/{SUBSCRIPTION}/history", CanGetRateLimits, 200),
    scoped("GET", "/management/subjects/consumer/{APP}/tier", CanReadCallLimits, 200),
    scoped("PUT", "/management/subjects/consumer/{APP}/tier", CanSetCallLimits, 200),
    scoped("DELETE", "/management/subjects/consumer/{APP}/tier", CanSetCallLimits, 204),
];

/// The names of the objects of one application.
struct Objects {
    app: String,
    tier: String,
    resource: String,
    record: String,
    /// Another record.
    spare: String,
    subscription: String,
}

impl Objects {
    /// Returns names of objects that do not exist.
    fn none() -> Self {
        let id = |last: char| format!("00000000-0000-4000-8000-00000000000{last}");
        let name = |kind: &str| format!("absent-{kind}");
        Self {
            app: "absent".to_owned(),
            tier: name("tier"),
            resource: name("resource"),
            record: id('1'),
            spare: id('2'),
            subscription: id('3'),
        }
    }

    /// Creates the objects of an application: two records, a tier that its consumer is in, a
    /// requested subscription, and a resource.
    async fn create(bank: &Bank, app: &str) -> Self {
        let own = Self {
            app: app.to_owned(),
            tier: format!("{app}-tier"),
            resource: format!("{app}-resource"),
            ..Self::none()
        };
        let create = async |method: &str, path: &str| {
            let answer = bank.manage(method, &own.fill(path), own.body(method, path)).await;
            assert!([200, 201].contains(&answer.status), "{method} {path}: {}", answer.body);
            parse(&answer)
        };
        let id = |created: &Value, field: &str| created[field].as_str().unwrap().to_owned();
        create("POST", "/management/tiers/{TIER}").await;
        create("PUT", "/management/subjects/consumer/{APP}/tier").await;
        let body = json!({ "name": own.resource, "apps": [app], "max_permits": 3, "rate": 1 });
        let resource = bank.manage("POST", "/management/resources", Some(body)).await;
        assert_eq!(resource.status, 201);
        let record = create("PUT", "/management/consumers/{APP}/consumer/call-limits").await;
        let spare = create("POST", "/management/consumers/{APP}/consumer/rate-limits").await;
        let subscription = create("POST", "/management/subscriptions").await;
        let record = id(&record, "rate_limiting_id");
        let spare = id(&spare, "rate_limiting_id");
        Self { record, spare, subscription: id(&subscription, "subscription_id"), ..own }
    }

    /// Returns the names with which the placeholders of paths are filled.
    fn names(&self) -> [(&str, &str); 6] {
        [
            ("{RECORD}", &self.record),
            ("{SPARE}", &self.spare),
            ("{SUBSCRIPTION}", &self.subscription),
            ("{TIER}", &self.tier),
            ("{RESOURCE}", &self.resource),
            ("{APP}", &self.app),
        ]
    }

    fn fill(&self, path: &str) -> String {
        self.names()
            .into_iter()
            .fold(path.to_owned(), |path, (part, name)| path.replace(part, name))
    }

    /// Returns a response with the placeholders in place of the names.
    fn anonymous(&self, body: &str) -> String {
        self.names()
            .into_iter()
            .fold(body.to_owned(), |body, (part, name)| body.replace(name, part))
    }

    /// Returns a valid body of an operation, if it has one.
    fn body(&self, method: &str, path: &str) -> Option<Value> {
        let app = &*self.app;
        let dates = ["2025-06-01T00:00:00Z", "2026-06-01T00:00:00Z"];
        let [from, to] = dates;
        if !["POST", "PUT"].contains(&method) {
            return None;
        }
        let mut six = record([1_000, -1, -1, -1, -1, -1]);
        Some(match path.trim_start_matches("/management/") {
            // A second record with the same fields would be ambiguous for `call-limits`.
            path if path.ends_with("/rate-limits") => {
                six["api_name"] = json!("spare");
                six
            }
            path if path.ends_with("/block") => json!({ "until": to }),
            path if path.ends_with("/tier") => json!({ "tier": self.tier }),
            path if path.ends_with("/status") => json!({ "status": "active" }),
            path if path.ends_with("/dates") => json!({ "from_date": from, "to_date": to }),
            path if path.starts_with("rules/") => json!({
                "definition": format!("match: {{ path: /{app} }}\nper: address\nlimits: 5/minute"),
            }),
            path if path.starts_with("tiers/") => json!({ "per_minute_call_limit": 5 }),
            "limits" => json!({
                "realm": "consumer", "subject": app, "rule": "login", "limits": ["5/minute:gcra"],
                "from_date": from, "to_date": to,
            }),
            path if path.starts_with("limits/") => {
                json!({ "limits": ["7/second"], "from_date": from, "to_date": to })
            }
            "resources" => {
                json!({ "name": format!("{app}-new"), "apps": [app], "max_permits": 3, "rate": 1 })
            }
            path if path.starts_with("resources/") => {
                json!({ "apps": [app], "max_permits": 4, "rate": 1 })
            }
            "subscriptions" => json!({ "consumer_id": app, "tier": self.tier, "from_date": from }),
            _ => six,
        })
    }
}

/// Requests without credentials or with unknown credentials are rejected.
#[tokio::test]
async fn unknown_credentials_get_401_on_every_route() {
    in_every_world(async |bank: Bank| {
        let long = "x".repeat(4_000);
        let none = Objects::none();
        let known = OPERATIONS.iter().map(|operation| (operation.method, operation.path));
        for (method, path) in known.chain([("GET", "/nothing"), ("PATCH", "/management/history")]) {
            let (path, body) = (none.fill(path), none.body(method, path));
            for token in ["", "wrong", ALICE.trim_end_matches('l'), &format!("{ALICE}x"), &long] {
                let answer = bank.as_who(token, method, &path, body.clone()).await;
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
        for Operation { method, path, role, .. } in OPERATIONS {
            let path = Objects::none().fill(path);
            let Some(role) = *role else {
                let answer = bank.as_who(WITHOUT_ROLES, method, &path, None).await;
                assert!([200, 503].contains(&answer.status), "{path}: {}", answer.status);
                continue;
            };
            let others = Role::ALL.map(|other| (token_of(other), other == role));
            for (token, is_enough) in others.into_iter().chain([(WITHOUT_ROLES.into(), false)]) {
                let answer = bank.as_who(&token, method, &path, Some(json!({ "wrong": 1 }))).await;
                if is_enough {
                    assert!(![401, 403].contains(&answer.status), "{method} {path}");
                } else {
                    assert_eq!(answer.status, 403, "{method} {path} as {token}");
                    assert!(message(&answer).ends_with(&format!("UserHasMissingRoles: {role}")));
                }
            }
        }
        assert_eq!(stored(&bank.records).await, 0);
    })
    .await;
}

/// The owner of an application with all roles sees and changes its objects. For it, the objects of
/// another application do not exist, whatever the body or the precondition. An administrator sees
/// and changes all.
#[tokio::test]
async fn an_owner_of_an_application_reaches_its_objects_and_no_others() {
    in_every_world(async |bank: Bank| {
        let (own, foreign) =
            (Objects::create(&bank, "shop").await, Objects::create(&bank, "wallet").await);
        let none = Objects::none();
        let before = bank.get("/management/history?limit=1").await;
        for Operation { method, path, foreign: expected, .. } in OPERATIONS {
            let name = format!("{method} {path} of others");
            let send = async |of: &Objects, body: Option<Value>, if_match: Option<&str>| {
                let method = Method::from_bytes(method.as_bytes()).unwrap();
                let url = format!("{PREFIX}{}", of.fill(path));
                let request = bank.site.request(method, &url).bearer_auth(OWNER_OF_SHOP);
                let request =
                    if_match.into_iter().fold(request, |to, tag| to.header("if-match", tag));
                let answer = match body {
                    Some(body) => request.json(&body).fetch().await,
                    None => request.fetch().await,
                };
                (answer.status, of.anonymous(&answer.body))
            };
            let body = |of: &Objects| of.body(method, path);
            let answer = send(&foreign, body(&foreign), None).await;
            assert_eq!(
                answer.0,
                if *path == "/health/redis" { answer.0 } else { *expected },
                "{name}: {}",
                answer.1
            );
            if path.contains('{') || *expected == 403 {
                let wrong = Some(json!({ "wrong": 1 }));
                for (foreign, none) in [
                    (answer, send(&none, body(&none), None).await),
                    (send(&foreign, wrong.clone(), None).await, send(&none, wrong, None).await),
                    (
                        send(&foreign, body(&foreign), Some("\"1\"")).await,
                        send(&none, body(&none), Some("\"1\"")).await,
                    ),
                    (
                        send(&foreign, body(&foreign), Some("*")).await,
                        send(&none, body(&none), Some("*")).await,
                    ),
                ] {
                    assert_eq!(foreign, none, "{name}: like objects that do not exist");
                }
            }
        }
        assert_eq!(bank.get("/management/history?limit=1").await, before, "nothing was changed");
        for (token, objects) in [(OWNER_OF_SHOP, &own), (ALICE, &foreign)] {
            for Operation { method, path, admin, own, .. } in OPERATIONS {
                let expected = if token == ALICE { *admin } else { *own };
                let body = objects.body(method, path);
                let answer = bank.as_who(token, method, &objects.fill(path), body).await;
                if *path != "/health/redis" {
                    assert_eq!(
                        answer.status, expected,
                        "{method} {path} as {token}: {}",
                        answer.body
                    );
                }
                if token == OWNER_OF_SHOP && *path != "/openapi.json" {
                    assert!(!answer.body.contains("wallet"), "{method} {path}: {}", answer.body);
                }
            }
        }
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
    for Operation { method, path, .. } in OPERATIONS {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let request = site.request(method, &Objects::none().fill(path)).bearer_auth(ALICE);
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
        OPERATIONS.iter().any(|operation| {
            let path = operation.path.split('?').next().unwrap_or_default();
            let mut parts = path.split('/').zip(template.split('/'));
            operation.method == method
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
