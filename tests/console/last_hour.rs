//! The page with the decisions, the denials and the store of the last hour.

use std::sync::Arc;
use std::time::Duration;

use rl_admin::console::ConsoleBuilder;
use rl_core::time::{ManualClock, Timestamp};
use rl_tests::{Browser, RedisServer};

use super::browser::{log_in, picture};
use super::{House, OWNER, VIEWER};

const PAGE: &str = "/console/last-hour";

/// 13:34 on a Monday.
const START: Timestamp = Timestamp::from_secs(1_795_440_840);

/// A service whose console has a clock that the test moves.
async fn house(redis: Option<&RedisServer>) -> (House, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::at(START));
    (House::with(redis, clock.clone(), ConsoleBuilder::without_tls).await, clock)
}

/// Returns the text of the row that begins with `name`, without tags.
fn row(page: &str, name: &str) -> String {
    let rows = page.split("<tr").map(|row| row.split("</tr>").next().unwrap_or_default());
    let texts = rows.map(|row| {
        let parts = row.split('<').skip(1).filter_map(|part| Some(part.split_once('>')?.1));
        parts.filter(|text| !text.is_empty()).collect::<Vec<_>>().join("|")
    });
    let found = texts.into_iter().find(|text| text.starts_with(name));
    found.unwrap_or_else(|| panic!("no row {name}: {page}"))
}

#[tokio::test]
async fn the_page_adds_up_the_decisions_of_an_hour_and_drops_older_ones() {
    let (house, clock) = house(None).await;
    house.record("abc", -1, 3).await;
    let visitor = house.log_in(OWNER).await;
    let empty = visitor.get(PAGE).await;
    assert_eq!(empty.status, 200);
    for text in
        ["No decisions in this time.", "No limit has denied a request", "2026-11-23 13:34:00 UTC"]
    {
        assert!(empty.body.contains(text), "{text}: {}", empty.body);
    }

    for expected in [200, 200, 200, 429, 429] {
        assert_eq!(house.call("abc").await, expected);
    }
    clock.advance(Duration::from_secs(10));
    let page = visitor.get(PAGE).await.body;
    assert_eq!(row(&page, "Allowed"), "Allowed|3|60 %|0.3");
    assert_eq!(row(&page, "Denied by limits"), "Denied by limits|2|40 %|0.2");
    assert!(row(&page, "hour").starts_with("hour|"), "{page}");
    assert!(page.contains("when this process was started"), "{page}");
    assert!(row(&page, "consumer").contains("|abc|"), "{page}");

    // An hour passes. The requests in between keep the session alive, which ends after 30 minutes
    // without a request.
    for _ in 0..6 {
        clock.advance(Duration::from_secs(10 * 60));
        visitor.get(PAGE).await;
    }
    let page = visitor.get(PAGE).await.body;
    assert!(page.contains("No decisions in this time."), "{page}");
    assert!(!page.contains("when this process was started"), "{page}");
}

#[tokio::test]
async fn the_page_says_that_the_counts_begin_again_because_the_clock_was_set_back() {
    let (house, clock) = house(None).await;
    let visitor = house.log_in(OWNER).await;
    clock.advance(Duration::from_secs(60));
    visitor.get(PAGE).await;
    clock.set(START);
    let page = visitor.get(PAGE).await.body;
    assert!(page.contains("13:34:00 UTC, when the clock was set back."), "{page}");
    assert!(!page.contains("when this process was started"), "{page}");
}

#[tokio::test]
async fn ids_are_hashed_for_visitors_without_the_role() {
    let (house, clock) = house(None).await;
    house.record("abc-of-shop", -1, 1).await;
    let visitor = house.log_in(VIEWER).await;
    for expected in [200, 429] {
        assert_eq!(house.call("abc-of-shop").await, expected);
    }
    clock.advance(Duration::from_secs(10));
    let page = visitor.get(PAGE).await.body;
    assert!(!page.contains("abc-of-shop"), "{page}");
    assert!(page.contains("CanSeeSubjectIds") && page.contains("consumer"), "{page}");
    let page = house.log_in(OWNER).await.get(PAGE).await.body;
    assert!(page.contains("abc-of-shop") && !page.contains("CanSeeSubjectIds"), "{page}");
}

#[tokio::test]
async fn the_page_requires_a_session_and_the_roles_of_every_page() {
    let house = House::new().await;
    assert_eq!(house.site.get(PAGE).send().await.unwrap().status(), 303);
    let answer =
        house.post_form("/console/login", None, &[("token", "a token that may do nothing")]);
    let answer = answer.await;
    let cookie = answer.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    let page = house.site.get(PAGE).header("cookie", cookie).send().await.unwrap();
    assert_eq!(page.status(), 403);
}

/// The page shows a real outage of Redis. It fits into wide and narrow windows, and needs no
/// scripts.
#[tokio::test(flavor = "multi_thread")]
async fn an_outage_is_drawn_on_the_page_in_a_browser() {
    let mut redis = RedisServer::start();
    let (house, clock) = house(Some(&redis)).await;
    for (consumer, per_hour) in
        [("acme-mobile", 150), ("billing-batch", 400), ("checkout-web", 20_000)]
    {
        house.record(consumer, -1, per_hour).await;
    }
    let visitor = house.log_in(OWNER).await;
    for step in 0_u64..240 {
        match step {
            120 => redis.stop(),
            140 => redis.restart(),
            _ => {}
        }
        let wave = (step % 60).min(60 - step % 60) / 10;
        for _ in 0..=wave {
            house.call("checkout-web").await;
        }
        if step % 3 == 0 {
            house.call("acme-mobile").await;
        }
        if (60..90).contains(&step) {
            for _ in 0..6 {
                house.call("acme-mobile").await;
            }
        }
        house.call("billing-batch").await;
        clock.advance(Duration::from_secs(10));
        visitor.get(PAGE).await;
    }
    let report = visitor.get(PAGE).await.body;
    assert!(report.contains("class=\"outage\""), "the breaker was open: {report}");
    assert!(report.contains("the store was not called"), "{report}");

    let browser = Browser::start().await;
    log_in(&browser, &house, OWNER).await;
    browser.press("nav li:nth-child(10) a").await;
    browser.until_text("h1", |text| text == "Last hour").await;
    assert!(browser.count("section svg path.curve").await >= 5);
    browser.picture(&picture("last-hour-light.png"), 1200, false).await;
    browser.picture(&picture("last-hour-dark.png"), 1200, true).await;
    browser.picture(&picture("last-hour-narrow.png"), 390, false).await;
    for width in [1200, 390] {
        let size = serde_json::json!({ "width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600 });
        browser.tool("Emulation.setDeviceMetricsOverride", size).await;
        let fits =
            browser.script("return document.documentElement.scrollWidth <= innerWidth").await;
        assert_eq!(fits, true, "nothing is cut off at {width}");
    }
    browser
        .tool("Emulation.setScriptExecutionDisabled", serde_json::json!({ "value": true }))
        .await;
    browser.open(&house.site.url(PAGE)).await;
    assert!(browser.text("#decisions").await.contains("Decisions per second"));
    assert_eq!(browser.complaints().await, [""; 0]);
    browser.close().await;
}
