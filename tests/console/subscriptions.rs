//! The pages of subscriptions.

use rl_core::time::{Clock, SystemClock, Timestamp};
use rl_records::{
    Author, HistoryQuery, Limits, Subscription, SubscriptionContent, SubscriptionQuery,
    SubscriptionStatus, TierContent,
};
use rl_tests::Browser;

use super::browser::{barriers, log_in, picture};
use super::{House, OWNER, OWNER_OF_SHOP, Role, VIEWER, Visitor, field_of, token_of};

/// Creates the tiers `gold` and `silver`.
async fn house() -> House {
    let house = House::new().await;
    for (name, limits) in [("gold", "5/minute"), ("silver", "2/minute")] {
        let limits: Limits = limits.parse().unwrap();
        let tier = TierContent { name: name.into(), limits };
        house.records.tiers().create(tier, "olivia").await.unwrap();
    }
    house
}

async fn subscribe(house: &House, consumer: &str, tier: &str) -> Subscription {
    let content = SubscriptionContent::new(consumer, tier, SystemClock.now());
    house.records.subscriptions().create(content, "olivia").await.unwrap()
}

/// Returns the consumers in the rows of the list, sorted.
fn consumers(page: &str) -> Vec<&str> {
    let rows = page.split("<th scope=\"row\">").skip(1);
    let mut ids: Vec<_> =
        rows.map(|row| row.split("</a>").next().unwrap().rsplit('>').next().unwrap()).collect();
    ids.sort_unstable();
    ids
}

#[tokio::test]
async fn subscriptions_are_listed_by_consumer_product_and_status() {
    let house = house().await;
    let owner = house.log_in(OWNER).await;
    let empty = owner.get("/console/subscriptions").await.body;
    assert!(empty.contains("There is no subscription."), "{empty}");
    for (consumer, tier) in [("abc", "gold"), ("abc", "silver"), ("abd", "gold"), ("xyz", "silver")]
    {
        subscribe(&house, consumer, tier).await;
    }
    let active = subscribe(&house, "<b>", "gold").await;
    let status = SubscriptionStatus::Active;
    let subscriptions = house.records.subscriptions();
    subscriptions.set_status(active.id, status, 1, Author::new("billing")).await.unwrap();
    for (query, expected) in [
        ("", &["&lt;b&gt;", "abc", "abc", "abd", "xyz"][..]),
        ("consumer=abc", &["abc", "abc"]),
        ("tier=gold", &["&lt;b&gt;", "abc", "abd"]),
        ("status=active", &["&lt;b&gt;"]),
        ("status=requested&tier=gold", &["abc", "abd"]),
        ("consumer=x", &[]),
    ] {
        let page = owner.get(&format!("/console/subscriptions?{query}")).await;
        assert_eq!(consumers(&page.body), expected, "{query}");
    }
    let page = owner.get("/console/subscriptions?status=past_due&tier=gold").await.body;
    assert!(page.contains("No subscription matches."), "{page}");
    assert!(page.contains("<option value=\"past_due\" selected>past due</option>"), "{page}");
    assert!(page.contains("<option value=\"gold\" selected>"), "{page}");
}

#[tokio::test]
async fn pages_of_subscriptions_lead_both_ways_and_keep_the_filter() {
    let house = house().await;
    let viewer = house.log_in(VIEWER).await;
    for number in 0..120 {
        subscribe(&house, &format!("consumer-{number:03}"), "gold").await;
    }
    subscribe(&house, "other", "silver").await;
    let to = |page: &str, rel: &str| {
        let link = page.split(&format!("<a rel=\"{rel}\" href=\"")).nth(1)?;
        Some(link.split('"').next()?.replace("&amp;", "&"))
    };
    let mut path = "/console/subscriptions?tier=gold".to_owned();
    let (mut pages, mut seen) = (Vec::new(), Vec::new());
    loop {
        let page = viewer.get(&path).await.body;
        seen.extend(consumers(&page).into_iter().map(ToOwned::to_owned));
        let next = to(&page, "next");
        pages.push(page);
        let Some(next) = next else { break };
        path = next;
    }
    seen.sort_unstable();
    seen.dedup();
    assert_eq!((pages.len(), seen.len()), (3, 120));
    assert!(!seen.contains(&"other".to_owned()));
    assert_eq!(to(&pages[0], "prev"), None);
    for (page, following) in pages.iter().zip(&pages[1..]) {
        let back = viewer.get(&to(following, "prev").unwrap()).await.body;
        assert_eq!(consumers(&back), consumers(page));
    }
}

