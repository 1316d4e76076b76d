//! A service with rules and its management. The records are the limits of one rule beside others.

use std::sync::Arc;
use std::time::Duration;

use ::axum::extract::Request;
use ::axum::middleware::Next;
use ::axum::response::Response;
use ::axum::{Router, routing::get};
use reqwest::Method;
use rl_admin::console::Console;
use rl_admin::{Admin, FailedAttempts};
use rl_core::key::{ClientAddress, Header, Identified, KeyExtractor as _, Route, Tier};
use rl_core::rules::{Rule, Rules};
use rl_core::source::{PolicyFuture, PolicySource};
use rl_core::time::{ManualClock, Timestamp};
use rl_core::{
    FailureKind, MaybeReady, MissingKey, OnFailure, RateLimiter, Realm, StoreError, Subject,
};
use rl_records::{RecordSource, Records, RecordsOptions};
use rl_tests::RedisServer;
use rl_tests::web::{Answer, Fetch, Site, axum};
use rl_tower::RateLimitLayer;
use serde_json::{Value, json};

use super::{ALICE, NOW_SECONDS, PATIENCE, message, parse, record, tokens, with_store};
use crate::records::Database;

/// A service that limits consumers by their records, addresses, exports and the fleet.
struct Service {
    site: Site,
    clock: Arc<ManualClock>,
    redis: Option<RedisServer>,
    cookie: String,
    _database: Database,
}

const USAGE: &str = "/management/subjects/consumer/abc/usage";
const COUNTERS: &str = "/management/consumers/abc/call-counters";

impl Service {
    async fn embedded() -> Self {
        Self::open(Database::memory(), None, OnFailure::Allow, PATIENCE).await
    }

    async fn fleet() -> Self {
        Self::open(Database::postgres(), Some(RedisServer::start()), OnFailure::Allow, PATIENCE)
            .await
    }

    async fn on_mariadb() -> Self {
        Self::open(Database::mariadb(), None, OnFailure::Allow, PATIENCE).await
    }

    async fn open(
        database: Database,
        redis: Option<RedisServer>,
        on_failure: OnFailure,
        wait: Duration,
    ) -> Self {
        let clock = Arc::new(ManualClock::at(Timestamp::from_secs(NOW_SECONDS)));
        let options = RecordsOptions::new(&database.url).clock(clock.clone());
        let records = Records::connect_with(options).await.unwrap();
        let source = RecordSource::builder(&records).deadline(PATIENCE).start();
        let consumer = || Header::new("x-consumer", Realm::Consumer).unwrap();
        let optional = |rule: Rule| rule.on_missing_key(MissingKey::Allow);
        let limit = |text: &str| text.parse().unwrap();
        let rules = Rules::new()
            .rule(optional(Rule::named("consumers").per(consumer()).policies(source)))
            .rule(optional(
                Rule::named("exports")
                    .on("GET", "/export")
                    .per(consumer())
                    .limit(limit("60/hour:gcra:burst=60"))
                    .cost(20),
            ))
            .rule(Rule::named("addresses").per(ClientAddress::default()).limit(limit("20/minute")))
            .rule(Rule::named("fleet").limit(limit("100/second")))
            .rule(optional(Rule::named("trial").per(consumer()).limit(limit("1/minute")).shadow()))
            .rule(optional(
                Rule::named("routes")
                    .on("GET", "/export")
                    .per(consumer().and(Route))
                    .limit(limit("50/minute")),
            ));
        let limiter = RateLimiter::builder().rules(rules).deadline(PATIENCE).clock(clock.clone());
        let limiter = limiter.on_store_failure(on_failure);
        let (limiter, backend) = with_store(limiter, redis.as_ref(), &clock, wait).await;
        let admin = Admin::builder(records, limiter.clone())
            .authorize(tokens())
            .backend(backend)
            .failed_attempts(FailedAttempts::per_minute(u32::MAX))
            .clock(clock.clone())
            .build();
        let console = Console::builder(admin.clone()).without_tls().build();
        let app = Router::new()
            .route("/", get(async || "hi\n"))
            .route("/export", get(async || "rows\n"))
            .layer(RateLimitLayer::new(limiter))
            .nest("/admin", admin.router())
            .merge(console.router());
        let mut service = Self {
            site: axum::serve(app),
            clock,
            redis,
            cookie: String::new(),
            _database: database,
        };
        let login = service.form("/console/login", &[("token", ALICE)]).await;
        let cookie = login.header("set-cookie").unwrap().split(';').next().unwrap();
        service.cookie = cookie.to_owned();
        service
    }

