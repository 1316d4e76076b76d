//! Tests of the console in Chromium, with the actions of a person.

use std::path::{Path, PathBuf};

use fantoccini::Locator;
use rl_core::time::{Clock, SystemClock};
use rl_records::{CallLimits, RecordContent, TierContent};
use rl_tests::{Browser, RedisServer};
use serde_json::json;

use super::{HOUR, House, OWNER, VIEWER};

/// Returns the path of a screenshot, which people can inspect.
pub(super) fn picture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("../console").join(name)
}

pub(super) async fn log_in(browser: &Browser, house: &House, token: &str) {
    browser.open(&house.site.url("/console")).await;
    browser.fill("#token", token).await;
    browser.press("main button[type=submit]").await;
    browser.until_text("h1", |text| text == "Now").await;
}

/// Returns the violations that axe-core finds on the page, at this width and in this scheme.
pub(super) async fn barriers(browser: &Browser, width: u32, is_dark: bool) -> Vec<String> {
    let scheme = if is_dark { "dark" } else { "light" };
    let features = [json!({ "name": "prefers-color-scheme", "value": scheme })];
    browser.tool("Emulation.setEmulatedMedia", json!({ "features": features })).await;
    let size =
        json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600 });
    browser.tool("Emulation.setDeviceMetricsOverride", size).await;
    let axe = std::env::var_os("RL_AXE").expect("tests/run sets RL_AXE");
    browser.script(&std::fs::read_to_string(axe).unwrap()).await;
    let found = browser.script(
        "return axe.run().then(found => found.violations.flatMap(rule =>
            rule.nodes.map(node => rule.id + ': ' + node.html)))",
    );
    let found = serde_json::from_value(found.await).unwrap();
    browser.tool("Emulation.clearDeviceMetricsOverride", json!({})).await;
    found
}

