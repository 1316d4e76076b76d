//! The report for a client about its own limits.

use std::sync::Arc;
use std::time::Duration;

use reqwest::RequestBuilder;
use rl_core::adapter::HttpLimiter;
use rl_core::key::{ClientAddress, Header, Identified, KeyExtractor, Route};
use rl_core::rules::{Match, Rule, Rules, RulesFile};
use rl_core::time::{Clock, ManualClock};
use rl_core::{
    Limit, MemoryStore, MissingKey, OnFailure, Policy, RateLimiter, Realm, RedisStore, Share,
};
use rl_tests::RedisServer;
use rl_tests::web::{Answer, Fetch, Site, Target, limiter, new_year};
use serde_json::{Value, json};

/// The time of `new_year`, in seconds since the epoch.
const NEW_YEAR: u64 = 1_767_225_600;

/// Serves the application behind `http`, which does not count the requests for usage.
fn serve<T: Target>(http: HttpLimiter) -> Site {
    T::serve(vec![http.exempt(|request| request.path() == "/rate_limit")])
}

fn under<T: Target>(clock: &Arc<ManualClock>, rules: impl IntoIterator<Item = Rule>) -> Site {
    let rules = rules.into_iter().fold(Rules::new(), Rules::rule);
    let store = MemoryStore::builder().clock(Arc::clone(clock)).build();
    let limiter = RateLimiter::builder().rules(rules).store(store).build().unwrap();
    serve::<T>(HttpLimiter::new(limiter))
}

/// Returns the limits of a report.
async fn limits(request: RequestBuilder) -> Vec<Value> {
    let answer = request.fetch().await;
    assert_eq!((answer.status, answer.limit_lines()), (200, vec![]), "{}", answer.body);
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    let mut report: Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!(report.as_object().unwrap().len(), 1);
    serde_json::from_value(report["limits"].take()).unwrap()
}

/// Returns the name, the limit and the used units of each limit of a report, such as `minute 1/3`.
async fn used(request: RequestBuilder) -> Vec<String> {
    let used = |limit: &Value| {
        let name = limit["name"].as_str().unwrap();
        format!("{name} {}/{}", limit["used"], limit["limit"])
    };
    limits(request).await.iter().map(used).collect()
}

pub(super) async fn the_usage_of_a_client_is_reported_free_of_charge<T: Target>() {
    let limiter = limiter(&new_year(), &["2/minute", "9/day"]);
    let site = serve::<T>(HttpLimiter::new(limiter.clone()));
    for _ in 0..5 {
        assert_eq!(used(site.get("/rate_limit")).await, ["minute 0/2", "day 0/9"]);
    }
    assert_eq!(site.get("/").fetch().await.status, 200);
    for _ in 0..5 {
        assert_eq!(used(site.get("/rate_limit")).await, ["minute 1/2", "day 1/9"]);
    }
    assert_eq!(site.handled(), 1);
    assert_eq!((limiter.stats().allowed(), limiter.stats().denied()), (1, 0));
}

pub(super) async fn each_limit_says_when_it_resets_and_allows_the_next_request<T: Target>() {
    let clock = new_year();
    let site = serve::<T>(HttpLimiter::new(limiter(&clock, &["2/minute", "9/day"])));
    site.get("/").fetch().await;
    clock.advance(Duration::from_millis(18_500));
    let report = |used: u64, retry_after: u64| {
        json!([
            { "name": "minute", "limit": 2, "remaining": 2 - used, "used": used,
              "reset": NEW_YEAR + 60, "retry_after": retry_after },
            { "name": "day", "limit": 9, "remaining": 9 - used, "used": used,
              "reset": NEW_YEAR + 86_400, "retry_after": 0 },
        ])
    };
    assert_eq!(json!(limits(site.get("/rate_limit")).await), report(1, 0));
    site.get("/").fetch().await;
    site.get("/").fetch().await;
    assert_eq!(json!(limits(site.get("/rate_limit")).await), report(2, 42));
}

pub(super) async fn a_client_without_a_key_gets_the_denial_of_the_limiter<T: Target>() {
    let of = |rules: bool| {
        let limiter = if rules {
            let rule = Rule::named("members").per(Identified).limit(Limit::per_hour(3));
            RateLimiter::builder().rules(Rules::new().rule(rule))
        } else {
            RateLimiter::builder().limit(Limit::per_hour(3))
        };
        HttpLimiter::new(limiter.build().unwrap()).key(Identified)
    };
    let same = |one: &Answer, other: &Answer| {
        assert_eq!((one.status, &one.body), (other.status, &other.body));
        assert_eq!(one.header("cache-control"), other.header("cache-control"));
    };
    for rules in [false, true] {
        let site = serve::<T>(of(rules));
        let denied = site.get("/rate_limit").fetch().await;
        assert_eq!(denied.status, 403);
        same(&denied, &site.get("/").fetch().await);
        assert_eq!(limits(site.get("/rate_limit").header("x-consumer", "a")).await.len(), 1);
        let site = serve::<T>(of(rules).on_missing_key(MissingKey::Allow));
        assert_eq!(limits(site.get("/rate_limit")).await.len(), 0);
    }
    let ambiguous = Header::new("x-key", Realm::Key).unwrap().or(ClientAddress::default());
    let site = serve::<T>(of(false).key(ambiguous));
    let twice = |path| site.get(path).header("x-key", "a").header("x-key", "b");
    let denied = twice("/rate_limit").fetch().await;
    assert_eq!(denied.status, 400);
    same(&denied, &twice("/").fetch().await);
}