    async fn manage(&self, method: &str, path: &str, body: Option<Value>) -> Answer {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let request = self.site.request(method, &format!("/admin{path}")).bearer_auth(ALICE);
        match body {
            Some(body) => request.json(&body).fetch().await,
            None => request.fetch().await,
        }
    }

    async fn get(&self, path: &str) -> Value {
        let answer = self.manage("GET", path, None).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        parse(&answer)
    }

    async fn reset(&self, path: &str) -> Answer {
        self.manage("DELETE", path, None).await
    }

    /// Sends a request of consumer `abc`, and returns its status.
    async fn call(&self, path: &str) -> u16 {
        self.site.get(path).header("x-consumer", "abc").fetch().await.status
    }

    async fn console(&self, path: &str) -> String {
        let page = self.site.get(path).header("cookie", &self.cookie).fetch().await;
        assert_eq!(page.status, 200, "{path}: {}", page.body);
        page.body
    }

    async fn form(&self, path: &str, fields: &[(&str, &str)]) -> Answer {
        let mut form = url::form_urlencoded::Serializer::new(String::new());
        form.extend_pairs(fields);
        if !self.cookie.is_empty() {
            let page = self.console("/console/consumer?id=abc").await;
            let token = page.split("name=\"form_token\" value=\"").nth(1).unwrap();
            form.append_pair("form_token", token.split('"').next().unwrap());
        }
        let origin = self.site.url("").trim_end_matches('/').to_owned();
        let request = self.site.post(path).header("origin", origin);
        let request = request.header("content-type", "application/x-www-form-urlencoded");
        request.header("cookie", &self.cookie).body(form.finish()).fetch().await
    }

    /// Limits consumer `abc` to this number of calls per minute.
    async fn per_minute(&self, max: i64) {
        let path = "/management/consumers/abc/consumer/rate-limits";
        let created = self.manage("POST", path, Some(record([-1, max, -1, -1, -1, -1]))).await;
        assert_eq!(created.status, 201, "{}", created.body);
    }
}

async fn on_both(test: impl AsyncFn(Service)) {
    test(Service::embedded().await).await;
    test(Service::fleet().await).await;
    test(Service::on_mariadb().await).await;
}

/// Returns the names of the rules in a response, in their order.
fn names(answer: &Value) -> Vec<&str> {
    answer["rules"].as_array().unwrap().iter().map(|rule| rule["rule"].as_str().unwrap()).collect()
}

/// Returns the rule of this name in a response.
fn rule<'a>(answer: &'a Value, name: &str) -> &'a Value {
    let rules = answer["rules"].as_array().unwrap();
    let found = rules.iter().find(|rule| rule["rule"] == name);
    found.unwrap_or_else(|| panic!("no rule {name}: {answer}"))
}

