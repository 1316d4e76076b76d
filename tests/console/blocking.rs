//! Blocks of any subject under any rule: their pages, their reasons, and their end.

use rl_core::time::{Clock, SystemClock};
use rl_core::{Realm, Subject};
use rl_records::{Expected, RecordContent, RecordQuery};
use rl_tests::Browser;

use super::browser::{barriers, log_in, picture};
use super::{HOUR, House, OWNER, Role, VIEWER, token_of};

const RULES: &str = "rules:
  consumers: { per: \"trusted-header:x-consumer\", missing: allow, limits: records }
  login: { match: { method: POST }, per: identified, missing: allow, limits: records }
  addresses: { per: address, limits: records }
  tenants: { per: identified, missing: allow, limits: records }
  fixed: { per: identified, missing: allow, limits: 9000/second }
";

/// Returns the part of a page about one block: its banner, or its row in the list.
fn part<'a>(page: &'a str, separator: &str, words: &str) -> &'a str {
    let found = page.split(separator).skip(1).find(|part| part.contains(words));
    found.unwrap_or_else(|| panic!("no {words}: {page}"))
}

#[tokio::test]
async fn a_subject_of_any_kind_is_blocked_under_any_rule_and_unblocked() {
    let (house, _rules) = House::with_rules(RULES).await;
    let owner = house.log_in(OWNER).await;
    let key = "ab".repeat(16);
    let tenant = Subject::new(Realm::custom("tenant").unwrap(), "acme");
    let subjects = [
        (Subject::ip([192, 0, 2, 7]), "ip", "192.0.2.7", "addresses", "addresses"),
        (Subject::consumer("abc"), "consumer", "abc", "login", "login"),
        (Subject::user("alice"), "user", "alice", "", "login"),
        (Subject::displayed_key(&key), "key", &key, "", "login"),
        (tenant, "tenant", "acme", "tenants", "tenants"),
    ];
    for (subject, realm, id, rule, counting) in &subjects {
        let decide = async |rule: &str| house.limiter.rule(rule).of(subject).check().await;
        let of_subject = format!("realm={realm}&id={id}");
        let page = owner.get(&format!("/console/block?{of_subject}")).await.body;
        assert!(page.contains(&format!("<option value=\"{counting}\"")), "{page}");
        assert!(!page.contains("<option value=\"fixed\""), "{page}");
        let named = [("realm", *realm), ("id", *id), ("rule", *rule)];
        let reason = format!("Too many calls of {id}");
        let block = [&named[..], &[("reason", &*reason), ("end", "never")]].concat();
        let done = owner.post("/console/block", &block).await;
        assert_eq!(done.status, 303, "{realm}: {}", done.body);
        assert!(!decide(counting).await.is_allowed(), "{realm}");
        let others = if rule.is_empty() { "fixed" } else { "consumers" };
        assert!(decide(others).await.is_allowed(), "{realm}: other rules go on");

        let page = owner.get(done.header("location").unwrap()).await.body;
        let banner = part(&page, "class=\"banner\"", &reason);
        let under = match *rule {
            "" => "Blocked for ever.".to_owned(),
            rule => format!("Blocked under the rule {rule} for ever."),
        };
        assert!(banner.contains(&under) && banner.contains("olivia"), "{banner}");
        let row = owner.get("/console/blocks").await.body;
        let row = part(&row, "<tr", &reason);
        for words in [*id, if rule.is_empty() { "every rule" } else { rule }, ">Unblock<"] {
            assert!(row.contains(words), "{words}: {row}");
        }
        let changes = owner.get("/console/changes").await.body;
        assert!(changes.contains(&reason), "{changes}");

        let done = owner.post("/console/unblock", &named).await;
        assert_eq!(done.status, 303, "{realm}: {}", done.body);
        assert!(decide(counting).await.is_allowed(), "{realm}");
        let page = owner.get(done.header("location").unwrap()).await.body;
        assert!(page.contains("The block was lifted") && !page.contains("class=\"banner\""));
        assert_eq!(owner.post("/console/unblock", &named).await.status, 404, "{realm}");
    }
    assert!(owner.get("/console/blocks").await.body.contains("Nothing is blocked."));
}

