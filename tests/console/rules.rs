//! Limits under a rule, and the rules themselves.

use rl_core::Subject;
use rl_core::time::{Clock, SystemClock};
use rl_records::{Expected, Limits, RecordContent};
use rl_tests::Browser;
use rl_tests::web::eventually;

use super::browser::{barriers, log_in, picture};
use super::{HOUR, House, OWNER};

const RULES: &str = "rules:
  api: { per: \"trusted-header:x-consumer\", missing: allow, limits: records }
  login: { match: { method: POST, path: \"/login/{name}\" }, per: identified, limits: records }
  addresses: { per: address, limits: 9000/second }
";

/// Creates limits of the consumer `abc` under the rule `login` and under every rule.
async fn limits_of_abc(house: &House) {
    house.record("abc", -1, 9).await;
    let now = SystemClock.now();
    let limits: Limits = "2/minute, 5/hour".parse().unwrap();
    let content = RecordContent::new("abc", now, now.plus_micros(HOUR), limits);
    let content = RecordContent { rule: Some("login".into()), ..content };
    house.records.create(content, "olivia").await.unwrap();
}

/// Returns the cells of the sums on the page of a consumer, each after its heading.
fn sums(page: &str) -> Vec<(String, String)> {
    let section = page.split("id=\"holds\"").nth(1).unwrap().split("</section>").next().unwrap();
    let text_after = |part: &str| part.split('<').next().unwrap().trim().to_owned();
    let tables = section.split("<h3>").skip(1);
    fn sum(table: &str) -> &str {
        table.split("<tfoot>").nth(1).unwrap().split("<td>").nth(1).unwrap()
    }
    tables.map(|table| (text_after(table), text_after(sum(table)))).collect()
}

#[tokio::test]
async fn the_page_of_a_consumer_shows_the_sum_under_each_rule() {
    let (house, _rules) = House::with_rules(RULES).await;
    let owner = house.log_in(OWNER).await;
    house.record("abd", -1, 7).await;
    let page = owner.get("/console/consumer?id=abd").await.body;
    assert!(!page.contains("<h3>"), "one sum needs no heading: {page}");
    limits_of_abc(&house).await;
    let page = owner.get("/console/consumer?id=abc").await.body;
    let expected =
        [("Under the other rules", "9/hour"), ("Under the rule login", "2/minute, 14/hour")];
    assert_eq!(sums(&page), expected.map(|(rule, sum)| (rule.to_owned(), sum.to_owned())));
    let abc = Subject::consumer("abc");
    let policy = house.limiter.rule("login").of(&abc).usage().await.unwrap();
    let limits: Vec<_> = policy.limits().map(|limit| limit.limit().to_string()).collect();
    assert_eq!(limits, ["2/minute", "14/hour"], "as the limiter applies them");

    let later = SystemClock.now().plus_micros(HOUR / 2);
    house.records.block(&abc, Some("api"), later, Expected::Any, "otto").await.unwrap();
    let page = owner.get("/console/consumer?id=abc").await.body;
    assert_eq!(sums(&page)[1], ("Under the rule api".into(), "no call is allowed".into()));
    // The block and the limits of the rule are over then.
    let page = owner.get("/console/consumer?id=abc&at=2020-01-01T00:00:00").await.body;
    assert!(!page.contains("<h3>"), "{page}");
}

#[tokio::test]
async fn an_explanation_is_about_one_rule_or_all() {
    let (house, _rules) = House::with_rules(RULES).await;
    let owner = house.log_in(OWNER).await;
    limits_of_abc(&house).await;
    let abc = Subject::consumer("abc");
    for _ in 0..2 {
        assert!(house.limiter.rule("login").of(&abc).check().await.is_allowed());
    }
    let explain = async |query: &str| {
        let page = owner.get(&format!("/console/explain?id=abc{query}")).await;
        assert_eq!(page.status, 200, "{query}");
        page.body
    };
    let all = explain("").await;
    assert!(all.contains(">denied<") && all.contains("2 of 2 used"), "{all}");
    let login = explain("&rule=login").await;
    assert!(login.contains("2 of 2 used") && login.contains("minute=2/minute, hour=14/hour"));
    assert!(login.contains("<option value=\"login\" selected"), "{login}");
    let api = explain("&rule=api").await;
    assert!(api.contains(">allowed<") && !api.contains(">denied<"), "{api}");
    let other = explain("&rule=login&path=/login/x&method=GET").await;
    assert!(other.contains("Rule login does not match the request"), "{other}");
    assert!(explain("&rule=none").await.contains("role=\"alert\""));
    let soon = SystemClock.now().plus_micros(HOUR);
    house.records.block(&abc, Some("api"), soon, Expected::Any, "otto").await.unwrap();
    let api = explain("&rule=api").await;
    assert!(api.contains(">denied<") && api.contains("The subject is blocked."), "{api}");
}

#[tokio::test(flavor = "multi_thread")]
async fn definitions_of_the_file_are_shown_like_those_of_the_database() {
    let (house, _rules) = House::with_rules(RULES).await;
    let owner = house.log_in(OWNER).await;
    let fields = [("name", "upload"), ("definition", "per: address\nlimits: 5/minute")];
    assert_eq!(owner.post("/console/rule/new", &fields).await.status, 303);
    let rules = async || owner.get("/console/rules").await.body;
    eventually(async || rules().await.contains("of the database")).await;
    let page = rules().await;
    let row = |name: &str| {
        let found = page.split("<tr").find(|row| row.contains("<pre") && row.contains(name));
        found.unwrap_or_else(|| panic!("no {name}: {page}"))
    };
    for (name, lines) in [
        (
            "login",
            "match: { method: POST, path: &quot;/login/{name}&quot; }\nper: identified\nlimits: records",
        ),
        ("api", "per: &quot;trusted-header:x-consumer&quot;\nlimits: records\nmissing: allow"),
        ("addresses", "per: address\nlimits: 9000/second"),
        ("upload", "per: address\nlimits: 5/minute"),
    ] {
        assert!(row(name).contains(lines), "{name}: {}", row(name));
    }
    let browser = Browser::start().await;
    log_in(&browser, &house, OWNER).await;
    limits_of_abc(&house).await;
    for path in ["rules", "consumer?id=abc", "explain?id=abc&rule=login"] {
        browser.open(&house.site.url(&format!("/console/{path}"))).await;
        let name = path.split('?').next().unwrap();
        for (scheme, width, is_dark) in
            [("light", 1200, false), ("dark", 1200, true), ("narrow", 390, false)]
        {
            browser.picture(&picture(&format!("rule-{name}-{scheme}.png")), width, is_dark).await;
            assert_eq!(barriers(&browser, width, is_dark).await, [""; 0], "{path} {scheme}");
        }
    }
    browser.close().await;
}