/// Fault: beside rules, the API reported that nothing was used, the counters could not be reached,
/// and no decision could be made. A reset did nothing and was answered with 204.
#[tokio::test]
async fn a_consumer_that_is_denied_is_shown_explained_and_reset() {
    on_both(async |service: Service| {
        service.per_minute(3).await;
        for expected in [200, 200, 200, 429] {
            assert_eq!(service.call("/").await, expected);
        }
        let minute = json!({ "calls_made": 3, "reset_in_seconds": 60, "status": "ACTIVE" });
        for counters in [
            service.get(COUNTERS).await,
            service.get("/management/consumers/abc").await["call_counters"].clone(),
        ] {
            assert_eq!(
                (&counters["rule"], &counters["per_minute"]),
                (&json!("consumers"), &minute)
            );
        }
        let active = service.get("/management/consumers/abc/active-rate-limits").await;
        assert_eq!(active["applied_by"], json!(["consumers"]));
        let state = service.get("/management/consumers/abc/consumer/call-limits").await;
        assert_eq!(state["current_state"]["per_minute"]["calls_made"], 3);

        let usage = service.get(USAGE).await;
        assert_eq!(names(&usage), ["consumers", "exports", "trial"]);
        let limit = &rule(&usage, "consumers")["limits"][0];
        let numbers = (&limit["name"], &limit["used"], &limit["max"], &limit["remaining"]);
        assert_eq!(numbers, (&json!("minute"), &json!(3), &json!(3), &json!(0)));
        assert_eq!(rule(&usage, "exports")["limits"][0]["used"], 0);
        assert_eq!(usage["pairs"], json!(["routes"]));
        let info = service.get("/management/rate-limiting").await;
        assert_eq!(info["note"], "Rules in shadow, which deny nothing: trial.");
        let store = service.console("/console/store").await;
        assert!(store.contains("denied, except under trial, in shadow"), "{store}");

        let explained = service.get("/management/consumers/abc/explain").await;
        assert_eq!(names(&explained), ["consumers", "exports", "fleet", "trial"]);
        let by = rule(&explained, "consumers");
        assert_eq!((&by["allowed"], &by["decided_by"]), (&json!(false), &json!("store")));
        assert_eq!(by["reason"], "minute: 3 of 3 used, allowed again in 60 s");
        assert_eq!(
            (&explained["allowed"], &explained["retry_in_seconds"], &explained["source"]),
            (&json!(false), &json!(60), &json!("records"))
        );
        assert_eq!(explained["reason"], format!("consumers: {}", by["reason"].as_str().unwrap()));

        let page = service.console("/console/consumer?id=abc").await;
        assert!(page.contains("3 of 3") && page.contains("used up"), "{page}");
        for wrong in ["unavailable", "rejected with 503", "without limits"] {
            assert!(!page.contains(wrong), "{wrong}: {page}");
        }

        assert_eq!(service.reset(COUNTERS).await.status, 200, "the pairs are not reset");
        assert_eq!(service.get(COUNTERS).await["per_minute"]["calls_made"], 0);
        assert_eq!(service.call("/").await, 200, "the reset took effect");
    })
    .await;
}

#[tokio::test]
async fn one_rule_is_read_and_reset_by_its_name() {
    on_both(async |service: Service| {
        service.per_minute(2).await;
        // The second export is over the limit of the rule `exports` only if the costs add up.
        for expected in [200, 200, 429] {
            assert_eq!(service.call("/export").await, expected);
        }
        let usage = service.get(&format!("{USAGE}?rule=exports")).await;
        assert_eq!((names(&usage), &usage["rules"][0]["limits"][0]["used"]), (vec!["exports"], &json!(40)));
        assert_eq!(service.reset(&format!("{USAGE}?rule=exports")).await.status, 204);
        let used = |usage: &Value, name: &str| rule(usage, name)["limits"][0]["used"].clone();
        let usage = service.get(USAGE).await;
        assert_eq!([used(&usage, "consumers"), used(&usage, "exports")], [json!(2), json!(0)]);
        assert_eq!(service.call("/export").await, 429, "the other rule denies");
        assert_eq!(service.reset(&format!("{COUNTERS}/minute?rule=consumers")).await.status, 204);
        assert_eq!(service.call("/export").await, 200);

        // Two rules have a limit of a minute.
        let minute = service.reset(&format!("{USAGE}/minute")).await;
        assert_eq!(minute.status, 200, "{}", minute.body);
        assert_eq!(parse(&minute), json!({ "reset": ["consumers", "trial"], "not_reset": ["routes"] }));
        for (path, words) in [
            ("/management/subjects/consumer/abc/usage?rule=export", "rule \"export\": expected one of consumers, exports, addresses, fleet, trial, routes"),
            ("/management/consumers/abc/call-counters?rule=", "rule \"\": expected one of"),
            ("/management/consumers/abc/explain?rule=x", "rule \"x\": expected one of"),
        ] {
            let wrong = service.manage("GET", path, None).await;
            assert_eq!((wrong.status, &parse(&wrong)["field"]), (400, &json!("rule")));
            assert!(message(&wrong).contains(words), "{}", wrong.body);
        }
        let history = service.get("/management/consumers/abc/history").await;
        let resets = history["changes"].as_array().unwrap().iter().filter(|entry| entry["kind"] == "reset");
        let resets: Vec<_> = resets.map(|entry| (&entry["after"]["rule"], &entry["after"]["limit"])).collect();
        assert_eq!(resets.last(), Some(&(&json!("exports"), &json!(null))), "{history}");
    })
    .await;
}