#[tokio::test]
async fn a_subscription_is_added_and_its_status_changed_by_forms_alone() {
    let house = house().await;
    let owner = house.log_in(OWNER).await;
    let page = owner.get("/console/subscription/new?consumer=abc").await.body;
    assert_eq!(field_of(&page, "consumer_id"), "abc");
    let typed = |changes: &[(&'static str, &'static str)]| {
        let mut fields = vec![
            ("consumer_id", "abc"),
            ("tier", "gold"),
            ("status", "active"),
            ("from_date", "2026-02-01T12:00"),
            ("to_date", "2099-02-01T12:59:59"),
        ];
        for (name, value) in changes {
            fields.retain(|(known, _)| known != name);
            fields.push((name, value));
        }
        fields
    };
    for (field, text) in [
        ("consumer_id", ""),
        ("tier", "bronze"),
        ("status", "cancelled"),
        ("from_date", "soon"),
        ("to_date", "late"),
        ("from_date", "2100-01-01T00:00"),
    ] {
        let rejected = owner.post("/console/subscription/new", &typed(&[(field, text)])).await;
        assert_eq!(rejected.status, 422, "{field} {text}");
        assert!(rejected.body.contains(&format!("id=\"{field}-problem\"")), "{}", rejected.body);
    }
    let preview = owner.post("/console/subscription/new", &typed(&[("preview", "on")])).await;
    let words = "from <strong>no limit</strong> to <strong>5/minute</strong>";
    assert!(preview.status == 200 && preview.body.contains(words), "{}", preview.body);
    let all = SubscriptionQuery::default();
    let stored = async || house.records.subscriptions().list(&all).await.unwrap().subscriptions;
    assert!(stored().await.is_empty(), "nothing was saved yet");

    let done = owner.post("/console/subscription/new", &typed(&[])).await;
    let to = "/console/subscriptions?consumer=abc&done=subscription-created";
    assert_eq!((done.status, done.header("location")), (303, Some(to)), "{}", done.body);
    let created = stored().await.pop().unwrap();
    assert_eq!(created.content.to_date, Some(Timestamp::from_micros(4_073_633_999_999_999)));
    assert_eq!((&*created.created_by, created.content.status.as_str()), ("olivia", "active"));
    let mut answers = Vec::new();
    for _ in 0..6 {
        answers.push(house.call("abc").await);
    }
    assert_eq!(answers, [200, 200, 200, 200, 200, 429], "the limits of the product apply");

    let id = created.id.to_string();
    let set = async |revision: &str, status: &str| {
        let shown = ("shown", "status=active&tier=gold&x=y");
        let fields = [("subscription", &*id), ("revision", revision), ("status", status), shown];
        owner.post("/console/subscription/status", &fields).await
    };
    let done = set("1", "suspended").await;
    let to = "/console/subscriptions?tier=gold&status=active&done=subscription-updated";
    assert_eq!(done.header("location"), Some(to), "{}", done.body);
    assert_eq!(house.call("abc").await, 200);
    assert_eq!(set("1", "active").await.status, 409, "another change came first");
    assert_eq!(set("2", "past_due").await.status, 409, "not after suspended");
    let page = owner.get("/console/subscriptions").await.body;
    assert!(page.contains(">suspended<") && page.contains(">Activate<"), "{page}");
    assert!(!page.contains(">Suspend<"), "{page}");
    assert_eq!(set("2", "cancelled").await.status, 303);
    let page = owner.get("/console/subscriptions").await.body;
    assert!(!page.contains("/subscription/status"), "cancelled is final: {page}");
    let history = HistoryQuery { owner: Some("abc".into()), ..HistoryQuery::default() };
    let history = house.records.subscriptions().history(&history).await.unwrap();
    assert!(history.len() == 3 && history.iter().all(|change| change.by == "olivia"));
}