/// Searches for a consumer by the beginning of its id, and opens its page.
async fn find(browser: &Browser, prefix: &str, id: &str) {
    browser.press("nav li:nth-child(2) a").await;
    browser.fill("#search", prefix).await;
    browser.press("main button[type=submit]").await;
    browser.until_text("tbody", |text| text.contains(id)).await;
    browser.press("tbody a").await;
    browser.until_text("h1", |text| text == id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_adds_a_record_sees_it_used_up_and_raises_it() {
    let redis = RedisServer::start();
    let house = House::connected_to(&redis).await;
    for id in ["acme-partner-gateway", "billing-batch", "checkout-web", "fraud-scoring"] {
        house.record(id, 600, 20_000).await;
    }
    let browser = Browser::start().await;
    browser.open(&house.site.url("/console")).await;
    browser.picture(&picture("login-light.png"), 1200, false).await;
    log_in(&browser, &house, OWNER).await;

    // The consumer `acme-mobile` has no record yet.
    browser.press("nav li:nth-child(2) a").await;
    browser.fill("#search", "acme-mobile").await;
    browser.press("main button[type=submit]").await;
    browser.press("main p a").await;
    browser.until_text("h1", |text| text == "acme-mobile").await;
    assert_eq!(browser.text("#u-hour-state").await, "no limit");

    browser.press(".head .main").await;
    browser.fill("#limits", "ten/hour").await;
    browser.press("form.sheet .main").await;
    browser
        .until_text(".problems", |text| text.contains("Limits: ten/hour, column 1: expected "))
        .await;
    let focused = "return document.activeElement.className";
    assert_eq!(browser.script(focused).await, "problems", "the problems are read first");
    browser.picture(&picture("invalid-light.png"), 1200, false).await;
    let typed = browser.client().find(Locator::Css("#limits")).await.unwrap();
    assert_eq!(typed.prop("value").await.unwrap().as_deref(), Some("ten/hour"));
    browser.fill("#limits", "10/hour").await;
    browser.press("form.sheet .main").await;
    browser.until_text(".done", |text| text.contains("created")).await;

    // The bar changes while calls arrive, without a click.
    browser.until_text("#u-hour-used", |text| text == "0 of 10").await;
    assert_eq!(width(&browser).await, "0.0%");
    for _ in 0..4 {
        assert_eq!(house.call("acme-mobile").await, 200);
    }
    browser.until_text("#u-hour-used", |text| text == "4 of 10").await;
    assert_eq!(width(&browser).await, "40.0%");
    for _ in 0..6 {
        assert_eq!(house.call("acme-mobile").await, 200);
    }
    assert_eq!(house.call("acme-mobile").await, 429);
    browser.until_text("#u-hour-state", |text| text == "used up").await;
    assert_eq!(browser.text("#u-hour-left").await, "0");
    assert_eq!(
        browser.text("#u-hour-used").await,
        "10 of 10",
        "looking and denials charge nothing"
    );
    browser.until_text("#news", |text| text == "per hour: used up").await;

    browser.press(".timeline .dates a").await;
    browser.fill("#limits", "20/hour").await;
    browser.press("form.sheet .main").await;
    browser.until_text(".done", |text| text.contains("saved")).await;
    assert_eq!(house.call("acme-mobile").await, 200);
    browser.until_text("#u-hour-used", |text| text == "11 of 20").await;
    browser.until_text("#changes ~ table", |text| text.contains("Limits: 10/hour → 20/hour")).await;

    // Adds a planned record, an ended one and a tier, so that the screenshots show them too.
    let now = SystemClock.now();
    let numbers = CallLimits::from_numbers([5, 60, 1_000, 5_000, -1, 100_000]).unwrap();
    let span = |from: u64, to: u64| {
        RecordContent::new(
            "acme-mobile",
            now.plus_micros(from * HOUR),
            now.plus_micros(to * HOUR),
            numbers,
        )
    };
    let mut over = span(0, 0);
    over.from_date = rl_core::time::Timestamp::from_micros(now.as_micros() - 24 * HOUR * 40);
    over.to_date = rl_core::time::Timestamp::from_micros(now.as_micros() - 24 * HOUR * 2);
    let mut active = span(0, 24 * 20);
    active.from_date = rl_core::time::Timestamp::from_micros(now.as_micros() - 24 * HOUR * 2);
    (active.api_name, active.bank_id) = (Some("getBanks".into()), Some("gh.29.uk".into()));
    for content in [over, active, span(24 * 15, 24 * 60)] {
        house.records.create(content, "otto").await.unwrap();
    }
    let gold = TierContent { name: "gold".into(), limits: numbers.into() };
    house.records.tiers().create(gold, "otto").await.unwrap();
    for _ in 0..4 {
        assert_eq!(house.call("acme-mobile").await, 200);
    }
    find(&browser, "acme-m", "acme-mobile").await;
    browser.until_text("#u-second-max, #u-second-used", |text| text.contains("of 5")).await;
    browser.picture(&picture("consumer-light.png"), 1200, false).await;
    browser.picture(&picture("consumer-dark.png"), 1200, true).await;
    browser.picture(&picture("consumer-narrow.png"), 390, false).await;
    browser.picture(&picture("consumer-narrow-dark.png"), 390, true).await;
    let wide = browser.script("return document.documentElement.scrollWidth <= innerWidth").await;
    assert_eq!(wide, true, "nothing is cut off");
    for (link, name) in [
        ("2", "consumers"),
        ("3", "rules"),
        ("4", "tiers"),
        ("5", "subscriptions"),
        ("6", "resources"),
        ("7", "blocks"),
        ("8", "changes"),
        ("9", "store"),
    ] {
        browser.press(&format!("nav li:nth-child({link}) a")).await;
        browser.until_text("nav a[aria-current]", |text| text.to_lowercase() == name).await;
        browser.picture(&picture(&format!("{name}-light.png")), 1200, false).await;
        browser.picture(&picture(&format!("{name}-narrow.png")), 390, true).await;
        for width in [1200, 390] {
            assert_eq!(barriers(&browser, width, width < 600).await, [""; 0], "{name} {width}");
        }
    }
    assert_eq!(browser.complaints().await, [""; 0]);
    browser.press(".who button").await;
    browser.until_text("h1", |text| text == "Log in").await;
    browser.close().await;
}

/// Returns the width of the bar for the hour.
async fn width(browser: &Browser) -> String {
    let width = "return document.getElementById('u-hour-bar').getAttribute('width')";
    browser.script(width).await.as_str().unwrap_or_default().to_owned()
}

/// The page shows no controls for editing, and the server refuses a forged form.
#[tokio::test(flavor = "multi_thread")]
async fn a_viewer_sees_everything_and_edits_nothing() {
    let house = House::new().await;
    let record = house.record("abc", 10, 100).await;
    let browser = Browser::start().await;
    log_in(&browser, &house, VIEWER).await;
    find(&browser, "abc", "abc").await;
    browser.until_text("#u-minute-used", |text| text == "0 of 10").await;
    assert_eq!(browser.count("main form[method=post], main .head .button, main a.danger").await, 0);
    assert_eq!(browser.count(".timeline .dates a").await, 0);

    // Forges a form that deletes the record. It is a copy of `form.who`, a form of the page, so it
    // contains the form token of the session.
    let forged = format!(
        "const form = document.querySelector('form.who').cloneNode(true);
         form.action = '/console/record/delete';
         for (const [name, value] of [['record', '{}'], ['revision', '1']]) {{
             const field = document.createElement('input');
             [field.name, field.value] = [name, value];
             form.append(field);
         }}
         form.className = 'forged';
         document.querySelector('main').append(form);",
        record.id
    );
    browser.script(&forged).await;
    browser.press("form.forged button").await;
    browser.until_text("h1", |text| text == "Not allowed").await;
    assert!(browser.text("main").await.contains("CanDeleteRateLimits"));
    assert_eq!(house.records.read(record.id).await.unwrap(), Some(record));
    browser.picture(&picture("refused-light.png"), 1200, false).await;
    browser.close().await;
}

/// Another user changes a record while its form is open. Saving the form then shows the other
/// user's values next to the input, and no input is lost.
#[tokio::test(flavor = "multi_thread")]
async fn the_second_of_two_saves_conflicts() {
    let house = House::new().await;
    let record = house.record("abc", 10, 100).await;
    let browser = Browser::start().await;
    log_in(&browser, &house, OWNER).await;
    browser.open(&house.site.url(&format!("/console/record/edit?record={}", record.id))).await;
    browser.fill("#limits", "33/minute\n100/hour").await;
    browser.fill("#bank_id", "typed by olivia").await;

    let mut theirs = record.content.clone();
    theirs.limits = "44/minute, 100/hour".parse().unwrap();
    house.records.update(record.id, theirs, 1, "otto").await.unwrap();
    browser.press("form.sheet .main").await;
    let conflict = browser.until_text(".conflict", |text| text.contains("otto")).await;
    assert!(conflict.contains("Limits 44/minute, 100/hour 33/minute, 100/hour"), "{conflict}");
    assert!(conflict.contains("Bank – typed by olivia"), "{conflict}");
    browser.picture(&picture("conflict-light.png"), 1200, false).await;
    browser.picture(&picture("conflict-narrow.png"), 390, true).await;
    let there = house.records.read(record.id).await.unwrap().unwrap();
    assert_eq!((there.updated_by.as_str(), there.content.limits.as_slice()[0].max()), ("otto", 44));

    browser.press("form.sheet .main").await;
    browser.until_text(".done", |text| text.contains("saved")).await;
    let there = house.records.read(record.id).await.unwrap().unwrap();
    assert_eq!(
        (there.updated_by.as_str(), there.content.limits.as_slice()[0].max()),
        ("olivia", 33)
    );
    assert_eq!(there.content.bank_id.as_deref(), Some("typed by olivia"));
    browser.close().await;
}

/// A script that returns the obstacles on a page for screen readers and for users without a mouse.
pub(super) const OBSTACLES: &str = r"
    const wrong = [];
    const all = (css) => Array.from(document.querySelectorAll(css));
    for (const field of all('input:not([type=hidden]), select, textarea')) {
        if (!field.labels.length) wrong.push('no label: ' + field.name);
    }
    for (const control of all('a, button')) {
        if (!(control.ariaLabel || control.textContent).trim()) wrong.push('no name: ' + control.outerHTML);
    }
    const ids = all('[id]').map((element) => element.id);
    wrong.push(...ids.filter((id, at) => ids.indexOf(id) !== at).map((id) => 'twice: ' + id));
    for (const name of ['aria-describedby', 'aria-labelledby', 'for']) {
        for (const element of all('[' + name + ']')) {
            for (const id of element.getAttribute(name).split(' ')) {
                if (!ids.includes(id)) wrong.push(name + ' leads nowhere: ' + id);
            }
        }
    }
    const levels = all('h1, h2, h3').map((heading) => Number(heading.tagName[1]));
    if (levels[0] !== 1 || levels.filter((level) => level === 1).length !== 1) wrong.push('headings: ' + levels);
    for (const cell of all('thead th, tbody th, tfoot th')) {
        if (!cell.scope) wrong.push('no scope: ' + cell.textContent);
    }
    for (const picture of all('main svg')) {
        if (picture.closest('[aria-hidden=true]') === null) wrong.push('a picture without words');
    }
    if (!document.documentElement.lang || !document.title || all('main').length !== 1) wrong.push('the page itself');
    return wrong;
";

#[tokio::test(flavor = "multi_thread")]
async fn every_page_has_names_labels_and_headings_and_works_by_keyboard() {
    let house = House::new().await;
    let record = house.record("abc", 10, 100).await;
    let gold = TierContent { name: "gold".into(), limits: record.content.limits.clone() };
    house.records.tiers().create(gold, "otto").await.unwrap();
    let browser = Browser::start().await;
    super::usage::record(&house.records, &["abc", "shop"]).await;
    browser.open(&house.site.url("/console")).await;
    assert_eq!(browser.script(OBSTACLES).await, serde_json::json!([]), "login");
    // The field for the token already has the focus, so the test types and presses enter without a
    // click.
    browser
        .client()
        .active_element()
        .await
        .unwrap()
        .send_keys(&format!("{OWNER}\n"))
        .await
        .unwrap();
    browser.until_text("h1", |text| text == "Now").await;
    let active = async || browser.client().active_element().await.unwrap();
    active().await.send_keys("\u{e004}").await.unwrap();
    assert_eq!(active().await.text().await.unwrap(), "Skip to content", "the first tab");
    active().await.send_keys("\n").await.unwrap();
    let id = active().await.attr("id").await.unwrap();
    assert_eq!(id.as_deref(), Some("main"));

    let id = record.id.to_string();
    for page in [
        "".to_owned(),
        "/consumers".to_owned(),
        "/consumers?search=unknown".to_owned(),
        "/rules".to_owned(),
        "/resources".to_owned(),
        "/resource/new".to_owned(),
        "/blocks".to_owned(),
        "/block?id=abc".to_owned(),
        "/raise?id=abc".to_owned(),
        "/explain?id=abc".to_owned(),
        "/subject?realm=ip&id=192.0.2.7".to_owned(),
        "/consumer?id=abc".to_owned(),
        "/months".to_owned(),
        "/months?month=2020-01&search=x&sort=denied".to_owned(),
        "/consumer?id=unknown&at=yesterday".to_owned(),
        "/record/new?consumer=abc".to_owned(),
        format!("/record/edit?record={id}"),
        format!("/record/delete?record={id}"),
        "/tiers".to_owned(),
        "/tier/new".to_owned(),
        "/tier/edit?name=gold".to_owned(),
        "/subscriptions".to_owned(),
        "/subscription/new?consumer=abc".to_owned(),
        "/changes".to_owned(),
        "/store".to_owned(),
        "/last-hour".to_owned(),
        "/nowhere".to_owned(),
    ] {
        browser.open(&house.site.url(&format!("/console{page}"))).await;
        assert_eq!(browser.script(OBSTACLES).await, serde_json::json!([]), "{page}");
    }
    browser.open(&house.site.url("/console/record/new")).await;
    browser.press("form.sheet .main").await;
    browser.until_text(".problems", |text| text.contains("Consumer")).await;
    assert_eq!(browser.script(OBSTACLES).await, serde_json::json!([]), "with problems");
    // Adds a field without a label, which the check must report. Otherwise the check could never
    // fail.
    browser.script("document.querySelector('main').append(document.createElement('input'))").await;
    assert_ne!(browser.script(OBSTACLES).await, serde_json::json!([]));
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_scripts_everything_works_except_the_refresh() {
    let house = House::new().await;
    let browser = Browser::start().await;
    let off = serde_json::json!({ "value": true });
    browser.tool("Emulation.setScriptExecutionDisabled", off).await;
    log_in(&browser, &house, OWNER).await;
    browser.open(&house.site.url("/console/record/new?consumer=abc")).await;
    browser.fill("#limits", "3/minute").await;
    browser.press("form.sheet .main").await;
    browser.until_text(".done", |text| text.contains("created")).await;
    assert_eq!(house.call("abc").await, 200);
    assert_eq!(browser.text("#u-minute-used").await, "0 of 3", "it stands still");
    assert_eq!(browser.count("#pause[hidden]").await, 1);
    browser.press("#refresh").await;
    browser.until_text("#u-minute-used", |text| text == "1 of 3").await;
    browser.press(".timeline a.danger").await;
    browser.press("button.danger").await;
    browser.until_text(".done", |text| text.contains("deleted")).await;
    browser.press(".who button").await;
    browser.until_text("h1", |text| text == "Log in").await;
    browser.close().await;
}

/// The page reflects a new limit, a store that fails, and a logout.
#[tokio::test(flavor = "multi_thread")]
async fn the_bars_follow_changes_outages_and_a_logout() {
    let mut redis = RedisServer::start();
    let house = House::connected_to(&redis).await;
    let browser = Browser::start().await;
    log_in(&browser, &house, OWNER).await;
    browser.open(&house.site.url("/console/consumer?id=abc")).await;
    browser.until_text("#pulse", |text| text.starts_with("Live")).await;
    assert_eq!(browser.text("#u-hour-used").await, "not counted");
    let record = house.record("abc", -1, 1).await;
    browser.until_text("#u-hour-used", |text| text == "0 of 1").await;
    assert_eq!(house.call("abc").await, 200);
    browser.until_text("#u-hour-state", |text| text == "used up").await;

    redis.stop();
    browser.until_text("#u-problem", |text| text.contains("are unavailable")).await;
    redis.restart();
    browser.until_text("#u-hour-used", |text| text == "0 of 1").await;
    assert_eq!(browser.count("#u-problem:not([hidden])").await, 0);
    let content = RecordContent { blocks: true, ..record.content };
    house.records.update(record.id, content, 1, "otto").await.unwrap();
    browser.until_text("#u-hour-state", |text| text == "blocked").await;

    browser.press("#pause").await;
    browser.until_text("#pulse", |text| text == "Paused.").await;
    browser.press("#pause").await;
    browser.client().delete_all_cookies().await.unwrap();
    browser.until_text("#pulse", |text| text.contains("logged out")).await;
    assert_eq!(browser.complaints().await, [""; 0]);
    browser.close().await;
}

/// Fault: if a refresh was in flight when the user paused the page, the page showed "Live" although
/// it stood still.
#[tokio::test(flavor = "multi_thread")]
async fn a_pause_during_a_refresh_stays_a_pause() {
    // The next refresh waits until the test releases it.
    const HOLD: &str = "
        const send = window.fetch;
        window.fetch = async url => {
            window.fetch = send;
            await new Promise(release => { window.release = release; });
            const text = await (await send(url)).text();
            setTimeout(window.refreshed, 0);
            return new Response(text);
        };";
    const RELEASE: &str = "
        return new Promise(done => { window.refreshed = done; window.release(); });";
    let house = House::new().await;
    house.record("abc", 10, 100).await;
    let browser = Browser::start().await;
    log_in(&browser, &house, OWNER).await;
    browser.open(&house.site.url("/console/consumer?id=abc")).await;
    browser.until_text("#pulse", |text| text.starts_with("Live")).await;
    browser.script(HOLD).await;
    while browser.script("return typeof window.release").await != "function" {}
    assert_eq!(house.call("abc").await, 200);
    browser.press("#pause").await;
    browser.script(RELEASE).await;
    assert_eq!(browser.text("#pulse").await, "Paused.");
    assert_eq!(browser.text("#u-hour-used").await, "0 of 100");
    browser.press("#pause").await;
    browser.until_text("#u-hour-used", |text| text == "1 of 100").await;
    assert_eq!(browser.complaints().await, [""; 0]);
    browser.close().await;
}

/// Fault: a form that was left empty by mistake lifted every limit for a year.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_without_limits_is_saved_only_after_confirmation() {
    let house = House::new().await;
    let limits = "2/second, 20/minute, 100/hour, 500/day".parse().unwrap();
    house
        .records
        .tiers()
        .create(TierContent { name: "free".into(), limits }, "otto")
        .await
        .unwrap();
    let consumer = rl_core::Subject::consumer("acme");
    house.records.tiers().set_member(&consumer, Some("free"), 0, "otto").await.unwrap();
    let stored = async || {
        let all = rl_records::RecordQuery::default();
        house.records.list(&all).await.unwrap().records.len()
    };
    let browser = Browser::start().await;
    log_in(&browser, &house, OWNER).await;
    browser.open(&house.site.url("/console/record/new?consumer=acme")).await;
    browser.press("form.sheet .main").await;
    let question = browser.until_text(".conflict", |text| text.contains("Nothing was saved")).await;
    assert!(question.contains("there is no limit in the form"), "{question}");
    assert!(question.contains("it replaces the tier free"), "{question}");
    assert_eq!(browser.script(OBSTACLES).await, serde_json::json!([]));
    browser.picture(&picture("unlimited-light.png"), 1200, false).await;
    assert_eq!(stored().await, 0);
    // Without the confirmation, the form is shown again.
    browser.press("form.sheet .main").await;
    browser.until_text(".conflict", |text| text.contains("Nothing was saved")).await;
    assert_eq!(stored().await, 0);
    browser.press("#unlimited").await;
    browser.press("form.sheet .main").await;
    browser.until_text(".done", |text| text.contains("created")).await;
    assert_eq!(stored().await, 1);

    // Setting a limit needs no confirmation, whereas removing the last limit does.
    browser.open(&house.site.url("/console/record/new?consumer=acme")).await;
    browser.fill("#limits", "5/minute").await;
    browser.press("form.sheet .main").await;
    browser.until_text(".done", |text| text.contains("created")).await;
    let records = house.records.list(&rl_records::RecordQuery::default()).await.unwrap().records;
    let limited = records
        .iter()
        .find(|record| record.content.limits.call_limits().unwrap().numbers()[1] == 5)
        .unwrap();
    let edit = format!("/console/record/edit?record={}", limited.id);
    browser.open(&house.site.url(&edit)).await;
    browser.fill("#limits", "").await;
    browser.press("form.sheet .main").await;
    browser.until_text(".conflict", |text| text.contains("adds nothing to the other")).await;
    assert_eq!(
        house
            .records
            .read(limited.id)
            .await
            .unwrap()
            .unwrap()
            .content
            .limits
            .call_limits()
            .unwrap()
            .numbers()[1],
        5
    );
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_show_the_consequence_for_calls_during_an_outage() {
    let mut redis = RedisServer::start();
    let house = House::connected_to(&redis).await;
    house.record("abc", 5, 100).await;
    let browser = Browser::start().await;
    log_in(&browser, &house, OWNER).await;
    browser.open(&house.site.url("/console/store")).await;
    let text = browser.text("main").await;
    assert!(text.contains("Calls beyond the limits are denied."), "{text}");
    redis.stop();
    browser.open(&house.site.url("/console/store")).await;
    let text = browser.until_text("main", |text| text.contains("unavailable")).await;
    assert!(
        text.contains("calls are allowed without limits, except those of blocked consumers"),
        "{text}"
    );
    assert!(!text.contains("Calls beyond the limits are denied."), "{text}");
    browser.picture(&picture("store-outage-light.png"), 1200, false).await;
    browser.open(&house.site.url("/console/consumer?id=abc")).await;
    let text = browser.until_text("#u-problem", |text| text.contains("are unavailable")).await;
    assert!(text.contains("calls are allowed without limits"), "{text}");
    assert_eq!(text.matches("the store is unavailable").count(), 1, "{text}");
    assert_eq!(house.call("abc").await, 200, "as the page says");
    browser.close().await;
}

/// Only the bars are refreshed. If the rest of the page is out of date, the page says so.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_shows_when_it_is_out_of_date() {
    let house = House::new().await;
    let record = house.record("abc", 10, 100).await;
    let browser = Browser::start().await;
    log_in(&browser, &house, OWNER).await;
    browser.open(&house.site.url("/console/consumer?id=abc")).await;
    browser.until_text("#pulse", |text| text.starts_with("Live")).await;
    for _ in 0..3 {
        house.call("abc").await;
    }
    browser.until_text("#u-hour-used", |text| text == "3 of 100").await;
    assert_eq!(browser.count("#stale[hidden]").await, 1, "calls change nothing below the bars");

    let content = RecordContent { blocks: true, ..record.content };
    house.records.update(record.id, content, 1, "otto").await.unwrap();
    browser.until_text("#stale", |text| text.contains("out of date")).await;
    assert!(!browser.text("#holds ~ p, section:nth-of-type(2) > p").await.contains("Blocked."));
    browser.picture(&picture("out-of-date-light.png"), 1200, false).await;
    browser.press("#stale a").await;
    browser.until_text("section:nth-of-type(2) > p", |text| text.starts_with("Blocked.")).await;
    assert_eq!(browser.count("#stale[hidden]").await, 1);
    browser.close().await;
}

/// A stopped server neither responds nor closes its connections. The page must report that there is
/// no answer.
#[tokio::test(flavor = "multi_thread")]
async fn the_page_notices_a_server_that_hangs() {
    let server = super::server::Server::start(&[]).await;
    let browser = Browser::start().await;
    browser.open(&format!("http://{}/console", server.place)).await;
    browser.fill("#token", OWNER).await;
    browser.press("main button[type=submit]").await;
    browser.until_text("h1", |text| text == "Now").await;
    browser.open(&format!("http://{}/console/consumer?id=abc", server.place)).await;
    browser.until_text("#pulse", |text| text.starts_with("Live")).await;
    server.signal("STOP");
    browser.until_text("#pulse", |text| text.starts_with("No answer")).await;
    server.signal("CONT");
    browser.until_text("#pulse", |text| text.starts_with("Live")).await;
    browser.close().await;
}