/// Fault: a reset of a subject that nothing counts was answered with 204.
#[tokio::test]
async fn a_reset_that_resets_nothing_is_not_found() {
    on_both(async |service: Service| {
        for (path, words) in [
            ("/management/subjects/user/alice/usage", "No rule counts user/alice. The rules are consumers, exports, addresses, fleet, trial, routes."),
            ("/management/subjects/ip/127.0.0.1/usage/day", "No limit of ip/127.0.0.1 is called day."),
            ("/management/subjects/ip/127.0.0.1/usage?rule=fleet", "No rule"),
            ("/management/subjects/consumer/abc/usage?rule=routes", "only together with another subject"),
        ] {
            let answer = service.reset(path).await;
            assert_eq!(answer.status, 404, "{path}: {}", answer.body);
            assert!(message(&answer).starts_with("nothing was reset"), "{}", answer.body);
            assert!(message(&answer).contains(words), "{}", answer.body);
        }
        let usage = service.get("/management/subjects/user/alice/usage").await;
        assert_eq!(usage["rules"], json!([]));
        assert!(usage["note"].as_str().unwrap().starts_with("No rule counts user/alice"), "{usage}");
        let address = "/management/subjects/ip/127.0.0.1/usage";
        assert_eq!(service.call("/").await, 200);
        assert_eq!(rule(&service.get(address).await, "addresses")["limits"][0]["used"], 1);
        assert_eq!(service.reset(address).await.status, 204);
        assert_eq!(rule(&service.get(address).await, "addresses")["limits"][0]["used"], 0);
        let all = service.get("/management/subjects/global/-/usage").await;
        assert_eq!((names(&all), &all["subject"]), (vec!["fleet"], &json!("global/-")));
        let counters = service.get(COUNTERS).await;
        assert!(counters["note"].as_str().unwrap().contains("routes"), "{counters}");
    })
    .await;
}

#[tokio::test]
async fn an_explanation_of_a_request_contains_the_rules_that_it_matches() {
    on_both(async |service: Service| {
        let explain = async |query: &str| {
            service.get(&format!("/management/consumers/abc/explain?{query}")).await
        };
        let front = explain("method=GET&path=/&address=192.0.2.7").await;
        assert_eq!(names(&front), ["consumers", "addresses", "fleet", "trial"]);
        assert_eq!(rule(&front, "addresses")["subject"], "ip/192.0.2.7");
        assert_eq!(
            (&front["allowed"], &front["reason"]),
            (&json!(true), &json!("each of these rules allows the request"))
        );
        assert_eq!(front["other_rules"], json!(["exports", "routes"]));

        // A pair may deny the request, and its counters cannot be found.
        let export = explain("path=/export").await;
        assert_eq!(names(&export), ["consumers", "exports", "fleet", "trial"]);
        assert_eq!((&export["allowed"], &export["pairs"]), (&Value::Null, &json!(["routes"])));
        assert_eq!(export["retry_in_seconds"], Value::Null);
        assert!(export["reason"].as_str().unwrap().contains("routes"), "{export}");
        assert_eq!(rule(&export, "exports")["cost"], 20);
        for _ in 0..3 {
            assert_eq!(service.call("/export").await, 200);
        }
        let export = explain("path=/export%3Fall&method=GET").await;
        assert_eq!(export["allowed"], false);
        assert!(export["reason"].as_str().unwrap().starts_with("exports: "), "{export}");
        assert_eq!(explain("path=/export&method=POST").await["allowed"], true);
        let trial = rule(&export, "trial");
        let in_shadow = (&trial["is_shadow"], &trial["allowed"], &trial["retry_in_seconds"]);
        assert_eq!(in_shadow, (&json!(true), &json!(true), &json!(0)));
        let only = explain("path=/export&rule=consumers").await;
        assert_eq!((names(&only), &only["allowed"]), (vec!["consumers"], &json!(true)));
        let other = explain("path=/export&rule=addresses").await;
        let reason = "rule addresses does not match the request, or counts another subject";
        assert_eq!((&other["allowed"], &other["reason"]), (&Value::Null, &json!(reason)));

        for (query, field) in [
            ("path=banks", "path"),
            ("method=GET", "path"),
            ("path=/&method=get%20", "method"),
            ("path=/&host=a%20b", "host"),
            ("address=nowhere", "address"),
        ] {
            let path = format!("/management/consumers/abc/explain?{query}");
            let wrong = service.manage("GET", &path, None).await;
            assert_eq!(
                (wrong.status, &parse(&wrong)["field"]),
                (400, &json!(field)),
                "{}",
                wrong.body
            );
        }
    })
    .await;
}