#[tokio::test]
async fn subscriptions_are_shown_and_changed_only_with_the_roles_of_the_api() {
    let house = house().await;
    let gold = subscribe(&house, "abc", "gold").await;
    let own = subscribe(&house, "shop", "gold").await;
    let set = async |visitor: &Visitor<'_>, of: &Subscription| {
        let id = of.id.to_string();
        let fields = [("subscription", &*id), ("revision", "1"), ("status", "active")];
        visitor.post("/console/subscription/status", &fields).await.status
    };
    let viewer = house.log_in(VIEWER).await;
    let page = viewer.get("/console/subscriptions").await.body;
    assert!(page.contains(">abc<") && !page.contains("method=\"post\" action=\"/console/sub"));
    assert!(!page.contains("/subscription/new"), "{page}");
    assert_eq!(viewer.get("/console/subscription/new").await.status, 403);
    assert_eq!(set(&viewer, &gold).await, 403);
    let creator = house.log_in(&token_of(Role::CanCreateRateLimits)).await;
    assert_eq!(creator.get("/console/subscription/new").await.status, 200);
    assert_eq!(set(&creator, &gold).await, 403);

    let shop = house.log_in(OWNER_OF_SHOP).await;
    let page = shop.get("/console/subscriptions").await.body;
    assert_eq!(consumers(&page), ["shop"]);
    assert_eq!(shop.get("/console/subscriptions?consumer=abc").await.status, 404);
    let from = ("from_date", "2026-02-01T12:00");
    let new = [("consumer_id", "abc"), ("tier", "gold"), ("status", "active"), from];
    assert_eq!(shop.post("/console/subscription/new", &new).await.status, 403);
    assert_eq!(set(&shop, &gold).await, 404);
    assert_eq!(set(&shop, &own).await, 303);
}

/// The buttons work without scripts too.
#[tokio::test(flavor = "multi_thread")]
async fn subscriptions_are_managed_in_a_browser() {
    let house = house().await;
    subscribe(&house, "acme-mobile", "gold").await;
    subscribe(&house, "billing-batch", "silver").await;
    let browser = Browser::start().await;
    log_in(&browser, &house, OWNER).await;
    for has_scripts in [true, false] {
        let off = serde_json::json!({ "value": !has_scripts });
        browser.tool("Emulation.setScriptExecutionDisabled", off).await;
        browser.open(&house.site.url("/console/subscriptions")).await;
        browser.press(".head a.button").await;
        browser.until_text("h1", |text| text == "Add a subscription").await;
        browser.fill("#consumer_id", "checkout-web").await;
        browser.press("form.sheet .main").await;
        browser.until_text(".done", |text| text == "The subscription was added.").await;
        browser.press("td.actions form button").await;
        browser.until_text(".done", |text| text.starts_with("The status")).await;
    }
    browser
        .tool("Emulation.setScriptExecutionDisabled", serde_json::json!({ "value": false }))
        .await;
    for page in ["subscriptions", "subscription/new"] {
        browser.open(&house.site.url(&format!("/console/{page}"))).await;
        let name = page.replace('/', "-");
        for (scheme, width, is_dark) in
            [("light", 1200, false), ("dark", 1200, true), ("narrow", 390, false)]
        {
            browser.picture(&picture(&format!("{name}-{scheme}.png")), width, is_dark).await;
            assert_eq!(barriers(&browser, width, is_dark).await, [""; 0], "{page} {scheme}");
        }
    }
    browser.open(&house.site.url("/console/subscriptions?status=active")).await;
    browser.press("td.actions summary").await;
    browser.press("td.actions details button").await;
    browser.until_text(".done", |text| text.starts_with("The status")).await;
    assert_eq!(browser.complaints().await, [""; 0]);
    browser.close().await;
}