pub(super) async fn forged_headers_show_the_usage_of_the_sender_alone<T: Target>() {
    let key = Identified.or(ClientAddress::default());
    let site = serve::<T>(HttpLimiter::new(limiter(&new_year(), &["5/hour"])).key(key));
    for _ in 0..3 {
        site.get("/").header("x-consumer", "victim").fetch().await;
    }
    site.get("/").fetch().await;
    let forged = [
        ("x-forwarded-for", "198.51.100.7"),
        ("forwarded", "for=198.51.100.7"),
        ("x-real-ip", "198.51.100.7"),
        ("consumer", "victim"),
        ("authorization", "Bearer victim"),
        ("x-http-method-override", "POST"),
    ];
    for (name, value) in forged {
        assert_eq!(used(site.get("/rate_limit").header(name, value)).await, ["hour 1/5"]);
        // A query is no key either.
        assert_eq!(used(site.get("/rate_limit?consumer=victim")).await, ["hour 1/5"]);
    }
    let as_victim = site.get("/rate_limit").header("x-consumer", "victim");
    assert_eq!(used(as_victim).await, ["hour 3/5"]);
}

pub(super) async fn rules_of_other_paths_are_reported_and_undisclosed_ones_are_not<T: Target>() {
    let rule = |name: &str, max| {
        Rule::named(name).limit(Limit::per_hour(max)).name_disclosed(true).disclosed(true)
    };
    let per_address = |name, max| rule(name, max).per(ClientAddress::default());
    let only = |matches: Match| per_address("special", 9).matching(matches);
    let rules = [
        per_address("clients", 5),
        rule("fleet", 1_000).disclosed(false),
        per_address("trial", 1).shadow(),
        per_address("export", 3).matching(Match::new().method("POST").path("/users/{id}")),
        only(Match::new().header_value("x-plan", "gold")),
        rule("members", 4).per(Identified),
        rule("routes", 8).per(Route).on_missing_key(MissingKey::Allow),
    ];
    let clock = new_year();
    let site = under::<T>(&clock, rules);
    site.post("/users/7").header("x-consumer", "a").fetch().await;
    // The client has no key under the rule for members.
    let report = used(site.get("/rate_limit")).await;
    assert_eq!(report, ["clients/hour 1/5", "export/hour 1/3", "routes/hour 0/8"]);
    let report = site.get("/rate_limit").header("x-plan", "gold").header("x-consumer", "a");
    let expected = [
        "clients/hour 1/5",
        "export/hour 1/3",
        "special/hour 0/9",
        "members/hour 1/4",
        "routes/hour 0/8",
    ];
    assert_eq!(used(report).await, expected);
}

pub(super) async fn names_and_tiers_of_rules_are_those_of_the_headers<T: Target>() {
    let folder = tempfile::tempdir().unwrap();
    // The hash of `key-of-alice`.
    let hash = "d16a80956c32f3f5fb979bea408abac8c3eef6c54ecb234279e337146cf87b47";
    let keys = format!("- {{ sha256: {hash}, name: alice, tier: pro }}\n");
    std::fs::write(folder.path().join("keys.yaml"), keys).unwrap();
    let rules = r#"
        keys: { from: ["header:x-api-key", bearer], file: keys.yaml }
        exempt: [{ path: /rate_limit }]
        rules:
          clients: { per: [key, address], limits: 3/hour, tiers: { pro: [7/hour, 9/day] } }
          login: { match: { path: /login }, per: address, limits: 5/minute, disclosed: name }
          fleet: { limits: 5000/second }
    "#;
    let path = folder.path().join("limits.yaml");
    std::fs::write(&path, rules).unwrap();
    let store = MemoryStore::builder().clock(new_year()).build();
    let limiter = RateLimiter::builder().rules(RulesFile::builder(path).watch().unwrap());
    let http = HttpLimiter::new(limiter.store(store).build().unwrap());
    let headers = rl_core::headers::Headers::new(rl_core::headers::HeaderFamily::IetfDraft11);
    let site = T::serve(vec![http.headers(headers)]);

    let as_alice = |path| site.get(path).header("x-api-key", "key-of-alice");
    let counted = as_alice("/").fetch().await;
    let field = counted.header("ratelimit").unwrap();
    let report = limits(as_alice("/rate_limit")).await;
    let [hour, day, login] = &*report else { panic!("{report:?}") };
    for (limit, remaining) in [(hour, 6), (day, 8)] {
        let name = limit["name"].as_str().unwrap();
        assert!(field.contains(&format!("\"{name}\";r={remaining}")), "{name}: {field}");
        assert!(!name.contains("clients"), "{name}");
        assert_eq!((&limit["remaining"], &limit["used"]), (&json!(remaining), &json!(1)));
    }
    assert_eq!((&login["name"], &login["used"]), (&json!("login/minute"), &json!(0)));
    // An invented key is counted, and shown, as its address.
    let invented = limits(site.get("/rate_limit").header("x-api-key", "alice")).await;
    assert_eq!((invented.len(), &invented[0]["limit"]), (2, &json!(3)));
}