/// Fault: the console showed one block of bars with nothing used, and said in red that calls are
/// rejected.
#[tokio::test]
async fn the_console_shows_and_resets_each_rule() {
    on_both(async |service: Service| {
        service.per_minute(3).await;
        for expected in [200, 200, 200, 429] {
            assert_eq!(service.call("/export").await, expected);
        }
        let page = service.console("/console/consumer?id=abc").await;
        let block = |name: &str| {
            let block = page.split(&format!("<caption>Rule {name}")).nth(1);
            block
                .unwrap_or_else(|| panic!("no block {name}: {page}"))
                .split("</table>")
                .next()
                .unwrap()
        };
        assert!(block("consumers").contains("3 of 3"), "{page}");
        assert!(block("exports").contains("60 of 60"), "{page}");
        assert!(block("trial").starts_with(" (in shadow, denies nothing)"), "{page}");
        assert!(page.contains("routes") && page.contains("only together with another"), "{page}");
        assert!(!page.contains("Rule fleet"), "{page}");

        let reset = async |rule: &str| {
            let done = service.form("/console/reset", &[("id", "abc"), ("rule", rule)]).await;
            done.header("location").map(str::to_owned)
        };
        let to = "/console/consumer?id=abc&done=reset";
        let partly = "/console/consumer?id=abc&done=reset-partly";
        assert!(service.console(partly).await.contains("except those of the rules"));
        assert_eq!(reset("consumers").await.as_deref(), Some(to));
        assert_eq!(service.call("/").await, 200, "its rule was reset");
        assert_eq!(service.call("/export").await, 429, "another rule denies");
        assert_eq!(reset("").await.as_deref(), Some(partly), "the pairs are not reset");
        assert_eq!(service.call("/export").await, 200);
        let unknown = service.form("/console/reset", &[("id", "abc"), ("rule", "x")]).await;
        assert_eq!(unknown.status, 400, "{}", unknown.body);

        service.clock.advance(Duration::from_secs(20));
        let hour = service.console("/console/last-hour").await;
        assert!(hour.contains("consumers/minute") || hour.contains("exports/"), "{hour}");
        assert!(service.console("/console").await.contains(">abc</a>"));
        assert!(!service.console("/console?rule=fleet").await.contains(">abc</a>"));
        let rules = service.console("/console/rules").await;
        for text in [
            ">consumers</th>",
            "of each subject, from the console",
            ">exports</th>",
            "60/hour:gcra",
            "in shadow, denies nothing",
        ] {
            assert!(rules.contains(text), "{text}: {rules}");
        }
        let top = service.get("/management/top-subjects").await;
        let by = (&top["subjects"][0]["rule"], &top["subjects"][0]["limit"]);
        assert!([json!("consumers"), json!("exports")].contains(by.0) && by.1.is_string(), "{top}");
    })
    .await;
}