/// The blocks of the subject under the same rule are lifted together, and nothing else is.
#[tokio::test]
async fn unblock_lifts_exactly_the_blocks_that_it_names() {
    let (house, _rules) = House::with_rules(RULES).await;
    let owner = house.log_in(OWNER).await;
    let now = SystemClock.now();
    let (abc, other) = (Subject::consumer("abc"), Subject::consumer("abd"));
    let address = Subject::ip([192, 0, 2, 7]);
    let end = now.plus_micros(HOUR);
    for (subject, rule) in [
        (&abc, None),
        (&abc, Some("login")),
        (&abc, Some("consumers")),
        (&other, None),
        (&other, Some("login")),
        (&address, None),
        (&address, Some("addresses")),
    ] {
        let block = house.records.block(subject, rule, end, Expected::Any, "otto").await.unwrap();
        house.records.audit_log().note_reason(&block, "loops", "otto").await.unwrap();
    }
    house.record("abc", 5, -1).await;
    let longer = RecordContent::block("abc", now, end.plus_micros(HOUR));
    let later = RecordContent::block("abc", end, end.plus_micros(HOUR));
    for content in [longer, later] {
        house.records.create(content, "otto").await.unwrap();
    }
    let stored = async || {
        let records = house.records.list(&RecordQuery::default()).await.unwrap().records;
        let mut stored: Vec<_> = records.into_iter().map(|record| record.content).collect();
        stored.sort_by_key(|content| (content.subject_id.clone(), content.rule.clone()));
        stored
    };
    let mut expected = stored().await;
    assert_eq!(expected.len(), 10);
    let page = owner.get("/console/blocks").await.body;
    assert_eq!(page.matches(">Unblock<").count(), 8, "{page}");
    for (realm, id, rule) in [
        ("consumer", "abc", "login"),
        ("consumer", "abc", ""),
        ("ip", "192.0.2.7", ""),
        ("consumer", "abd", "login"),
        ("ip", "192.0.2.7", "addresses"),
    ] {
        let fields = [("realm", realm), ("id", id), ("rule", rule), ("back", "blocks")];
        let done = owner.post("/console/unblock", &fields).await;
        assert_eq!(done.header("location"), Some("/console/blocks?done=unblocked"));
        let is_lifted = |content: &RecordContent| {
            content.blocks
                && (content.realm.as_str(), &*content.subject_id) == (realm, id)
                && content.rule.as_deref().unwrap_or_default() == rule
                && content.overlaps(now, now.plus_micros(HOUR / 2))
        };
        expected.retain(|content| !is_lifted(content));
        assert_eq!(stored().await, expected, "{realm} {id} {rule}");
    }
    assert_eq!(expected.len(), 4, "the rest is untouched: {expected:?}");
}

#[tokio::test]
async fn a_block_that_could_not_apply_is_not_offered() {
    let (house, _rules) = House::with_rules(RULES).await;
    let owner = house.log_in(OWNER).await;
    for (query, words) in [
        ("realm=ip&id=nowhere", "an address such as"),
        ("realm=planet&id=x", "one of ip, key"),
        (&format!("realm=user&id={}&digest=on", "ab".repeat(16)), "hash of its id"),
        ("realm=consumer&id=", "id of a consumer"),
    ] {
        let page = owner.get(&format!("/console/block?{query}")).await;
        assert!(page.status == 400 && page.body.contains(words), "{query}: {}", page.body);
    }
    // In the form in which addresses are counted.
    let page = owner.get("/console/block?realm=ip&id=2001:DB8::7").await.body;
    assert_eq!(super::field_of(&page, "id"), "2001:db8::/64");
    for (rule, words) in [("fixed", "Expected a rule that takes"), ("nope", "Expected a rule")] {
        let fields =
            [("realm", "user"), ("id", "alice"), ("reason", "x"), ("end", "day"), ("rule", rule)];
        let page = owner.post("/console/block", &fields).await;
        assert_eq!(page.status, 422);
        assert!(page.body.contains("id=\"rule-problem\"") && page.body.contains(words));
    }
    assert!(house.records.active_blocks(9).await.unwrap().is_empty());
    // Roles decide as for consumers.
    let creator = house.log_in(&token_of(Role::CanCreateRateLimits)).await;
    assert_eq!(creator.get("/console/block?realm=user&id=alice").await.status, 403);
    let viewer = house.log_in(VIEWER).await;
    assert_eq!(viewer.post("/console/unblock", &[("realm", "ip"), ("id", "x")]).await.status, 403);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_is_blocked_and_unblocked_in_a_browser() {
    let (house, _rules) = House::with_rules(RULES).await;
    let browser = Browser::start().await;
    log_in(&browser, &house, OWNER).await;
    browser.open(&house.site.url("/console/blocks")).await;
    browser.script("document.querySelector('#realm').value = 'ip'").await;
    browser.fill("#id", "127.0.0.1").await;
    browser.press("form.filter button").await;
    browser.until_text("h1", |text| text == "Block ip 127.0.0.1").await;
    browser.script("document.querySelector('#rule').value = 'addresses'").await;
    browser.fill("#reason", "Scans for passwords").await;
    let end = "document.querySelector('#end-until').click(); \
               document.querySelector('#until').value = '2099-01-01T10:00:30'";
    browser.script(end).await;
    browser.picture(&picture("block-address-light.png"), 1200, false).await;
    assert_eq!(barriers(&browser, 390, true).await, [""; 0]);
    assert_eq!(house.call("abc").await, 200);
    browser.press("form.sheet .danger").await;
    browser.until_text("h1", |text| text == "Blocks").await;
    assert_eq!(house.call("abc").await, 429);
    let row = browser.text("tbody tr").await;
    for words in ["127.0.0.1", "addresses", "until 2099-01-01 10:00:30 UTC", "Scans for passwords"]
    {
        assert!(row.contains(words), "{words}: {row}");
    }
    browser.press("tbody th a").await;
    browser.until_text(".banner", |text| text.contains("under the rule addresses")).await;
    for (name, width, is_dark) in [
        ("blocked-address-light.png", 1200, false),
        ("blocked-address-dark.png", 1200, true),
        ("blocked-address-narrow.png", 390, false),
    ] {
        browser.picture(&picture(name), width, is_dark).await;
        assert_eq!(barriers(&browser, width, is_dark).await, [""; 0], "{name}");
    }
    browser.press(".banner button").await;
    browser.until_text(".done", |text| text.contains("The block was lifted")).await;
    assert_eq!(house.call("abc").await, 200);
    assert_eq!(browser.complaints().await, [""; 0]);
    browser.close().await;
}
