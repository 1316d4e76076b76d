//! Rules of the database beside those of a file, on two instances of a service.

use std::fs;

use ::axum::{Router, routing::get};
use reqwest::Method;
use rl_admin::console::Console;
use rl_admin::{Admin, FailedAttempts};
use rl_core::RateLimiter;
use rl_core::rules::RulesFile;
use rl_records::{Records, RuleFollower};
use rl_tests::on_every_server;
use rl_tests::web::{Answer, Fetch, Site, axum, eventually};
use rl_tower::RateLimitLayer;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{ALICE, PATIENCE, message, parse, tokens};
use crate::records::Database;

const FILE: &str = "rules: { fleet: { limits: 100000/day } }";

/// Allows one login in a day.
const LOGIN: &str = "match: { path: /login }\nlimits: 1/day";

/// An instance of a service, with its rules in a file and in the database.
struct Instance {
    site: Site,
    file: RulesFile,
    folder: TempDir,
    _follower: RuleFollower,
}

impl Instance {
    async fn start(url: &str) -> Self {
        let records = Records::connect(url).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("limits.yaml");
        fs::write(&path, FILE).unwrap();
        let file = RulesFile::watch(&path).unwrap();
        let limiter = RateLimiter::builder().rules(&file).deadline(PATIENCE).build().unwrap();
        let admin = Admin::builder(records.clone(), limiter.clone())
            .authorize(tokens())
            .failed_attempts(FailedAttempts::per_minute(u32::MAX))
            .rules_file(&file)
            .build();
        let console = Console::builder(admin.clone()).without_tls().build();
        let app = Router::new()
            .route("/login", get(async || "welcome\n"))
            .layer(RateLimitLayer::new(limiter))
            .nest("/admin", admin.router())
            .merge(console.router());
        let follower = RuleFollower::start(&records, &file);
        Self { site: axum::serve(app), file, folder, _follower: follower }
    }

    async fn login(&self) -> u16 {
        self.site.get("/login").fetch().await.status
    }

    async fn manage(&self, method: &str, path: &str, body: Option<Value>) -> Answer {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let request = self.site.request(method, &format!("/admin/management{path}"));
        let request = request.bearer_auth(ALICE);
        match body {
            Some(body) => request.json(&body).fetch().await,
            None => request.fetch().await,
        }
    }

    /// Sends a change with a body, which must succeed.
    async fn change(&self, method: &str, name: &str, body: Value) -> Value {
        let answer = self.manage(method, &format!("/rules/{name}"), Some(body)).await;
        assert!([200, 201].contains(&answer.status), "{method} {name}: {}", answer.body);
        parse(&answer)
    }
}

fn definition(text: &str) -> Value {
    json!({ "definition": text })
}

#[tokio::test]
async fn a_rule_applies_to_the_next_request_and_soon_on_other_instances() {
    for database in Database::shared() {
        let (here, there) =
            (Instance::start(&database.url).await, Instance::start(&database.url).await);
        let created = here.change("POST", "login", definition(LOGIN)).await;
        assert_eq!((&created["problem"], &created["shadow"]), (&Value::Null, &json!(false)));
        assert_eq!((here.login().await, here.login().await), (200, 429));
        // Each instance has counters of its own.
        eventually(|| async { there.login().await == 429 }).await;

        let shadow = json!({ "definition": LOGIN, "shadow": true });
        here.change("PUT", "login", shadow).await;
        assert_eq!(here.login().await, 200);
        eventually(|| async { there.login().await == 200 }).await;
        here.change("PUT", "login", definition(LOGIN)).await;
        assert_eq!(here.login().await, 429, "the counters stay");

        let rules = parse(&there.manage("GET", "/rules", None).await);
        assert_eq!(rules["rules"][0]["definition"], LOGIN);
        let gone = here.manage("DELETE", "/rules/login", None).await;
        assert_eq!((gone.status, here.login().await), (204, 200));
        eventually(|| async { there.login().await == 200 }).await;
        let history = parse(&here.manage("GET", "/history", None).await);
        let kinds: Vec<_> =
            history["changes"].as_array().unwrap().iter().map(|one| &one["kind"]).collect();
        assert_eq!(kinds, ["deleted", "updated", "updated", "created"]);
        assert_eq!(history["changes"][3]["after"]["definition"], LOGIN);
    }
}