/// Only if the store is really down, the counters cannot be reached, and the page says what calls
/// do now.
#[tokio::test]
async fn an_outage_is_reported_as_it_is() {
    for (on_failure, status, consequence) in [
        (OnFailure::Allow, 200, "calls are allowed without limits"),
        (OnFailure::Reject, 503, "calls are rejected with 503"),
    ] {
        let wait = Duration::from_secs(1);
        let redis = Some(RedisServer::start());
        let mut service = Service::open(Database::memory(), redis, on_failure, wait).await;
        service.per_minute(3).await;
        assert_eq!(service.call("/").await, 200);
        service.redis.as_mut().unwrap().stop();

        let usage = service.manage("GET", USAGE, None).await;
        assert_eq!(usage.status, 503);
        assert_eq!(message(&usage), "rule consumers: the counters cannot be reached");
        let counters = service.get(COUNTERS).await;
        assert_eq!(counters["per_minute"]["status"], "REDIS_UNAVAILABLE");
        for path in [USAGE, COUNTERS] {
            let reset = service.reset(path).await;
            assert_eq!(reset.status, 503, "not said to be done");
            let words = "not reset under consumers, exports, trial";
            assert!(message(&reset).contains(words), "{}", reset.body);
        }
        assert_eq!(service.call("/").await, status);
        let explained = service.get("/management/consumers/abc/explain?path=/").await;
        let by = rule(&explained, "consumers");
        assert_eq!(by["allowed"], status == 200, "{explained}");
        assert_eq!(explained["allowed"], status == 200, "{explained}");
        assert!(by["reason"].as_str().unwrap().starts_with("no decision can be made"), "{by}");
        let page = service.console("/console/consumer?id=abc").await;
        assert!(
            page.contains("The counters are unavailable") && page.contains(consequence),
            "{page}"
        );
    }
}

/// A source of policies that always fails, while the store works.
struct Failing;

impl PolicySource for Failing {
    fn policy(&self, _: &Subject) -> PolicyFuture {
        MaybeReady::ready(Err(StoreError::new(FailureKind::Unavailable)))
    }
}

#[tokio::test]
async fn a_reset_that_fails_under_one_rule_names_the_rules_of_both_kinds() {
    let records = Records::connect("sqlite::memory:").await.unwrap();
    let per_hour = |rule: Rule| rule.limit("5/hour".parse().unwrap());
    let consumer = || Header::new("x-consumer", Realm::Consumer).unwrap();
    let rules = Rules::new()
        .rule(per_hour(Rule::named("first").per(consumer())))
        .rule(Rule::named("broken").per(consumer()).policies(Failing))
        .rule(per_hour(Rule::named("last").per(consumer())));
    let limiter = RateLimiter::builder().rules(rules).build().unwrap();
    let abc = Subject::consumer("abc");
    limiter.rule("last").of(&abc).cost(3).check().await;
    let admin = Admin::builder(records, limiter.clone()).authorize(tokens()).build();
    let site = axum::serve(admin.router());
    let call = async |method: Method, path: &str| {
        site.request(method, path).bearer_auth(ALICE).fetch().await
    };
    let reset = call(Method::DELETE, USAGE).await;
    assert_eq!(reset.status, 503);
    let expected = "rule broken: the limits of this subject cannot be looked up (unavailable); \
                    not reset under broken; reset under first, last";
    assert_eq!(message(&reset), expected);
    let usage = limiter.rule("last").of(&abc).usage().await.unwrap();
    assert!(usage.limits().all(|limit| limit.used() == 0), "reset, as the response says");
    let usage = call(Method::GET, USAGE).await;
    let expected = "rule broken: the limits of this subject cannot be looked up (unavailable)";
    assert_eq!((usage.status, &*message(&usage)), (503, expected));
    assert_eq!(call(Method::GET, &format!("{USAGE}?rule=last")).await.status, 200);
    let info = call(Method::GET, "/management/rate-limiting").await;
    assert_eq!(parse(&info)["service_available"], true, "the store is not blamed");
}

/// The management of a limiter with these rules, without a service.
struct Managed {
    site: Site,
    limiter: RateLimiter,
    cookie: String,
}

