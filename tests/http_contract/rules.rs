//! Rules: several subjects of one request, charged together or not at all.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use rl_core::adapter::HttpLimiter;
use rl_core::denial::DenialBody;
use rl_core::headers::{HeaderFamily, Headers};
use rl_core::key::{ApiKey, ClientAddress, Header, Identified, KeySecret, Tier};
use rl_core::rules::{Match, Rule, Rules, RulesFile};
use rl_core::source::{PolicyFuture, PolicySource};
use rl_core::time::ManualClock;
use rl_core::{
    Cost, FailureKind, Limit, MaybeReady, MemoryStore, OnFailure, OverLimit, Policy, RateLimiter,
    Realm, StoreError, Subject,
};
use rl_tests::web::{Answer, Fetch, Target, eventually, new_year};

fn rule(name: &str, limits: &[&str]) -> Rule {
    Rule::named(name).limits(limits.iter().map(|limit| limit.parse::<Limit>().unwrap()))
}

/// Returns a rule that counts by the consumer that the application has authenticated.
fn per_consumer(name: &str, limits: &[&str]) -> Rule {
    rule(name, limits).per(Identified)
}

fn limiter(clock: &Arc<ManualClock>, rules: Vec<Rule>) -> RateLimiter {
    let rules = rules.into_iter().fold(Rules::new(), Rules::rule);
    let store = MemoryStore::builder().clock(Arc::clone(clock)).build();
    RateLimiter::builder().rules(rules).store(store).build().unwrap()
}

fn under(rules: Vec<Rule>) -> HttpLimiter {
    HttpLimiter::new(limiter(&new_year(), rules))
}

/// Returns the used units of the first limit of a subject under a rule.
async fn used(limiter: &RateLimiter, rule: &str, subject: &Subject) -> u64 {
    let usage = limiter.rule(rule).of(subject).usage().await.unwrap();
    usage.limits().next().unwrap().used()
}

async fn as_consumer(site: &rl_tests::web::Site, path: &str, id: &str) -> Answer {
    site.get(path).header("x-consumer", id).fetch().await
}

/// Fault: of two nested limiters, the outer one was charged although the inner one denied. In this
/// way, one abusive key used up the units of all keys.
pub(super) async fn a_denied_key_does_not_use_up_the_limit_of_the_fleet<T: Target>() {
    let fleet = rule("fleet", &["100/hour"]);
    let limiter = limiter(&new_year(), vec![fleet, per_consumer("consumers", &["1/hour"])]);
    let site = T::serve(vec![HttpLimiter::new(limiter.clone())]);
    let mut statuses = Vec::new();
    for _ in 0..30 {
        statuses.push(as_consumer(&site, "/", "abusive").await.status);
    }
    assert_eq!((statuses[0], &statuses[1..]), (200, &[429; 29][..]));
    assert_eq!(used(&limiter, "fleet", &Subject::global()).await, 1);
    assert_eq!(site.handled(), 1);
    assert_eq!(as_consumer(&site, "/", "another").await.status, 200);
    assert_eq!(used(&limiter, "fleet", &Subject::global()).await, 2);
}

pub(super) async fn headers_describe_the_strictest_rule_that_is_disclosed<T: Target>() {
    let site = T::serve(vec![under(vec![
        per_consumer("consumers", &["10/hour"]),
        rule("users", &["3/minute"]).matching(Match::new().path("/users/{id}")).disclosed(true),
        rule("fleet", &["2/second"]),
    ])]);
    assert_eq!(as_consumer(&site, "/", "a").await.standing(), "200 10-9-3600");
    assert_eq!(as_consumer(&site, "/users/7", "a").await.standing(), "200 3-2-60");
    assert_eq!(as_consumer(&site, "/users/7", "b").await.standing(), "429, retry 1");
}

pub(super) async fn a_denial_by_an_undisclosed_rule_names_no_numbers<T: Target>() {
    let rules = || vec![per_consumer("consumers", &["10/hour"]), rule("fleet", &["1/minute"])];
    let site = T::serve(vec![under(rules())]);
    assert_eq!(as_consumer(&site, "/", "a").await.standing(), "200 10-9-3600");
    let denied = as_consumer(&site, "/", "a").await;
    assert_eq!(denied.limit_lines(), ["retry-after: 60"]);
    let body =
        r#"{"code":429,"message":"Too many requests at the moment. Try again in 60 seconds."}"#;
    assert_eq!((denied.status, denied.body.as_str()), (429, body));

    let site = T::serve(vec![under(rules()).denial_body(DenialBody::problem())]);
    as_consumer(&site, "/", "a").await;
    let body = concat!(
        r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","#,
        r#""title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,"#,
        r#""detail":"Too many requests at the moment. Try again in 60 seconds."}"#,
    );
    assert_eq!(as_consumer(&site, "/", "a").await.body, body);
}