#[tokio::test]
async fn a_rule_that_would_not_apply_is_refused_with_its_place() {
    let instance = Instance::start("sqlite::memory:").await;
    for (text, expected) in [
        ("limits: 5/minut", "definition: line 1, column 9: limit \"5/minut\""),
        ("limits: 5/day\nper: key", "expected `keys:` in the file"),
        ("limits: 5/day\nmatch: { path: \"${HOME}\" }", "variables are not replaced"),
        ("limits: 5/day\nshadow: true", "shadow: expected as a setting"),
        ("", "definition: expected 1 to 16384 bytes"),
    ] {
        let answer = instance.manage("POST", "/rules/new", Some(definition(text))).await;
        assert_eq!(answer.status, 400, "{text}: {}", answer.body);
        assert!(message(&answer).contains(expected), "{text}: {}", answer.body);
        assert_eq!(parse(&answer)["field"], "definition", "{text}");
    }
    let name = instance.manage("POST", "/rules/a:b", Some(definition(LOGIN))).await;
    assert!(name.status == 400 && message(&name).contains("1 to 64 characters"), "{}", name.body);
    let taken = instance.manage("POST", "/rules/fleet", Some(definition(LOGIN))).await;
    assert_eq!((taken.status, message(&taken).contains("rule fleet exists already")), (409, true));
    for method in ["GET", "PUT", "DELETE"] {
        let body = (method == "PUT").then(|| definition(LOGIN));
        assert_eq!(instance.manage(method, "/rules/fleet", body).await.status, 404, "{method}");
    }
    assert_eq!(instance.file.status().refused_rules(), []);
}

#[tokio::test]
async fn a_change_of_an_older_revision_is_refused() {
    let instance = Instance::start("sqlite::memory:").await;
    let created = instance.change("POST", "login", definition(LOGIN)).await;
    let again = instance.manage("POST", "/rules/login", Some(definition(LOGIN))).await;
    assert_eq!(again.status, 409);
    instance.change("PUT", "login", definition("limits: 9/day")).await;
    let request = instance.site.request(Method::DELETE, "/admin/management/rules/login");
    let request =
        request.bearer_auth(ALICE).header("if-match", format!("\"{}\"", created["revision"]));
    assert_eq!(request.fetch().await.status, 412);
}

/// Otherwise a row of the database could keep every change of the file from applying.
#[tokio::test]
async fn a_file_may_take_the_name_of_a_rule_in_the_database() {
    let instance = Instance::start("sqlite::memory:").await;
    instance.change("POST", "login", definition(LOGIN)).await;
    let text = "rules: { login: { limits: 5/day } }";
    fs::write(instance.folder.path().join("limits.yaml"), text).unwrap();
    instance.file.reload().unwrap();
    let problem = "the name is taken by another rule";
    let read = parse(&instance.manage("GET", "/rules/login", None).await);
    assert_eq!(read["problem"], problem);
    assert_eq!((instance.login().await, instance.login().await), (200, 200));
    instance.manage("DELETE", "/rules/login", None).await;
    assert_eq!(instance.file.status().refused_rules(), []);
}

#[tokio::test]
async fn the_rules_of_the_database_apply_while_it_is_down_and_after_it_is_back() {
    on_every_server(async |mut server| {
        let instance = Instance::start(&server.url()).await;
        instance.change("POST", "login", definition(LOGIN)).await;
        assert_eq!((instance.login().await, instance.login().await), (200, 429));
        server.stop();
        assert_eq!(instance.login().await, 429);
        let change = |text| instance.manage("PUT", "/rules/login", Some(definition(text)));
        let refused = change("limits: 9/day").await;
        assert_eq!((refused.status, instance.login().await), (503, 429));
        server.restart();
        let raised = "match: { path: /login }\nlimits: 3/day";
        eventually(|| async { change(raised).await.status == 200 }).await;
        for expected in [200, 200, 429] {
            assert_eq!(instance.login().await, expected);
        }
    })
    .await;
}