impl Managed {
    async fn with(rules: Rules, redis: Option<&RedisServer>) -> Self {
        let records = Records::connect("sqlite::memory:").await.unwrap();
        let limiter = RateLimiter::builder().rules(rules).deadline(PATIENCE);
        let clock = Arc::new(ManualClock::at(Timestamp::from_secs(NOW_SECONDS)));
        let (limiter, backend) = with_store(limiter, redis, &clock, PATIENCE).await;
        let admin = Admin::builder(records, limiter.clone()).authorize(tokens()).backend(backend);
        let admin = admin.clock(clock).build();
        let console = Console::builder(admin.clone()).without_tls().build();
        let served = Router::new()
            .route("/", get(async || "hi\n"))
            .layer(RateLimitLayer::new(limiter.clone()))
            .layer(::axum::middleware::from_fn(identify))
            .merge(admin.router())
            .merge(console.router());
        let site = axum::serve(served);
        let origin = site.url("").trim_end_matches('/').to_owned();
        let login = site.post("/console/login").header("origin", origin);
        let login = login.body(format!("token={ALICE}")).fetch().await;
        let cookie = login.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
        Self { site, limiter, cookie }
    }

    async fn manage(&self, method: Method, path: &str, body: Option<Value>) -> Answer {
        let request = self.site.request(method, path).bearer_auth(ALICE);
        match body {
            Some(body) => request.json(&body).fetch().await,
            None => request.fetch().await,
        }
    }

    async fn get(&self, path: &str) -> Value {
        let answer = self.manage(Method::GET, path, None).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        parse(&answer)
    }

    async fn page(&self, path: &str) -> String {
        self.site.get(path).header("cookie", &self.cookie).fetch().await.body
    }
}

/// Inserts the consumer and the tier of these headers, as an authentication layer does.
async fn identify(mut request: Request, next: Next) -> Response {
    let header = |request: &Request, name: &str| {
        request.headers().get(name)?.to_str().ok().map(str::to_owned)
    };
    if let Some(consumer) = header(&request, "x-consumer") {
        request.extensions_mut().insert(Subject::consumer(&consumer));
    }
    if let Some(tier) = header(&request, "x-tier") {
        request.extensions_mut().insert(Tier::new(&tier));
    }
    next.run(request).await
}

/// Fault: for a client in a tier of its request's extensions, usage and console showed the limits
/// of clients without a tier, and a limit of the tier could not be reset.
#[tokio::test]
async fn limits_of_a_tier_in_the_extensions_of_requests_are_shown_and_reset() {
    let redis = RedisServer::start();
    for redis in [None, Some(&redis)] {
        let limit = |text: &str| text.parse().unwrap();
        let clients = Rule::named("clients")
            .per(Identified)
            .on_missing_key(MissingKey::Allow)
            .limit(limit("10/minute"))
            .tier("pro", [limit("100/minute"), limit("1000/day")]);
        let fleet = Rule::named("fleet").limit(limit("5000/second"));
        let managed = Managed::with(Rules::new().rule(clients).rule(fleet), redis).await;
        let call = async |count: usize| {
            for _ in 0..count {
                let request = managed.site.get("/").header("x-consumer", "abc");
                assert_eq!(request.header("x-tier", "pro").fetch().await.status, 200);
            }
        };
        call(12).await;
        let note = "Rules with other limits for requests with a tier in their extensions: clients (pro). \
                    The API reports these limits with ?tier=.";
        let explain = "/management/consumers/abc/explain";
        for path in [USAGE, COUNTERS, explain] {
            assert_eq!(managed.get(path).await["note"], note, "{path}");
        }
        let usage = managed.get(USAGE).await;
        assert_eq!(usage["rules"][0]["tier"], Value::Null);
        assert_eq!(usage["rules"][0]["limits"][0]["max"], 10);
        let page = managed.page("/console/consumer?id=abc").await;
        assert!(page.contains("Rule clients (requests without a tier)"), "{page}");
        assert!(page.contains(note), "{page}");

        let usage = managed.get(&format!("{USAGE}?tier=pro")).await;
        let by = rule(&usage, "clients");
        assert_eq!((&by["tier"], &usage["note"]), (&json!("pro"), &Value::Null));
        let numbers = |limit: &Value| ["name", "used", "max"].map(|field| limit[field].clone());
        let limits: Vec<_> = by["limits"].as_array().unwrap().iter().map(numbers).collect();
        assert_eq!(json!(limits), json!([["minute", 12, 100], ["day", 12, 1_000]]));
        assert_eq!(managed.get(explain).await["allowed"], false);
        let explained = managed.get(&format!("{explain}?tier=pro&cost=88")).await;
        assert_eq!((&explained["allowed"], &explained["note"]), (&json!(true), &Value::Null));
        assert_eq!(names(&explained), ["clients", "fleet"]);
        assert_eq!(rule(&explained, "fleet")["tier"], Value::Null, "the rule has no tiers");

        let day = format!("{USAGE}/day");
        assert_eq!(managed.manage(Method::DELETE, &day, None).await.status, 204);
        let used = async || {
            let usage = managed.get(&format!("{USAGE}?tier=pro")).await;
            let limits = &rule(&usage, "clients")["limits"];
            [limits[0]["used"].clone(), limits[1]["used"].clone()]
        };
        assert_eq!(used().await, [json!(12), json!(0)]);
        call(1).await;
        assert_eq!(managed.manage(Method::DELETE, USAGE, None).await.status, 204);
        assert_eq!(used().await, [json!(0), json!(0)]);

        for path in [USAGE, COUNTERS, explain] {
            let wrong = managed.manage(Method::GET, &format!("{path}?tier=gold"), None).await;
            assert_eq!((wrong.status, &parse(&wrong)["field"]), (400, &json!("tier")), "{path}");
            assert!(
                message(&wrong).contains("tier \"gold\": expected one of pro"),
                "{}",
                wrong.body
            );
        }
    }
}