pub(super) async fn more_rules_than_a_request_may_have_are_reported<T: Target>() {
    let rules = (0..40).map(|n| {
        let rule = Rule::named(format!("rule-{n}")).per(ClientAddress::default());
        rule.matching(Match::new().path(format!("/{n}"))).limit(Limit::per_hour(n + 1))
    });
    let site = under::<T>(&new_year(), rules);
    let report = limits(site.get("/rate_limit")).await;
    let maxima: Vec<_> = report.iter().map(|limit| limit["limit"].as_u64().unwrap()).collect();
    assert_eq!(maxima, (1..=32).collect::<Vec<_>>());
}

pub(super) async fn a_blocked_client_reads_the_end_of_its_block<T: Target>() {
    let clock = new_year();
    let open = Policy::new([Limit::per_hour(5)]).unwrap();
    let until = clock.now().plus_micros(90_000_000);
    for (policy, reset, retry_after) in [
        (open.blocked_until(until), json!(NEW_YEAR + 90), json!(90)),
        (open.blocked_until(None), json!(null), json!(null)),
    ] {
        let limiter = RateLimiter::builder().policy(policy).clock(Arc::clone(&clock));
        let site = serve::<T>(HttpLimiter::new(limiter.build().unwrap()));
        let expected = json!([{ "name": "hour", "limit": 0, "remaining": 0, "used": null,
            "reset": reset, "retry_after": retry_after }]);
        assert_eq!(json!(limits(site.get("/rate_limit")).await), expected);
    }
}

pub(super) async fn the_usage_on_a_shared_store_is_that_of_all_instances<T: Target>() {
    let redis = RedisServer::start();
    let instance = async |rules: bool| {
        let store = redis.patient_store().connect().await.unwrap();
        let limiter = RateLimiter::builder().store(store).deadline(Duration::from_secs(60));
        let clients = Rule::named("clients").per(ClientAddress::default());
        let export = Rule::named("export").per(ClientAddress::default());
        let export = export.matching(Match::new().path("/export"));
        let limiter = if rules {
            let clients = clients.limit(Limit::per_day(5)).name_disclosed(true);
            limiter.rules(Rules::new().rule(clients).rule(export.limit(Limit::per_day(9))))
        } else {
            limiter.limit(Limit::per_day(5))
        };
        serve::<T>(HttpLimiter::new(limiter.build().unwrap()))
    };
    for (rules, name) in [(false, "day"), (true, "clients/day")] {
        let [one, other] = [instance(rules).await, instance(rules).await];
        for _ in 0..6 {
            one.get("/").fetch().await; // the last of them is denied
        }
        let report = limits(other.get("/rate_limit")).await;
        let limit = &report[0];
        assert_eq!((&limit["name"], &limit["used"]), (&json!(name), &json!(5)));
        assert!((86_000..=86_400).contains(&limit["retry_after"].as_u64().unwrap()), "{limit}");
        assert_eq!(report, limits(one.get("/rate_limit")).await);
    }
}

pub(super) async fn usage_is_not_reported_while_the_store_cannot_decide<T: Target>() {
    for on_failure in [OnFailure::Allow, OnFailure::Reject] {
        let redis = RedisServer::stopped();
        let store = RedisStore::connect(&redis.url()).await.unwrap();
        let limiter = RateLimiter::builder().limit(Limit::per_day(1)).store(store);
        let limiter = limiter.on_store_failure(on_failure).build().unwrap();
        let answer = serve::<T>(HttpLimiter::new(limiter)).get("/rate_limit").fetch().await;
        assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")));
        assert_eq!(answer.header("cache-control"), Some("no-store"));
        assert!(answer.body.contains("cannot decide"), "{}", answer.body);
    }
}

pub(super) async fn a_fallback_reports_its_share_under_the_configured_limit<T: Target>() {
    let store = RedisStore::connect(&RedisServer::stopped().url()).await.unwrap();
    let limiter = RateLimiter::builder().limit(Limit::per_day(9)).store(store);
    let limiter = limiter.fallback(MemoryStore::new(), Share::with_instances(4)).build().unwrap();
    let site = serve::<T>(HttpLimiter::new(limiter));
    assert_eq!(site.get("/").fetch().await.standing(), "200 9-1-86400");
    let report = limits(site.get("/rate_limit")).await;
    assert_eq!((&report[0]["limit"], &report[0]["remaining"]), (&json!(9), &json!(1)));
}
