use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::client_ip::ClientIp;
use crate::key::fake_request::FakeRequest;
use crate::key::{
    AmbiguousKey, ClientAddress, Constant, Identified, KeyExtractor, RequestInfo, Tier,
};
use crate::model::{Cost, Limit, Subject};
use crate::policy::{InvalidPolicy, Policy};
use crate::store::Namespace;

fn set(rules: Vec<Rule>) -> Result<Arc<RuleSet>, InvalidRules> {
    let rules = rules.into_iter().fold(Rules::new(), Rules::rule);
    RuleSet::new(&rules, &Namespace::default()).map(Arc::new)
}

fn rule(name: &str) -> Rule {
    Rule::named(name).limit(Limit::per_minute(5))
}

/// Returns the parts of a request in one line for each: rule, subject, cost and first limit.
fn parts(set: &Arc<RuleSet>, request: &FakeRequest) -> Vec<String> {
    match parts_by(set, request, MissingKey::Reject) {
        Ok(parts) => parts,
        Err(uncounted) => vec![format!("{uncounted:?}")],
    }
}

fn parts_by<'a>(
    set: &'a Arc<RuleSet>,
    request: &dyn RequestInfo,
    on_missing_key: MissingKey,
) -> Result<Vec<String>, Uncounted<'a>> {
    let found = set.parts_of(request, &Defaults { on_missing_key, cost: None })?;
    let Some(found) = found else { return Ok(Vec::new()) };
    let lines = found.parts().into_iter().enumerate().map(|(place, part)| {
        let (subject, name) = found.rule(place).unwrap();
        assert_eq!(part.subject, subject);
        assert_eq!(part.namespace.map(Namespace::as_str), Some(&*format!("default/{name}")));
        let (units, limit) = (part.cost.units(), part.policy.limits()[0].limit());
        let shadow = if part.is_shadow() { " shadow" } else { "" };
        let hidden = if part.is_disclosed() { "" } else { " undisclosed" };
        format!(
            "{name} {}:{} {units} {limit}{shadow}{hidden}",
            subject.realm().as_str(),
            subject.id()
        )
    });
    Ok(lines.collect())
}

#[test]
fn a_request_has_a_part_for_each_rule_that_matches() {
    let set = set(vec![
        rule("clients").per(Identified).per(ClientAddress::default()),
        rule("login").on("POST", "/login").per(ClientAddress::default()).cost(2),
        rule("fleet"),
    ])
    .unwrap();
    let get = FakeRequest::get("/").peer("192.0.2.7");
    let fleet = "fleet global: 1 5/minute undisclosed";
    assert_eq!(parts(&set, &get), ["clients ip:192.0.2.7 1 5/minute", fleet]);
    let alice = FakeRequest::get("/").identified(Subject::consumer("alice"));
    assert_eq!(parts(&set, &alice), ["clients consumer:alice 1 5/minute", fleet]);
    let login = FakeRequest::get("/login").method("POST").peer("192.0.2.7");
    assert_eq!(
        parts(&set, &login),
        ["clients ip:192.0.2.7 1 5/minute", "login ip:192.0.2.7 2 5/minute", fleet]
    );
    assert_eq!(parts(&set, &FakeRequest::get("/")), ["UnknownAddress"]);
}

#[test]
fn a_request_that_no_rule_matches_has_no_parts() {
    let set = set(vec![rule("login").on("POST", "/login")]).unwrap();
    assert!(parts(&set, &FakeRequest::get("/login")).is_empty());
}

#[test]
fn exemptions_apply_to_one_rule_or_to_all() {
    let health = Match::new().path("/health");
    let office = Match::new().address("192.0.2.0/24");
    let rules = Rules::new()
        .rule(rule("clients").per(ClientAddress::default()).exempt(office))
        .rule(rule("fleet"))
        .exempt(health);
    let set = Arc::new(RuleSet::new(&rules, &Namespace::default()).unwrap());
    let from = |path: &str, peer: &str| parts(&set, &FakeRequest::get(path).peer(peer)).len();
    assert_eq!([from("/", "198.51.100.1"), from("/", "192.0.2.7")], [2, 1]);
    assert_eq!([from("/health", "198.51.100.1"), from("/health/", "198.51.100.1")], [0, 2]);
}

