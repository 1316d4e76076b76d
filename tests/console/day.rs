//! A day of three people at the console: an administrator, the owner of an application, and an
//! auditor who only reads.

use rl_core::RateLimiter;
use rl_core::rules::RulesFile;
use rl_records::{RecordSource, Records, RuleFollower};
use rl_tests::Browser;
use rl_tests::web::GIVE_UP;

use super::browser::{barriers, log_in, picture};
use super::{House, OWNER, OWNER_OF_SHOP, VIEWER};
use rl_admin::console::ConsoleBuilder;

/// The consumers have the limits of their records.
const RULES: &str =
    "rules: { consumers: { per: \"trusted-header:x-consumer\", missing: allow, limits: records } }";

/// Opens a page in both schemes and both widths, stores a picture of each, and checks that nothing
/// keeps people with impairments from using it.
async fn look_at(browser: &Browser, name: &str) {
    for (scheme, is_dark) in [("light", false), ("dark", true)] {
        for (size, width) in [("wide", 1_200), ("narrow", 420)] {
            let file = format!("day-{name}-{scheme}-{size}.png");
            browser.picture(&picture(&file), width, is_dark).await;
            assert_eq!(barriers(browser, width, is_dark).await, [""; 0], "{file}");
        }
    }
}

/// Logs the present visitor out, and another one in.
async fn change_visitor(browser: &Browser, house: &House, token: &str) {
    browser.press(".who button").await;
    log_in(browser, house, token).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_is_planned_a_client_blocked_and_the_day_audited_by_three_people() {
    let records = Records::connect("sqlite::memory:").await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("limits.yaml");
    std::fs::write(&path, RULES).unwrap();
    let source = RecordSource::builder(&records).deadline(GIVE_UP).start();
    let file = RulesFile::builder(&path).source("records", source).watch().unwrap();
    let limiter = RateLimiter::builder().rules(&file).deadline(GIVE_UP).build().unwrap();
    let _follower = RuleFollower::start(&records, &file);
    let settings = ConsoleBuilder::without_tls;
    let house = House::serve(records, limiter, |admin| admin.rules_file(&file), settings);

    // The administrator plans a rule from a template. It begins in shadow.
    let browser = Browser::start().await;
    log_in(&browser, &house, OWNER).await;
    browser.open(&house.site.url("/console/rules")).await;
    browser.press(".head a.button").await;
    browser.until_text("h1", |text| text == "Add a rule").await;
    assert_eq!(browser.count(".templates svg").await, 4);
    look_at(&browser, "templates").await;
    browser.press(".templates li:nth-child(1) h2 a").await;
    browser.until_text("#definition", |text| text.contains("/login")).await;
    browser.fill("#name", "api").await;
    browser.fill("#definition", "per: \"trusted-header:x-consumer\"\nlimits: 3/minut").await;
    browser.press("form.sheet .main").await;
    browser.until_text(".problems", |text| text.contains("line 2, column 9: limit")).await;
    look_at(&browser, "problem").await;
    let definition = "per: \"trusted-header:x-consumer\"\nmissing: allow\nlimits: 3/minute";
    browser.fill("#definition", definition).await;
    browser.press("form.sheet button[name=preview]").await;
    browser.until_text(".conflict", |text| text.contains("It would count, and deny nothing")).await;
    browser.press("form.sheet .main").await;
    browser.until_text(".done", |text| text.starts_with("The rule was added.")).await;

    // Real traffic shows what it would deny.
    for consumer in ["shop", "noisy", "noisy", "noisy", "noisy", "noisy"] {
        assert_eq!(house.call(consumer).await, 200);
    }
    browser.open(&house.site.url("/console/rules")).await;
    let state = browser.until_text("tbody", |text| text.contains("in shadow 2")).await;
    assert!(state.contains("in shadow, denies nothing"), "{state}");
    look_at(&browser, "rules").await;

    // The rule is enforced. The noisy client is found, and blocked.
    browser.press("tr[data-state=near] button").await;
    browser.until_text(".done", |text| text.starts_with("The rule was changed.")).await;
    assert_eq!((house.call("noisy").await, house.call("shop").await), (429, 200));
    browser.open(&house.site.url("/console")).await;
    browser.until_text("main", |text| text.contains("noisy")).await;
    look_at(&browser, "now").await;
    browser.open(&house.site.url("/console/block?id=noisy")).await;
    browser.fill("#reason", "calls in a loop").await;
    browser.press("form.sheet .danger").await;
    browser.until_text("main", |text| text.contains("The block was set")).await;
    browser.open(&house.site.url("/console/blocks")).await;
    browser.until_text("tbody", |text| text.contains("noisy")).await;
    look_at(&browser, "blocks").await;
    browser.press("tbody form button").await;
    browser.until_text("main", |text| text.contains("The block was lifted")).await;

    // The owner of an application sees the own consumer, and no rules.
    change_visitor(&browser, &house, OWNER_OF_SHOP).await;
    browser.open(&house.site.url("/console/consumers")).await;
    let consumers = browser.text("main").await;
    assert!(!consumers.contains("noisy"), "{consumers}");
    browser.open(&house.site.url("/console/rules")).await;
    browser.until_text("h1", |text| text == "Not found").await;

    // The auditor reads what happened, and changes nothing.
    change_visitor(&browser, &house, VIEWER).await;
    browser.open(&house.site.url("/console/changes")).await;
    let changes = browser.until_text("tbody", |text| text.contains("Rule added")).await;
    for expected in ["Rule taken out of shadow", "calls in a loop", "noisy", "olivia"] {
        assert!(changes.contains(expected), "{expected}: {changes}");
    }
    look_at(&browser, "changes").await;
    browser.open(&house.site.url("/console/rules")).await;
    assert_eq!(browser.count("main button, main a.button").await, 0);
    browser.close().await;
}