/// Fault: without a rule with a source, the use of the first rule was read as six fixed windows.
#[tokio::test]
async fn call_limits_show_the_use_of_other_algorithms() {
    let clients =
        Rule::named("clients").per(Identified).limit("60/hour:gcra:burst=60".parse().unwrap());
    let managed = Managed::with(Rules::new().rule(clients), None).await;
    managed.limiter.rule("clients").of(&Subject::consumer("abc")).cost(5).check().await;
    let state = managed.get("/management/consumers/abc/consumer/call-limits").await;
    assert_eq!(state["rule"], "clients");
    assert_eq!(state["current_state"]["per_hour"]["calls_made"], 5, "{state}");
    assert_eq!(state["redis_call_limit"], state["current_state"]);
    let counters = managed.get(COUNTERS).await;
    assert_eq!(counters["per_hour"]["calls_made"], 5, "{counters}");
}

/// Fault: a record or a block that no rule enforces was answered as if it applied, and limits were
/// said to be enforced although every rule was in shadow.
#[tokio::test]
async fn records_and_blocks_that_no_rule_enforces_have_a_warning() {
    let records = Records::connect("sqlite::memory:").await.unwrap();
    let trial =
        Rule::named("trial").per(Identified).policies(RecordSource::start(&records)).shadow();
    let other = Rule::named("other").per(Identified).limit("5/minute".parse().unwrap());
    let in_shadow = Rules::new().rule(trial).rule(other.clone().shadow());
    for (rules, is_active) in [(in_shadow, false), (Rules::new().rule(other), true)] {
        let managed = Managed::with(rules, None).await;
        let info = managed.get("/management/rate-limiting").await;
        assert_eq!(info["currently_active"], is_active, "{info}");
        assert_eq!(info["note"].is_null(), is_active, "{info}");
        let store = managed.page("/console/store").await;
        assert_eq!(store.contains("Calls beyond the limits are denied."), is_active, "{store}");

        let note = "No rule enforces the own limits and the blocks of this subject, so they have no effect.";
        let limits = Some(record([-1, 3, -1, -1, -1, -1]));
        let path = "/management/consumers/abc/consumer/call-limits";
        let set = managed.manage(Method::PUT, path, limits).await;
        assert_eq!((set.status, &parse(&set)["warning"]), (200, &json!(note)));
        let until = Some(json!({ "until": "2030-01-01T00:00:00Z" }));
        let blocked = managed.manage(Method::PUT, "/management/consumers/abc/block", until).await;
        assert_eq!((blocked.status, &parse(&blocked)["warning"]), (200, &json!(note)));
        let page = managed.page("/console/consumer?id=abc").await;
        assert!(page.contains(note), "{page}");
    }
}
