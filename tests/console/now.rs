//! The start page: the subjects that are denied now, at all instances.

use std::sync::Arc;
use std::time::Duration;

use rl_admin::console::ConsoleBuilder;
use rl_core::time::{Clock, ManualClock, SystemClock, Timestamp};
use rl_records::{AuditEvent, AuditQuery, RecordContent, RecordQuery, TierContent};
use rl_tests::web::{Fetch, client, eventually};
use rl_tests::{Browser, RedisServer};

use super::browser::{OBSTACLES, barriers, log_in, picture};
use super::server::Server;
use super::{HOUR, House, OWNER, VIEWER, Visitor};

const PAGE: &str = "/console";
/// The notes of all instances.
const NOTES: &str = "rl:6:default:instances";

/// A time in the past.
const START: Timestamp = Timestamp::from_secs(1_769_947_200);

/// Returns the start page as soon as it contains `text`.
async fn until(visitor: &Visitor<'_>, text: &str) -> String {
    eventually(async || visitor.get(PAGE).await.body.contains(text)).await;
    visitor.get(PAGE).await.body
}

/// Makes calls of a consumer until one is denied.
async fn deny(house: &House, consumer: &str) {
    while house.call(consumer).await == 200 {}
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_on_one_redis_see_the_denials_of_each_other() {
    let redis = RedisServer::start();
    let (one, two) = (House::connected_to(&redis).await, House::connected_to(&redis).await);
    let (at_one, at_two) = (one.log_in(OWNER).await, two.log_in(OWNER).await);
    one.record("seen-at-one", -1, 3).await;
    two.record("seen-at-two", -1, 2).await;
    deny(&one, "seen-at-one").await;
    deny(&two, "seen-at-two").await;

    for visitor in [&at_one, &at_two] {
        until(visitor, ">seen-at-one</a>").await;
        let page = until(visitor, ">seen-at-two</a>").await;
        assert!(page.contains("2 instances together."), "{page}");
        assert!(page.contains("Working, "), "{page}");
    }
    // The instance that knows the records of the consumer also shows the use of its limit.
    let page = at_one.get(PAGE).await.body;
    let row = page.split("<tr").find(|row| row.contains(">seen-at-one</a>")).unwrap();
    assert!(row.contains("3 of 3") && row.contains("hour"), "{row}");
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_texts_among_the_notes_are_ignored() {
    let redis = RedisServer::start();
    let house = House::connected_to(&redis).await;
    let visitor = house.log_in(OWNER).await;
    house.record("abc", -1, 1).await;
    deny(&house, "abc").await;
    let write = async |field: &str, value: &str| {
        let command = format!("HSET {NOTES} {field} {value}");
        redis.query::<i64>(&command).await;
    };
    write("foreign", "<script>alert(1)</script>").await;
    write("late", "9999999999999999{}").await;
    write("damaged", "{\"instance\":\"x\"}").await;
    let page = until(&visitor, ">abc</a>").await;
    assert!(!page.contains("alert(1)") && page.contains("One instance."), "{page}");
    // A reader removes them, also if their time is wrong.
    for field in ["foreign", "late", "damaged"] {
        assert_eq!(redis.query::<i64>(&format!("HEXISTS {NOTES} {field}")).await, 0, "{field}");
    }
    assert_eq!(redis.keys_without_expiry().await, [""; 0]);
    // A key of another type.
    redis.query::<()>(&format!("SET {NOTES} text")).await;
    let answer = visitor.get(PAGE).await;
    assert_eq!(answer.status, 200);
    assert!(answer.body.contains(">abc</a>"), "{}", answer.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_shows_what_is_known_while_redis_is_down() {
    let mut redis = RedisServer::start();
    let (one, two) = (House::connected_to(&redis).await, House::connected_to(&redis).await);
    let at_one = one.log_in(OWNER).await;
    one.record("seen-at-one", -1, 1).await;
    two.record("seen-at-two", -1, 1).await;
    deny(&one, "seen-at-one").await;
    deny(&two, "seen-at-two").await;
    until(&at_one, ">seen-at-two</a>").await;
    redis.stop();
    let answer = at_one.get(PAGE).await;
    assert_eq!(answer.status, 200);
    for text in [
        "The store is unavailable",
        ">Down<",
        "requests are allowed without limits",
        "Other instances are shown as of",
        ">seen-at-one</a>",
        ">seen-at-two</a>",
    ] {
        assert!(answer.body.contains(text), "{text}: {}", answer.body);
    }
    redis.restart();
    until(&at_one, "Working, ").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_outside_the_service_shows_the_denials_of_the_instances() {
    let redis = RedisServer::start();
    let server = Server::start(&[("RL_REDIS_URL", &redis.url())]).await;
    let login = server.log_in(&format!("http://{}", server.place), "/console/login").await;
    let cookie = login.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    let page = async || {
        let request = client().get(format!("http://{}{PAGE}", server.place));
        request.header("cookie", &cookie).fetch().await.body
    };
    let empty = page().await;
    assert!(empty.contains("no instance of a service has published its denials"), "{empty}");
    assert!(empty.contains("Working, "), "{empty}");
    let house = House::connected_to(&redis).await;
    house.record("abc", -1, 1).await;
    deny(&house, "abc").await;
    eventually(async || page().await.contains("denied-now")).await;
    let full = page().await;
    assert!(full.contains("One instance."), "{full}");
    // The token may not see ids, and this server does not know the limits.
    assert!(full.contains(">consumer</span>") && !full.contains(">abc<"), "{full}");
}

#[tokio::test]
async fn the_page_of_a_store_in_memory_shows_this_process() {
    let house = House::new().await;
    let visitor = house.log_in(OWNER).await;
    let page = visitor.get(PAGE).await.body;
    assert!(page.contains("No subject was denied in the last minute."), "{page}");
    assert!(page.contains("This process alone"), "{page}");
    for consumer in ["abc", "abd", "xyz"] {
        house.record(consumer, -1, 2).await;
    }
    deny(&house, "abc").await;
    // The counts are estimates.
    for _ in 0..100 {
        house.call("xyz").await;
    }
    let rows = async |query: &str| {
        let page = visitor.get(&format!("{PAGE}?{query}")).await.body;
        let ids = page.split("<th scope=\"row\"").skip(1);
        let ids = ids.map(|row| row.split("</a>").next().unwrap().rsplit('>').next().unwrap());
        ids.map(ToOwned::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(rows("").await, ["xyz", "abc"], "the most denials first");
    assert_eq!(rows("sort=subject").await, ["abc", "xyz"]);
    assert_eq!(rows("text=XY").await, ["xyz"]);
    assert_eq!(rows("realm=consumer&rule=").await.len(), 2);
    assert_eq!(rows("realm=ip").await, [""; 0]);
    assert_eq!(rows("rule=unknown").await, [""; 0]);
    let part = visitor.get("/console/now?text=abc").await.body;
    assert!(part.starts_with("<div id=\"board\"") && !part.contains(">xyz<"), "{part}");
}

#[tokio::test]
async fn ids_and_actions_are_shown_only_to_visitors_with_the_roles() {
    let house = House::new().await;
    house.record("abc-of-shop", -1, 1).await;
    deny(&house, "abc-of-shop").await;
    let page = house.log_in(VIEWER).await.get(PAGE).await.body;
    let board = page.split("<main").nth(1).unwrap();
    assert!(!board.contains("abc-of-shop") && board.contains("CanSeeSubjectIds"), "{board}");
    for control in ["method=\"post\"", "/console/block", "/console/raise", "/console/explain"] {
        assert!(!board.contains(control), "{control}: {board}");
    }
    let page = house.log_in(OWNER).await.get(PAGE).await.body;
    for control in ["abc-of-shop", "/console/reset", "/console/block", "/console/raise"] {
        assert!(page.contains(control), "{control}: {page}");
    }
}

#[tokio::test]
async fn a_denied_consumer_is_reset_raised_blocked_and_unblocked_from_the_page() {
    let house = House::new().await;
    house.record("abc", -1, 2).await;
    let owner = house.log_in(OWNER).await;
    deny(&house, "abc").await;
    let (id, back) = (("id", "abc"), ("back", "now"));
    let done = owner.post("/console/reset", &[("realm", "consumer"), id, back]).await;
    assert_eq!(done.header("location"), Some("/console?done=reset"));
    assert_eq!([house.call("abc").await, house.call("abc").await], [200, 200]);
    assert_eq!(house.call("abc").await, 429);

    let page = owner.get("/console/raise?realm=consumer&id=abc&back=now").await.body;
    assert!(page.contains("2 times: ") && page.contains("4/hour"), "{page}");
    let raise = [id, back, ("factor", "3"), ("hours", "1")];
    let done = owner.post("/console/raise", &raise).await;
    assert_eq!(done.header("location"), Some("/console?done=raised"), "{}", done.body);
    let usage = house.limiter.usage(&rl_core::Subject::consumer("abc")).await.unwrap();
    assert_eq!(usage.limits().map(|limit| limit.max()).collect::<Vec<_>>(), [6]);
    assert_eq!(house.call("abc").await, 200);
    let refused = owner.post("/console/raise", &[id, ("factor", "9"), ("hours", "1")]).await;
    assert_eq!(refused.status, 404);

    let wrong = owner.post("/console/block", &[id, ("end", "until"), ("until", "yesterday")]).await;
    assert_eq!(wrong.status, 422);
    for text in ["id=\"reason-problem\"", "id=\"until-problem\""] {
        assert!(wrong.body.contains(text), "{text}: {}", wrong.body);
    }
    let reason = "Sends <b>too much</b>";
    let block = [id, back, ("reason", reason), ("end", "day")];
    let done = owner.post("/console/block", &block).await;
    assert_eq!(done.header("location"), Some("/console?done=blocked"), "{}", done.body);
    assert_eq!(house.call("abc").await, 429);
    let page = owner.get("/console/consumer?id=abc").await.body;
    let banner = page.split("class=\"banner\"").nth(1).unwrap();
    for text in ["Blocked until ", "Sends &lt;b&gt;too much", "olivia", ">Unblock<"] {
        assert!(banner.contains(text), "{text}: {page}");
    }
    let query = AuditQuery { consumer: Some("abc".into()), ..AuditQuery::default() };
    let entries = house.records.audit_log().entries(&query).await.unwrap();
    let given =
        AuditEvent::Reason { realm: "consumer".into(), id: "abc".into(), reason: reason.into() };
    assert_eq!((&entries[0].event, &*entries[0].by), (&given, "olivia"));

    let done = owner.post("/console/unblock", &[id]).await;
    assert_eq!(done.header("location"), Some("/console/consumer?id=abc&done=unblocked"));
    assert_eq!(house.call("abc").await, 200);
    let page = owner.get("/console/consumer?id=abc").await.body;
    assert!(!page.contains("class=\"banner\""), "{page}");
    let forever = [id, ("reason", "once more"), ("end", "never")];
    assert_eq!(owner.post("/console/block", &forever).await.status, 303);
    let page = owner.get("/console/consumer?id=abc").await.body;
    assert!(page.contains("Blocked for ever.") && page.contains("once more"), "{page}");
}

/// Fault: a raised consumer kept a copy of the limits of its tier, so a change of the tier had no
/// effect on it.
#[tokio::test]
async fn a_grant_raises_the_limits_of_a_tier_and_follows_its_changes() {
    let house = House::new().await;
    let owner = house.log_in(OWNER).await;
    let gold = [("name", "gold"), ("limits", "2/hour")];
    assert_eq!(owner.post("/console/tier/new", &gold).await.status, 303);
    let member = [("id", "abc"), ("tier", "gold"), ("revision", "0")];
    assert_eq!(owner.post("/console/consumer/tier", &member).await.status, 303);
    let raise = [("id", "abc"), ("factor", "2"), ("hours", "1")];
    assert_eq!(owner.post("/console/raise", &raise).await.status, 303);
    let records = house.records.list(&RecordQuery::default()).await.unwrap().records;
    assert_eq!(records[0].content.limits.to_string(), "2/hour");
    let limits = async || {
        let now = house.limiter.usage(&rl_core::Subject::consumer("abc")).await.unwrap();
        now.limits().map(|limit| limit.limit().to_string()).collect::<Vec<_>>()
    };
    assert_eq!(limits().await, ["4/hour"]);
    let tier = house.records.tiers().read("gold").await.unwrap().unwrap();
    let larger = TierContent { limits: "100/hour".parse().unwrap(), ..tier.content };
    house.records.tiers().update(larger, tier.revision, "alice").await.unwrap();
    assert_eq!(limits().await, ["102/hour"]);
    let page = owner.get("/console/consumer?id=abc").await.body;
    for text in [
        "grants more",
        "+ 2/hour",
        "Apart from grants, no own limits apply now. The limits are those of the tier <strong>gold</strong>.",
    ] {
        assert!(page.contains(text), "{text}: {page}");
    }
    let unknown = owner.post("/console/raise", &[("id", "x"), ("factor", "2"), ("hours", "1")]);
    assert_eq!(unknown.await.status, 422, "it has no limit");
}

#[tokio::test]
async fn typed_limits_are_granted_until_the_end_of_the_month_or_a_given_time() {
    let house = House::new().await;
    let owner = house.log_in(OWNER).await;
    let typed = [("id", "abc"), ("factor", "typed")];
    let raise =
        async |more: &[(&str, &str)]| owner.post("/console/raise", &[&typed, more].concat()).await;
    for (limits, hours, until, problem) in [
        ("5000/fortnight", "month", "", "limits-problem"),
        ("", "month", "", "limits-problem"),
        ("0/month", "month", "", "limits-problem"),
        ("5000/month", "until", "", "until-problem"),
        ("5000/month", "until", "2020-01-01T00:00", "until-problem"),
        ("5000/month", "month", "9998-01-02T03:04", "until-problem"),
    ] {
        let refused = raise(&[("limits", limits), ("hours", hours), ("until", until)]).await;
        assert_eq!(refused.status, 422, "{limits} {hours} {until}");
        assert!(refused.body.contains(&format!("id=\"{problem}\"")), "{problem}: {}", refused.body);
    }
    assert_eq!(raise(&[("limits", "5000/month"), ("hours", "month")]).await.status, 303);
    let until = [("limits", "7/day"), ("hours", "until"), ("until", "9998-01-02T03:04")];
    assert_eq!(raise(&until).await.status, 303);
    let records = house.records.list(&RecordQuery::default()).await.unwrap().records;
    let ends = records.iter().map(|record| {
        assert!(record.content.grants);
        (record.content.limits.to_string(), record.content.to_date)
    });
    for (limits, end) in ends {
        let page = owner.get("/console/consumer?id=abc").await.body;
        assert!(page.contains(&format!("+ {limits}")), "{page}");
        match &*limits {
            // The last microsecond of a day. The first of a month follows.
            "5000/month" => assert_eq!((end.as_micros() + 1) % (24 * HOUR), 0),
            _ => assert_eq!(end, Timestamp::from_secs(253_339_326_240)),
        }
    }
    let address = [("realm", "ip"), ("id", "192.0.2.7"), ("factor", "typed"), ("limits", "5/hour")];
    let raised = owner.post("/console/raise", &[&address[..], &[("hours", "1")]].concat()).await;
    assert_eq!(raised.status, 303, "{}", raised.body);
}

#[tokio::test]
async fn a_denial_is_explained() {
    let house = House::new().await;
    house.record("abc", -1, 1).await;
    let owner = house.log_in(OWNER).await;
    let page = owner.get("/console/explain?realm=consumer&id=abc").await.body;
    assert!(page.contains(">allowed<"), "{page}");
    deny(&house, "abc").await;
    let page = owner.get("/console/explain?realm=consumer&id=abc&path=/api&method=GET").await.body;
    assert!(page.contains(">denied<") && page.contains("1 of 1 used"), "{page}");
    let wrong = owner.get("/console/explain?realm=consumer&id=abc&path=api").await;
    assert!(wrong.status == 200 && wrong.body.contains("role=\"alert\""), "{}", wrong.body);
    for subject in ["realm=NO&id=x", "realm=user&id=x&digest=on", "realm=ip&id=a%00b"] {
        for page in ["explain", "subject", "usage"] {
            let answer = owner.get(&format!("/console/{page}?{subject}")).await;
            assert_eq!(answer.status, 400, "{page} {subject}");
        }
    }
}

#[tokio::test]
async fn every_subject_has_a_page() {
    let house = House::new().await;
    let owner = house.log_in(OWNER).await;
    let consumer = owner.get("/console/subject?realm=consumer&id=abc").await;
    assert_eq!(consumer.header("location"), Some("/console/consumer?id=abc"));
    let hash = "ab".repeat(16);
    for subject in
        ["realm=ip&id=192.0.2.7", "realm=global&id=", &format!("realm=user&id={hash}&digest=on")]
    {
        let page = owner.get(&format!("/console/subject?{subject}")).await;
        assert_eq!(page.status, 200, "{subject}: {}", page.body);
        assert!(page.body.contains("id=\"usage\""), "{}", page.body);
        let viewer = house.log_in(VIEWER).await;
        let page = viewer.get(&format!("/console/subject?{subject}")).await;
        assert_eq!(page.status, 403, "{subject}");
    }
}

/// Ten minutes of denials at two instances, in wide and narrow windows of both schemes.
#[tokio::test(flavor = "multi_thread")]
async fn the_page_draws_the_denials_of_ten_minutes() {
    let redis = RedisServer::start();
    let clock = Arc::new(ManualClock::at(SystemClock.now()));
    let house = House::with(Some(&redis), clock.clone(), ConsoleBuilder::without_tls).await;
    let other = House::connected_to(&redis).await;
    let long = format!("payments-{}", "of-a-very-long-name-".repeat(8));
    for (consumer, per_hour) in
        [("acme-mobile", 25), ("billing-batch", 90), ("checkout-web", 9_000), (&*long, 5)]
    {
        house.record(consumer, -1, per_hour).await;
        other.record(consumer, -1, per_hour).await;
    }
    let blocked = RecordContent::block("scraper", START, SystemClock.now().plus_micros(8 * HOUR));
    house.records.create(blocked, "olivia").await.unwrap();
    let visitor = house.log_in(OWNER).await;
    for step in 0_u64..=60 {
        let wave = (step % 20).min(20 - step % 20);
        for (consumer, calls) in [
            ("acme-mobile", if step > 12 { wave } else { 0 }),
            ("billing-batch", 6),
            ("checkout-web", 12),
            (&*long, u64::from(step % 7 == 4)),
            ("scraper", u64::from(step > 35) * (2 + step % 3)),
        ] {
            for _ in 0..calls {
                house.call(consumer).await;
            }
        }
        visitor.get("/console/now").await;
        if step < 60 {
            clock.advance(Duration::from_secs(10));
        }
    }
    let page = visitor.get(PAGE).await.body;
    let row = |id: &str| page.split("<tr").find(|row| row.contains(&format!(">{id}</a>"))).unwrap();
    for (consumer, text) in
        [("acme-mobile", "25 of 25"), ("billing-batch", "90 of 90"), (&long, "5 of 5")]
    {
        assert!(row(consumer).contains(text), "{consumer}: {}", row(consumer));
    }
    let scraper = row("scraper");
    assert!(scraper.contains(">blocked<") && scraper.contains(">Unblock<"), "{scraper}");
    assert!(!scraper.contains("/block?") && !scraper.contains("/raise?"), "{scraper}");
    assert!(!page.contains(">checkout-web<"), "it was not denied: {page}");
    // 15 of 60 steps had no denial: until then its limit allowed six calls in each.
    let zeros = row("billing-batch").matches("V1000H").count();
    assert!((10..=20).contains(&zeros), "{zeros}: {}", row("billing-batch"));

    let browser = Browser::start().await;
    log_in(&browser, &house, OWNER).await;
    for (name, width, is_dark) in [
        ("now-light.png", 1200, false),
        ("now-dark.png", 1200, true),
        ("now-narrow.png", 390, false),
        ("now-narrow-dark.png", 390, true),
    ] {
        browser.picture(&picture(name), width, is_dark).await;
        assert_eq!(barriers(&browser, width, is_dark).await, [""; 0], "{name}");
    }
    for width in [1200, 800, 390] {
        let size = serde_json::json!({ "width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600 });
        browser.tool("Emulation.setDeviceMetricsOverride", size).await;
        let fits =
            browser.script("return document.documentElement.scrollWidth <= innerWidth").await;
        assert_eq!(fits, true, "nothing is cut off at {width}");
    }
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_is_live_in_a_browser_and_can_be_paused() {
    let redis = RedisServer::start();
    let (house, other) = (House::connected_to(&redis).await, House::connected_to(&redis).await);
    for (consumer, per_hour) in [("acme-mobile", 40), ("billing-batch", 6), ("checkout-web", 900)] {
        house.record(consumer, -1, per_hour).await;
        other.record(consumer, -1, per_hour).await;
    }
    for _ in 0..120 {
        house.call("checkout-web").await;
    }
    let browser = Browser::start().await;
    log_in(&browser, &house, OWNER).await;
    browser.until_text("#pulse", |text| text.starts_with("Live")).await;
    assert!(browser.text("#board").await.contains("No subject was denied"));
    browser.picture(&picture("now-quiet-light.png"), 1200, false).await;
    for _ in 0..70 {
        house.call("acme-mobile").await;
        other.call("billing-batch").await;
    }
    browser.until_text("#board", |text| text.contains("acme-mobile")).await;
    browser.until_text("#board", |text| text.contains("billing-batch")).await;
    assert_eq!(browser.script(OBSTACLES).await, serde_json::json!([]));
    assert_eq!(barriers(&browser, 1200, false).await, [""; 0]);
    // The focus stays on a control while the board is exchanged.
    let focus = "const one = document.querySelector('#board .actions a'); one.dataset.old = 'yes';
        one.focus(); return one.id;";
    let focused = browser.script(focus).await;
    let exchanged = "return document.querySelectorAll('[data-old]').length === 0";
    eventually(async || browser.script(exchanged).await == true).await;
    assert_eq!(browser.script("return document.activeElement.id").await, focused);

    browser.press("#pause").await;
    browser.until_text("#pulse", |text| text == "Paused.").await;
    browser.press(".actions a[href*='/block']").await;
    browser.until_text("h1", |text| text.starts_with("Block consumer ")).await;
    browser.picture(&picture("block-light.png"), 1200, false).await;
    assert_eq!(barriers(&browser, 1200, false).await, [""; 0]);
    browser.fill("#reason", "Repeats every call five times").await;
    browser.press("form.sheet .danger").await;
    browser.until_text(".done", |text| text.contains("block was set")).await;
    browser.press("tbody th a").await;
    browser.until_text(".banner", |text| text.contains("Repeats every call")).await;
    browser.picture(&picture("blocked-light.png"), 1200, false).await;
    browser.picture(&picture("blocked-dark.png"), 1200, true).await;
    browser.picture(&picture("blocked-narrow.png"), 390, false).await;
    assert_eq!(barriers(&browser, 390, true).await, [""; 0]);
    for page in ["raise?realm=consumer&id=acme-mobile", "explain?realm=consumer&id=acme-mobile"] {
        browser.open(&house.site.url(&format!("/console/{page}"))).await;
        let name = page.split('?').next().unwrap();
        browser.picture(&picture(&format!("{name}-light.png")), 1200, false).await;
        assert_eq!(barriers(&browser, 1200, true).await, [""; 0], "{page}");
    }
    browser
        .tool("Emulation.setScriptExecutionDisabled", serde_json::json!({ "value": true }))
        .await;
    browser.open(&house.site.url(PAGE)).await;
    assert!(browser.text("#board").await.contains("acme-mobile"));
    browser.press("#refresh").await;
    browser.until_text("h1", |text| text == "Now").await;
    assert_eq!(browser.complaints().await, [""; 0]);
    browser.close().await;
}