#[test]
fn a_request_without_a_key_is_handled_as_the_rule_sets() {
    let by = |missing| rule("a").per(Identified).on_missing_key(missing);
    let alone = |rule| set(vec![rule, super::tests::rule("fleet").disclosed(true)]).unwrap();
    let request = FakeRequest::get("/");
    let fleet = "fleet global: 1 5/minute".to_owned();
    assert_eq!(parts(&alone(by(MissingKey::Reject)), &request), [r#"MissingKey { rule: "a" }"#]);
    assert_eq!(parts(&alone(by(MissingKey::Allow)), &request), [&*fleet]);
    assert_eq!(parts(&alone(by(MissingKey::Share)), &request), ["a unknown: 1 5/minute", &fleet]);
    assert_eq!(parts(&alone(by(MissingKey::Reject).shadow()), &request), [&*fleet]);
    let default = alone(rule("a").per(Identified));
    assert_eq!(parts_by(&default, &request, MissingKey::Allow), Ok(vec![fleet]));
}

/// Fault: a rule with an address did not apply to a request whose address is unknown.
#[test]
fn a_request_without_an_address_is_handled_as_one_without_a_key() {
    let office = || Match::new().address("0.0.0.0/0");
    let alone = |rule: Rule| set(vec![rule, rule_of_all()]).unwrap();
    let by = |missing| alone(rule("a").matching(office()).on_missing_key(missing));
    let request = FakeRequest::get("/").identified(Subject::consumer("alice"));
    let fleet = "fleet global: 1 5/minute";
    assert_eq!(parts(&by(MissingKey::Reject), &request), ["UnknownAddress"]);
    assert_eq!(parts(&by(MissingKey::Allow), &request), [fleet]);
    let shared = "a unknown: 1 5/minute undisclosed";
    assert_eq!(parts(&by(MissingKey::Share), &request), [shared, fleet]);
    let shadow = alone(rule("a").matching(office()).shadow());
    assert_eq!(parts(&shadow, &request), [fleet]);
    let elsewhere = alone(rule("a").matching(office().path("/login")));
    assert_eq!(parts(&elsewhere, &request), [fleet]);
    let exempt = rule("a").matching(office()).exempt(Match::new().path("/"));
    assert_eq!(parts(&alone(exempt), &request), [fleet]);
    let by_address = alone(rule("a").per(ClientAddress::default()));
    assert_eq!(parts(&by_address, &request), ["UnknownAddress"]);
    // A trusted proxy that does not name its client is no fault of this server.
    let local = ClientIp::with_proxies("10.0.0.0/8".parse().unwrap()).trust_local();
    let rules = Rules::new().rule(rule("a").matching(office())).client_ip(local);
    let behind_proxy = Arc::new(RuleSet::new(&rules, &Namespace::default()).unwrap());
    assert_eq!(parts(&behind_proxy, &request), [r#"MissingKey { rule: "a" }"#]);
}

fn rule_of_all() -> Rule {
    rule("fleet").disclosed(true)
}

#[test]
fn an_ambiguous_key_rejects_the_request_unless_the_rule_is_in_shadow() {
    let ambiguous = |_: &dyn RequestInfo| Err(AmbiguousKey);
    let request = FakeRequest::get("/");
    let enforced = set(vec![rule("a").per(ambiguous).per(Constant)]).unwrap();
    assert_eq!(parts(&enforced, &request), ["AmbiguousKey"]);
    let shadow = set(vec![rule("a").per(ambiguous).shadow(), rule("b").shadow()]).unwrap();
    assert_eq!(parts(&shadow, &request), ["b global: 1 5/minute shadow undisclosed"]);
}

#[test]
fn tiers_have_limits_of_their_own() {
    let tiered = rule("a").per(Identified).tier("pro", [Limit::per_minute(50)]);
    let rules = Rules::new()
        .rule(tiered)
        .tier_by(|subject| (*subject == Subject::consumer("alice")).then(|| Tier::new("pro")));
    let set = Arc::new(RuleSet::new(&rules, &Namespace::default()).unwrap());
    let of = |id: &str| FakeRequest::get("/").identified(Subject::consumer(id));
    assert_eq!(parts(&set, &of("bob")), ["a consumer:bob 1 5/minute"]);
    assert_eq!(parts(&set, &of("alice")), ["a consumer:alice 1 50/minute"]);
    assert_eq!(parts(&set, &of("bob").tier("pro")), ["a consumer:bob 1 50/minute"]);
    assert_eq!(parts(&set, &of("alice").tier("basic")), ["a consumer:alice 1 5/minute"]);
}

#[test]
fn the_cost_is_that_of_the_rule_or_of_the_layer() {
    let by_request = |request: &dyn RequestInfo| Cost::new(request.path().len() as u64);
    let set = set(vec![rule("a"), rule("b").cost(4), rule("c").cost_by(by_request)]).unwrap();
    let layer: RequestCost = Arc::new(|_: &dyn RequestInfo| Cost::new(3));
    let defaults = Defaults { on_missing_key: MissingKey::Reject, cost: Some(&layer) };
    let parts = set.parts_of(&FakeRequest::get("/four"), &defaults).unwrap().unwrap();
    let costs: Vec<u64> = parts.parts().iter().map(|part| part.cost.units()).collect();
    assert_eq!(costs, [3, 4, 5]);
}

#[test]
fn the_strictest_setting_of_the_rules_that_deny_applies() {
    use std::time::Duration;

    let wait = |seconds, queue| OverLimit::Wait { at_most: Duration::from_secs(seconds), queue };
    let set = set(vec![
        rule("a"),
        rule("b").on_over_limit(wait(2, 9)),
        rule("c").on_over_limit(wait(3, 4)),
        rule("d").on_over_limit(OverLimit::Degrade),
    ])
    .unwrap();
    let defaults = Defaults { on_missing_key: MissingKey::Reject, cost: None };
    let parts = set.parts_of(&FakeRequest::get("/"), &defaults).unwrap().unwrap();
    let over = |denying: &[usize]| parts.on_over_limit(denying.iter().copied(), OverLimit::Reject);
    assert_eq!(over(&[0]), OverLimit::Reject);
    assert_eq!(over(&[1]), wait(2, 9));
    assert_eq!(over(&[1, 2, 3]), wait(2, 4));
    assert_eq!(over(&[3]), OverLimit::Degrade);
    assert_eq!(over(&[3, 0]), OverLimit::Reject);
    assert!(parts.may(OverLimit::Reject, |over_limit| over_limit != OverLimit::Reject));
}

#[test]
fn invalid_rules_are_named_with_the_value() {
    let error = |rules: Vec<Rule>| set(rules).unwrap_err();
    assert_eq!(error(vec![]), InvalidRules::Empty);
    let cases = [
        (
            vec![rule("a"), rule("a")],
            "rule \"a\" is defined twice: give one of the two another name",
        ),
        (
            vec![rule("login"), rule("Login")],
            "rule \"Login\" is defined twice: give one of the two another name",
        ),
        (vec![rule("a/b")], "rule name \"a/b\": expected 1 to 64 characters of A-Z a-z 0-9 _ . -"),
        (vec![Rule::named("a")], "rule \"a\" has no limits: expected at least one"),
        (
            vec![rule("a").tier("pro", [])],
            "rule \"a\", tier \"pro\" has no limits: expected at least one",
        ),
        (
            vec![rule("a").tier("pro", [Limit::per_day(1)]).tier("pro", [Limit::per_day(2)])],
            "rule \"a\" has two tiers \"pro\": give one of the two another name",
        ),
        (
            vec![rule("a").limit(Limit::per_minute(9))],
            "rule \"a\": limits 5/minute and 9/minute would share one counter",
        ),
        (
            vec![rule("a").on("POST", "login")],
            "rule \"a\": path \"login\": expected a path that begins",
        ),
        (vec![rule("a").exempt(Match::new().host(""))], "rule \"a\": host \"\": expected a host"),
    ];
    for (rules, expected) in cases {
        let error = error(rules).to_string();
        assert!(error.starts_with(expected), "{error}");
    }
    let rules = Rules::new().rule(rule("a")).exempt(Match::new().method("get"));
    let error = RuleSet::new(&rules, &Namespace::default()).unwrap_err();
    assert!(error.to_string().starts_with("exempt: method \"get\": expected"), "{error}");
    assert_eq!(error.rule(), None);
    let twice = set(vec![rule("a").policy(Policy::new([Limit::per_day(1)]).unwrap())]);
    assert!(twice.is_ok());
    let empty = set(vec![Rule::named("a")]).unwrap_err();
    assert_eq!(
        (empty.rule(), &empty),
        (
            Some("a"),
            &InvalidRules::Policy {
                rule: "a".into(),
                tier: None,
                error: Box::new(InvalidPolicy::Empty)
            }
        )
    );
}

/// Fault: a rule with a cost above its limits was accepted, and denied every request.
#[test]
fn a_cost_that_the_limits_of_a_rule_never_grant_is_refused() {
    let costly = |cost: u64| rule("a").cost(cost);
    let of_limit =
        |limit: &str, cost: u64| Rule::named("a").limit(limit.parse().unwrap()).cost(cost);
    let pro = |rule: Rule, max| rule.tier("pro", [Limit::per_minute(max)]);
    for (rule, expected) in [
        (costly(6), "cost 6: expected at most 5, which limit 5/minute grants at once"),
        (
            costly(6).response_cost(|_| None),
            "cost 6: expected at most 5, which limit 5/minute grants at once",
        ),
        (
            costly(9).limit(Limit::per_day(8)),
            "cost 9: expected at most 5, which limit 5/minute grants at once",
        ),
        (
            of_limit("9/minute:token-bucket:capacity=3", 4),
            "cost 4: expected at most 3, which limit",
        ),
        (pro(costly(9), 8), "cost 9: expected at most 5, which limit 5/minute grants at once"),
        // The limits of 0 keep all clients without the tier out. The cost keeps the tier out.
        (
            pro(of_limit("0/minute", 9), 8),
            "cost 9: expected at most 8, which limit 8/minute grants at once",
        ),
    ] {
        let error = set(vec![rule]).unwrap_err();
        assert_eq!(error.rule(), Some("a"));
        let text = error.to_string();
        assert!(text.starts_with(&format!("rule \"a\": {expected}")), "{text}");
    }
    for accepted in [
        costly(5),
        costly(6).shadow(),
        of_limit("5/minute:shadow", 6),
        of_limit("5/minute:requests", 6),
        of_limit("5/minute:gcra:burst=9", 6),
        of_limit("0/minute", 1),
        of_limit("0/minute", 6).limit(Limit::per_day(5)),
        pro(costly(9), 9),
        rule("a").cost_by(|_| Cost::new(9)),
        Rule::named("a").policies(crate::source::Preset::OpenBank).cost(5_000),
        rule("a").policy(Policy::new([Limit::per_day(5)]).unwrap().blocked_until(None)).cost(6),
    ] {
        set(vec![accepted]).unwrap();
    }
}

/// A decision has at most eight parts, so a ninth rule that matches could not be enforced.
#[test]
fn more_rules_than_parts_that_count_every_request_are_refused() {
    let all = |count: usize| (0..count).map(|place| rule(&format!("r{place}"))).collect::<Vec<_>>();
    assert!(set(all(8)).is_ok());
    let mut nine = all(8);
    nine.push(rule("r8").matching(Match::new()).shadow());
    assert_eq!(
        set(nine).unwrap_err().to_string(),
        "9 rules match every request (r0, r1, r2, r3, r4, r5, r6, r7, r8): expected at most 8; \
         narrow their matches"
    );
    // These rules do not count every request.
    for ninth in [
        rule("r8").on("GET", "/a"),
        rule("r8").matching(Match::new().host("a.org")),
        rule("r8").matching(Match::new().address("10.0.0.0/8")),
        rule("r8").matching(Match::new().header("x-plan")),
        rule("r8").exempt(Match::new().path("/a")),
        rule("r8").per(Identified).on_missing_key(MissingKey::Allow),
    ] {
        let rules: Vec<Rule> = all(8).into_iter().chain([ninth]).collect();
        assert!(set(rules).is_ok());
    }
}

#[test]
fn a_request_that_matches_nine_enforced_rules_is_rejected() {
    let get = |name: &str| rule(name).on("GET", "/{name}");
    let nine = |others: [Rule; 2]| {
        let seven = (0..7).map(|place| get(&format!("r{place}")));
        set(seven.chain(others).collect()).unwrap()
    };
    let request = FakeRequest::get("/a");
    assert_eq!(parts(&nine([get("r7"), get("r8")]), &request), ["TooManyRules"]);
    assert_eq!(parts(&nine([get("r7"), rule("r8").on("GET", "/b")]), &request).len(), 8);
    // A rule in shadow gives way to one that is enforced.
    for others in [[get("shadow").shadow(), get("r7")], [get("r7"), get("shadow").shadow()]] {
        let counted = parts(&nine(others), &request);
        let expected: Vec<String> =
            (0..8).map(|place| format!("r{place} global: 1 5/minute undisclosed")).collect();
        assert_eq!(counted, expected);
    }
}

/// Fault: the rule for `/b` was skipped for `/a/../b`, so a client could avoid the rule by writing
/// the path in this form.
#[test]
fn a_path_that_matches_nine_rules_in_its_forms_together_is_rejected() {
    let mut rules: Vec<Rule> = (0..7).map(|place| rule(&format!("all-{place}"))).collect();
    rules.push(rule("nested").on("GET", "/a/{name}/b"));
    rules.push(rule("b").on("GET", "/b"));
    let set = set(rules).unwrap();
    for (path, count) in [("/b", 8), ("/a/c/b", 8), ("/c/./b", 7)] {
        assert_eq!(parts(&set, &FakeRequest::get(path)).len(), count, "{path}");
    }
    assert_eq!(parts(&set, &FakeRequest::get("/a/../b")), ["TooManyRules"]);
}

/// Finds no key, and counts how often it is called.
#[derive(Clone, Debug, Default)]
struct CountedReads(Arc<AtomicUsize>);

impl KeyExtractor for CountedReads {
    fn subject(&self, _: &dyn RequestInfo) -> Result<Option<Subject>, AmbiguousKey> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(None)
    }
}

/// Fault: each of a thousand rules without a part read a key of 60 KB again.
#[test]
fn the_number_of_rules_that_read_a_key_is_bounded() {
    let reads = CountedReads::default();
    let missing =
        |place: usize| rule(&format!("r{place}")).on("GET", format!("/{place}")).per(reads.clone());
    let request = FakeRequest::get("/a/../b");
    let allow = |place| missing(place).on_missing_key(MissingKey::Allow);
    assert_eq!(parts(&set((0..99).map(allow).collect()).unwrap(), &request), ["TooManyRules"]);
    assert_eq!(reads.0.swap(0, Ordering::Relaxed), 32);
    let shadow = |place| missing(place).shadow();
    assert_eq!(parts(&set((0..99).map(shadow).collect()).unwrap(), &request), [""; 0]);
    assert_eq!(reads.0.load(Ordering::Relaxed), 32);
}

#[cfg(feature = "tracing")]
#[tokio::test(start_paused = true)]
async fn the_rules_of_a_request_that_matches_too_many_are_logged_once_in_a_while() {
    use crate::observe::capture::Capture;

    let get = |place: usize| rule(&format!("r{place}")).on("GET", "/{name}");
    let nine = set((0..9).map(get).collect()).unwrap();
    let mut others: Vec<Rule> = (0..8).map(get).collect();
    others.push(get(8).shadow());
    let with_shadow = set(others).unwrap();
    let request = FakeRequest::get("/a").header("x-request-id", b"id-1");
    let log = Capture::start();
    for _ in 0..3 {
        assert_eq!(parts(&nine, &request), ["TooManyRules"]);
    }
    assert_eq!(parts(&with_shadow, &request).len(), 8);
    let names = "r0, r1, r2, r3, r4, r5, r6, r7, r8";
    let lines = log.lines();
    assert_eq!(lines.len(), 2, "{lines:?}");
    for (line, consequence) in lines.iter().zip([
        "the request is rejected with 503",
        "a rule in shadow or of the database does not count the request",
    ]) {
        assert!(line.starts_with("ERROR more than eight rules match a request"), "{line}");
        assert!(line.contains(names) && line.contains(consequence), "{line}");
        assert!(line.contains("id-1"), "{line}");
    }
    tokio::time::advance(std::time::Duration::from_secs(61)).await;
    assert_eq!(parts(&nine, &request), ["TooManyRules"]);
    assert_eq!(log.lines().len(), 3);
    // A rule that may not read the key is logged too.
    let without_key = |place| get(place).per(CountedReads::default());
    let allow = |place| without_key(place).on_missing_key(MissingKey::Allow);
    assert_eq!(parts(&set((0..33).map(allow).collect()).unwrap(), &request), ["TooManyRules"]);
    let shadow = |place| without_key(place).shadow();
    assert_eq!(parts(&set((0..33).map(shadow).collect()).unwrap(), &request), [""; 0]);
    let lines = log.lines();
    assert_eq!(lines.len(), 5, "{lines:?}");
    assert!(lines[3].contains("r32") && lines[3].contains("503"), "{}", lines[3]);
    assert!(lines[4].contains("r32") && lines[4].contains("in shadow"), "{}", lines[4]);
}