pub(super) async fn the_body_names_the_limit_that_governs<T: Target>() {
    let tokens = per_consumer("tokens", &["100/minute:unit=tokens"]).cost(60);
    let rules = vec![tokens, per_consumer("consumers", &["10/hour"])];
    let site = T::serve(vec![under(rules).name_rules()]);
    as_consumer(&site, "/", "a").await;
    let denied = as_consumer(&site, "/", "a").await;
    let body = r#"{"code":429,"message":"Too many requests: 100 tokens per minute. Try again in 60 seconds.","limit":"tokens/minute"}"#;
    assert_eq!(denied.body, body);
    assert_eq!(denied.standing(), "429 100-40-60, retry 60");
}

/// Returns the names of the limits in a field of the IETF drafts.
fn names(answer: &Answer, field: &str) -> Vec<String> {
    let items = answer.lines(field).into_iter().flat_map(|line| line.split(", "));
    items.map(|item| item.split('"').nth(1).unwrap().to_owned()).collect()
}

/// Faults: the body of a denial named limits that no field listed, and the limits of two rules had
/// the same name.
pub(super) async fn each_limit_has_one_public_name_in_fields_and_bodies<T: Target>() {
    let login = || per_consumer("login", &["2/minute"]).matching(Match::new().path("/users/{id}"));
    let rules = || vec![login(), per_consumer("consumers", &["6/minute", "9/hour"])];
    let fields = Headers::new(HeaderFamily::IetfDraft11);
    let problem = || under(rules()).headers(fields.clone()).denial_body(DenialBody::problem());
    // The hash of a name is the same in all processes.
    for (http, login) in [(problem(), "r9ff76"), (problem().name_rules(), "login")] {
        let site = T::serve(vec![http]);
        let other = as_consumer(&site, "/", "a").await;
        let [minute, hour] = &names(&other, "ratelimit-policy")[..] else {
            panic!("only the rule that matches")
        };
        let consumers = minute.strip_suffix("/minute").unwrap();
        assert_eq!((*hour == format!("{consumers}/hour"), consumers == login), (true, false));
        assert_eq!(consumers == "consumers", login == "login");
        let expected = [format!("{login}/minute"), minute.clone(), hour.clone()];
        let first = as_consumer(&site, "/users/7", "a").await;
        assert_eq!(names(&first, "ratelimit-policy"), expected);
        assert_eq!(names(&first, "ratelimit"), expected);
        as_consumer(&site, "/users/7", "a").await;
        let denied = as_consumer(&site, "/users/7", "a").await;
        assert_eq!(
            (denied.status, names(&denied, "ratelimit-policy")),
            (429, names(&first, "ratelimit"))
        );
        let violated = format!(r#""violated-policies":["{}"]}}"#, expected[0]);
        assert!(denied.body.ends_with(&violated), "{}", denied.body);
    }
}

/// Fault: the names of rules, which may tell an attacker what is counted, were in every denial.
pub(super) async fn names_of_rules_are_disclosed_only_if_set<T: Target>() {
    let families = Headers::new(HeaderFamily::IetfDraft11).and(HeaderFamily::Envoy);
    let secret = || per_consumer("secret-rule", &["1/minute", "1/hour:shadow"]).cost(1);
    for body in
        [DenialBody::json(), DenialBody::problem(), DenialBody::text(), DenialBody::open_bank()]
    {
        for (rule, is_named) in [(secret(), false), (secret().name_disclosed(true), true)] {
            let http = under(vec![rule]).headers(families.clone()).denial_body(body.clone());
            let site = T::serve(vec![http]);
            let allowed = as_consumer(&site, "/", "a").await;
            let denied = as_consumer(&site, "/", "a").await;
            assert_eq!(denied.status, 429);
            let fields = [allowed.limit_lines(), denied.limit_lines()].concat().join("\n");
            assert_eq!(fields.contains("secret-rule/minute"), is_named, "{fields}");
            let call = site.post("/").header("content-type", "application/grpc");
            let grpc = call.header("x-consumer", "a").fetch().await;
            let details = grpc.header("grpc-status-details-bin").unwrap().to_owned();
            let details =
                String::from_utf8_lossy(&STANDARD_NO_PAD.decode(details).unwrap()).into_owned();
            assert_eq!(details.contains("secret-rule"), is_named, "{details}");
            assert!(is_named || !format!("{fields}{}", denied.body).contains("secret"));
            let names_it = denied.body.contains("for this Consumer under the rule secret-rule.");
            assert_eq!(names_it, is_named && body == DenialBody::open_bank(), "{}", denied.body);
        }
    }
}

pub(super) async fn partition_keys_tell_clients_apart_without_naming_them<T: Target>() {
    let secret = |bytes: &[u8]| KeySecret::new(bytes).unwrap();
    let serve = |secret: KeySecret| {
        let http = under(vec![per_consumer("consumers", &["9/minute"])]).partition_keys(secret);
        T::serve(vec![http.headers(Headers::new(HeaderFamily::IetfDraft11))])
    };
    let [one, same, other] =
        [b"one secret of 24 bytes..", b"one secret of 24 bytes..", b"two secrets, 24 bytes..."]
            .map(|bytes| serve(secret(bytes)));
    let mut keys = Vec::new();
    for (site, consumer) in [(&one, "alice"), (&same, "alice"), (&one, "bob"), (&other, "alice")] {
        let answer = as_consumer(site, "/", consumer).await;
        let key = |field: &str| {
            let line = answer.header(field).unwrap();
            line.rsplit(";pk=").next().unwrap().to_owned()
        };
        assert_eq!(key("ratelimit-policy"), key("ratelimit"));
        let key = key("ratelimit");
        let base64 = key.strip_prefix(':').and_then(|key| key.strip_suffix(':')).unwrap();
        assert_eq!(STANDARD.decode(base64).unwrap().len(), 16);
        keys.push(key);
    }
    assert_eq!(keys[0], keys[1], "all instances with one secret send the same key");
    assert!(keys[0] != keys[2] && keys[0] != keys[3], "{keys:?}");
}

pub(super) async fn a_cost_that_a_rule_never_grants_is_reported_without_retry_after<T: Target>() {
    let limiter = limiter(
        &new_year(),
        vec![
            per_consumer("exports", &["10/hour"]).cost_by(|_| Cost::new(20)),
            rule("fleet", &["100/hour"]),
        ],
    );
    let site = T::serve(vec![HttpLimiter::new(limiter.clone())]);
    let denied = as_consumer(&site, "/", "a").await;
    let message = "it counts as 20 requests, but at most 10 are ever allowed at once.";
    assert!(denied.body.contains(message), "{}", denied.body);
    assert_eq!((denied.status, denied.header("retry-after")), (429, None));
    assert_eq!(used(&limiter, "fleet", &Subject::global()).await, 0);
}

pub(super) async fn retry_after_is_the_longest_wait_of_all_rules<T: Target>() {
    let site = T::serve(vec![under(vec![
        per_consumer("consumers", &["1/minute"]),
        rule("fleet", &["1/hour"]),
    ])]);
    as_consumer(&site, "/", "a").await;
    let denied = as_consumer(&site, "/", "a").await;
    assert_eq!(denied.standing(), "429 1-0-60, retry 3600");
    // The rule for all clients together is not disclosed, so the message does not name it.
    let message = "Too many requests at the moment. Try again in 3600 seconds.";
    assert!(denied.body.contains(message), "{}", denied.body);
}

pub(super) async fn rules_match_by_method_path_and_header<T: Target>() {
    let clock = new_year();
    let counted = [
        rule("users", &["9/hour"]).on("GET", "/users/{id}"),
        rule("posts", &["9/hour"]).matching(Match::new().method("POST")),
        rule("beta", &["9/hour"]).matching(Match::new().header_value("x-beta", "1")),
        rule("hosts", &["9/hour"]).matching(Match::new().host("localhost")),
        rule("local", &["9/hour"]).matching(Match::new().address("127.0.0.0/8")),
    ];
    let limiter = limiter(&clock, counted.into());
    let site = T::serve(vec![HttpLimiter::new(limiter.clone())]);
    assert_eq!(site.get("/users/7").fetch().await.limit_lines(), [""; 0]);
    // actix-web decodes this path before it looks for the route. Both adapters must count the
    // request under the rule `users`.
    site.get("/%75sers/8").fetch().await;
    site.post("/").header("x-beta", "1").fetch().await;
    site.get("/").header("host", "localhost:80").fetch().await;
    let mut all = Vec::new();
    for name in ["users", "posts", "beta", "hosts", "local"] {
        all.push(used(&limiter, name, &Subject::global()).await);
    }
    assert_eq!(all, [2, 1, 1, 1, 4]);
}

pub(super) async fn requests_that_no_rule_matches_or_that_are_exempt_have_no_headers<T: Target>() {
    let rules = Rules::new()
        .rule(per_consumer("consumers", &["1/hour"]).matching(Match::new().method("GET")))
        .exempt(Match::new().path("/health"));
    let limiter = RateLimiter::builder().rules(rules).build().unwrap();
    let site = T::serve(vec![HttpLimiter::new(limiter)]);
    for _ in 0..3 {
        assert_eq!(as_consumer(&site, "/health", "a").await.limit_lines(), [""; 0]);
        assert_eq!(site.post("/").fetch().await.limit_lines(), [""; 0]);
    }
    assert_eq!(as_consumer(&site, "/", "a").await.standing(), "200 1-0-3600");
}

pub(super) async fn the_first_key_that_is_present_is_counted<T: Target>() {
    let secret = KeySecret::new(b"sixteen bytes or more").unwrap();
    let key = secret.subject(Realm::Key, b"k1");
    let clients = rule("clients", &["9/hour"])
        .per(ApiKey::header("x-api-key", secret).unwrap())
        .per(Identified)
        .per(ClientAddress::default());
    let limiter = limiter(&new_year(), vec![clients, rule("fleet", &["99/hour"])]);
    let site = T::serve(vec![HttpLimiter::new(limiter.clone())]);
    let with = |name: &str, value: &str| site.get("/").header(name, value).fetch();
    with("x-api-key", "k1").await;
    with("x-consumer", "alice").await;
    site.get("/").fetch().await;
    let twice = site.get("/").header("x-api-key", "a").header("x-api-key", "b").fetch().await;
    assert_eq!(twice.status, 400);
    for subject in [key, Subject::consumer("alice"), Subject::ip([127, 0, 0, 1])] {
        assert_eq!(used(&limiter, "clients", &subject).await, 1);
    }
    assert_eq!(used(&limiter, "fleet", &Subject::global()).await, 3);
}

pub(super) async fn a_rule_whose_key_is_missing_rejects_or_does_not_count<T: Target>() {
    let by_header = || Header::new("x-tenant", Realm::User).unwrap();
    let tenants = || rule("tenants", &["9/hour"]).per(by_header());
    let site = T::serve(vec![under(vec![tenants(), rule("fleet", &["9/hour"])])]);
    assert_eq!(site.get("/").fetch().await.status, 403);
    let tenants = tenants().on_missing_key(rl_core::MissingKey::Allow);
    let limiter = limiter(&new_year(), vec![tenants, rule("fleet", &["1/hour"])]);
    let site = T::serve(vec![HttpLimiter::new(limiter)]);
    assert_eq!(site.get("/").fetch().await.status, 200);
    assert_eq!(site.get("/").fetch().await.standing(), "429, retry 3600");
}

pub(super) async fn a_tier_has_limits_of_its_own<T: Target>() {
    let consumers = per_consumer("consumers", &["1/hour"]).tier("pro", [Limit::per_hour(5)]);
    let rules = Rules::new()
        .rule(consumers)
        .tier_by(|subject| (*subject == Subject::consumer("alice")).then(|| Tier::new("pro")));
    let store = MemoryStore::builder().clock(new_year()).build();
    let limiter = RateLimiter::builder().rules(rules).store(store).build().unwrap();
    let site = T::serve(vec![HttpLimiter::new(limiter)]);
    assert_eq!(as_consumer(&site, "/", "alice").await.standing(), "200 5-4-3600");
    assert_eq!(as_consumer(&site, "/", "bob").await.standing(), "200 1-0-3600");
}

pub(super) async fn a_rule_in_shadow_denies_nothing<T: Target>() {
    let clock = new_year();
    let trial = per_consumer("trial", &["1/hour"]).shadow();
    let limiter = limiter(&clock, vec![trial, per_consumer("consumers", &["3/hour"])]);
    let site = T::serve(vec![HttpLimiter::new(limiter.clone())]);
    let mut statuses = Vec::new();
    for _ in 0..4 {
        statuses.push(as_consumer(&site, "/", "a").await.status);
    }
    assert_eq!(statuses, [200, 200, 200, 429]);
    assert_eq!(used(&limiter, "trial", &Subject::consumer("a")).await, 1);
}

pub(super) async fn the_rule_that_denies_sets_what_happens<T: Target>() {
    let degrade = per_consumer("consumers", &["1/hour"]).on_over_limit(OverLimit::Degrade);
    let site = T::serve(vec![under(vec![degrade, rule("fleet", &["3/hour"])])]);
    assert_eq!(as_consumer(&site, "/", "a").await.status, 200);
    let degraded = as_consumer(&site, "/", "a").await;
    assert!(degraded.body.starts_with("degraded "), "{}", degraded.body);
    as_consumer(&site, "/", "b").await;
    as_consumer(&site, "/", "c").await;
    assert_eq!(as_consumer(&site, "/", "d").await.standing(), "429, retry 3600");

    let wait = OverLimit::Wait { at_most: Duration::from_secs(60), queue: 9 };
    let patient = per_consumer("consumers", &["1/100ms"]).on_over_limit(wait);
    let rules = Rules::new().rule(patient).rule(rule("fleet", &["9/hour"]));
    let limiter = RateLimiter::builder().rules(rules).build().unwrap();
    let site = T::serve(vec![HttpLimiter::new(limiter.clone())]);
    for _ in 0..3 {
        assert_eq!(as_consumer(&site, "/", "a").await.status, 200);
    }
    assert_eq!(used(&limiter, "fleet", &Subject::global()).await, 3);
}

pub(super) async fn a_place_under_a_rule_is_free_when_the_response_has_ended<T: Target>() {
    let streams = per_consumer("streams", &["1:concurrency"]);
    let limiter = limiter(&new_year(), vec![rule("fleet", &["9/hour"]), streams]);
    let site = T::serve(vec![HttpLimiter::new(limiter.clone())]);
    let request = site.get("/waits").header("x-consumer", "a");
    let waiting = tokio::spawn(async move { request.fetch().await.status });
    site.reached(1).await;
    assert_eq!(as_consumer(&site, "/", "a").await.status, 429);
    assert_eq!(as_consumer(&site, "/", "b").await.status, 200);
    site.cue();
    assert_eq!(waiting.await.unwrap(), 200);
    assert_eq!(as_consumer(&site, "/", "a").await.status, 200);
    assert_eq!(used(&limiter, "fleet", &Subject::global()).await, 3);
}

pub(super) async fn the_cost_of_a_request_is_settled_under_all_rules<T: Target>() {
    let rules = vec![per_consumer("tokens", &["100/hour"]).cost(10), rule("fleet", &["100/hour"])];
    let limiter = limiter(&new_year(), rules);
    let http = HttpLimiter::new(limiter.clone()).refund_if(|response| response.status() >= 500);
    let site = T::serve(vec![http]);
    assert_eq!(as_consumer(&site, "/fails", "a").await.status, 500);
    assert_eq!(used(&limiter, "tokens", &Subject::consumer("a")).await, 0);
    assert_eq!(used(&limiter, "fleet", &Subject::global()).await, 0);
    as_consumer(&site, "/", "a").await;
    assert_eq!(used(&limiter, "tokens", &Subject::consumer("a")).await, 10);
}

pub(super) async fn an_undisclosed_rule_in_shadow_adds_no_warning<T: Target>() {
    let all = || rule("all", &["1/hour"]).shadow();
    let consumers = || per_consumer("consumers", &["9/hour"]);
    let site = T::serve(vec![under(vec![all(), consumers()])]);
    for left in [8, 7] {
        let answer = as_consumer(&site, "/", "a").await;
        assert_eq!(answer.standing(), format!("200 9-{left}-3600"));
        assert_eq!(answer.header("x-rate-limit-warning"), None);
    }
    let site = T::serve(vec![under(vec![all().disclosed(true), consumers()])]);
    as_consumer(&site, "/", "a").await;
    let warned = as_consumer(&site, "/", "a").await;
    let warning = "over limits that are not enforced yet: r4c6c3/hour=1";
    assert_eq!(warned.header("x-rate-limit-warning"), Some(warning));
}

pub(super) async fn a_request_under_an_undisclosed_rule_is_not_shown_as_unlimited<T: Target>() {
    let headers = Headers::default().show_unlimited();
    let site = T::serve(vec![under(vec![rule("fleet", &["1/minute"])]).headers(headers)]);
    assert_eq!(site.get("/").fetch().await.limit_lines(), [""; 0]);
    assert_eq!(site.get("/").fetch().await.limit_lines(), ["retry-after: 60"]);
}

pub(super) async fn a_responder_gets_the_name_of_the_rule_that_denies<T: Target>() {
    let rules = vec![per_consumer("consumers", &["9/hour"]), rule("fleet", &["1/minute"])];
    let http = under(rules).deny_with(|reason, mut denial| {
        let realm = reason.subject().map(|subject| subject.realm().as_str());
        denial.body = format!("{:?} {realm:?}", reason.rule()).into();
        denial
    });
    let site = T::serve(vec![http]);
    as_consumer(&site, "/", "a").await;
    assert_eq!(as_consumer(&site, "/", "a").await.body, r#"Some("fleet") Some("global")"#);
}

/// Fault: the tokens of a response were also charged to the rule that counts requests, so that rule
/// blocked the key.
pub(super) async fn a_final_cost_does_not_change_rules_with_a_cost_of_their_own<T: Target>() {
    let rules = || {
        let requests = per_consumer("requests", &["20/hour"]).cost(1);
        limiter(&new_year(), vec![requests, per_consumer("tokens", &["10000/hour"])])
    };
    let alice = Subject::consumer("a");
    let limiter = rules();
    let http = HttpLimiter::new(limiter.clone()).cost(|_| Cost::new(600));
    let site = T::serve(vec![http.response_cost(|_| Some(Cost::new(150)))]);
    assert_eq!(as_consumer(&site, "/", "a").await.status, 200);
    eventually(|| async { used(&limiter, "tokens", &alice).await == 150 }).await;
    assert_eq!(used(&limiter, "requests", &alice).await, 1);

    let limiter = rules();
    let site = T::serve(vec![HttpLimiter::new(limiter.clone()).metered()]);
    assert_eq!(as_consumer(&site, "/costs/90", "a").await.status, 200);
    eventually(|| async { used(&limiter, "tokens", &alice).await == 91 }).await;
    assert_eq!(used(&limiter, "requests", &alice).await, 1);
}

/// A source that returns the limits of consumers only after a look-up.
struct Directory;

impl PolicySource for Directory {
    fn policy(&self, subject: &Subject) -> PolicyFuture {
        let policy = |limit: &str| Some(Policy::new([limit.parse().unwrap()]).unwrap());
        let found = match subject.id().as_text() {
            Some("alice") => Ok(policy("2/hour")),
            Some("bob") => Ok(policy("1:concurrency")),
            Some("down") => Err(StoreError::new(FailureKind::Unavailable)),
            _ => Ok(None),
        };
        MaybeReady::later(async {
            tokio::task::yield_now().await;
            found
        })
    }
}

pub(super) async fn a_rule_gets_its_limits_from_a_source<T: Target>() {
    let rules = || {
        let consumers = Rule::named("consumers").per(Identified).policies(Directory);
        Rules::new().rule(rule("fleet", &["9/hour"])).rule(consumers)
    };
    let store = MemoryStore::builder().clock(new_year()).build();
    let limiter = RateLimiter::builder().rules(rules()).store(store).build().unwrap();
    let site = T::serve(vec![HttpLimiter::new(limiter.clone())]);
    assert_eq!(as_consumer(&site, "/", "alice").await.standing(), "200 2-1-3600");
    assert_eq!(as_consumer(&site, "/", "alice").await.standing(), "200 2-0-3600");
    let denied = as_consumer(&site, "/", "alice").await;
    assert_eq!(denied.standing(), "429 2-0-3600, retry 3600");
    assert!(denied.body.contains(r#""limit":"r74802/hour""#), "{}", denied.body);
    assert_eq!(used(&limiter, "consumers", &Subject::consumer("alice")).await, 2);
    let reset = limiter.rule("consumers").of(&Subject::consumer("alice")).reset().await;
    assert!(reset.is_ok());
    let checked = limiter.rule("consumers").of(&Subject::consumer("alice")).cost(2).check().await;
    assert!(checked.is_allowed());

    // Bob may have one request in progress, and his limits come from a look-up. His permit is free
    // after each request.
    for _ in 0..2 {
        assert_eq!(as_consumer(&site, "/", "bob").await.status, 200);
        let bob = Subject::consumer("bob");
        eventually(|| async { used(&limiter, "consumers", &bob).await == 0 }).await;
    }
    // A consumer without limits is counted under the other rules only.
    assert_eq!(as_consumer(&site, "/", "carol").await.status, 200);
    assert_eq!(used(&limiter, "fleet", &Subject::global()).await, 5);
    // The limits of this consumer cannot be looked up. By default its request is allowed, and
    // charged under no rule.
    assert_eq!(as_consumer(&site, "/", "down").await.status, 200);
    assert_eq!(used(&limiter, "fleet", &Subject::global()).await, 5);
    let strict = RateLimiter::builder().rules(rules()).on_store_failure(OnFailure::Reject);
    let site = T::serve(vec![HttpLimiter::new(strict.build().unwrap())]);
    assert_eq!(as_consumer(&site, "/", "down").await.status, 503);
}

pub(super) async fn a_rule_reads_its_final_cost_from_the_response<T: Target>() {
    let rows = per_consumer("rows", &["100/hour"])
        .cost(40)
        .response_cost(|response| (response.status() == 200).then_some(Cost::new(7)));
    let limiter = limiter(&new_year(), vec![per_consumer("requests", &["9/hour"]), rows]);
    let site = T::serve(vec![HttpLimiter::new(limiter.clone())]);
    let alice = Subject::consumer("a");
    assert_eq!(as_consumer(&site, "/", "a").await.status, 200);
    eventually(|| async { used(&limiter, "rows", &alice).await == 7 }).await;
    assert_eq!(as_consumer(&site, "/fails", "a").await.status, 500);
    eventually(|| async { used(&limiter, "rows", &alice).await == 47 }).await;
    assert_eq!(used(&limiter, "requests", &alice).await, 2);
}

/// Fault: the first file of the guide had no limit for a client that invents keys.
pub(super) async fn invented_keys_share_the_limit_of_their_address_under_a_file_of_keys<
    T: Target,
>() {
    let folder = tempfile::tempdir().unwrap();
    // The hash of `key-of-alice`.
    let hash = "d16a80956c32f3f5fb979bea408abac8c3eef6c54ecb234279e337146cf87b47";
    let keys = format!("- {{ sha256: {hash}, name: alice, tier: pro }}\n");
    std::fs::write(folder.path().join("keys.yaml"), keys).unwrap();
    let rules = r#"
        keys: { from: ["header:x-api-key", bearer], file: keys.yaml }
        rules:
          clients: { per: [key, address], limits: 3/hour, tiers: { pro: 7/hour } }
    "#;
    let path = folder.path().join("limits.yaml");
    std::fs::write(&path, rules).unwrap();
    let file = RulesFile::builder(path).pause(Duration::from_millis(10)).watch().unwrap();
    assert!(file.status().warnings().is_empty(), "{:?}", file.status());
    let store = MemoryStore::builder().clock(new_year()).build();
    let limiter = RateLimiter::builder().rules(&file).store(store).build().unwrap();
    let site = T::serve(vec![HttpLimiter::new(limiter.clone())]);

    let mut passed = 0;
    for number in 0..40 {
        let request = site.get("/").header("x-api-key", format!("invented-{number}"));
        passed += usize::from(request.fetch().await.status == 200);
    }
    assert_eq!(passed, 3, "the limit of the address");
    let as_alice = async || site.get("/").header("x-api-key", "key-of-alice").fetch().await;
    assert_eq!(as_alice().await.standing(), "200 7-6-3600");
    let bearer = site.get("/").header("authorization", "Bearer key-of-alice").fetch().await;
    assert_eq!(bearer.standing(), "200 7-5-3600");
    // Without a secret, every instance finds the counters of a known key under its name.
    assert_eq!(used(&limiter, "clients", &Subject::new(Realm::Key, "alice")).await, 2);
}
