//! The pages for a user of one application.

use rl_core::Subject;
use rl_core::time::{Clock, SystemClock};
use rl_records::{
    AuditQuery, HistoryQuery, RecordContent, RecordQuery, SubscriptionContent, TierContent,
};

use super::{House, OWNER, OWNER_OF_SHOP};

/// The objects of one application.
struct Objects {
    app: &'static str,
    record: String,
}

impl Objects {
    /// Creates a record, a tier that the consumer is in, and denials.
    async fn create(house: &House, app: &'static str) -> Self {
        let record = house.record(app, 1, 100).await;
        let tier = TierContent { name: format!("{app}-tier"), limits: record.content.limits };
        house.records.tiers().create(tier, "olivia").await.unwrap();
        let (subject, tier) = (Subject::consumer(app), format!("{app}-tier"));
        house.records.tiers().set_member(&subject, Some(&tier), 0, "olivia").await.unwrap();
        let subscription = SubscriptionContent::new(app, &tier, SystemClock.now());
        house.records.subscriptions().create(subscription, "olivia").await.unwrap();
        assert_eq!(house.call(app).await, 200);
        // The limiter records the subject of one decision in a millisecond.
        while !house.limiter.stats().top_denied.iter().any(|top| top.subject == subject) {
            assert_eq!(house.call(app).await, 429);
        }
        Self { app, record: record.id.to_string() }
    }

    fn none() -> Self {
        Self { app: "absent", record: "00000000-0000-4000-8000-000000000000".to_owned() }
    }

    fn fill(&self, text: &str) -> String {
        text.replace("{APP}", self.app).replace("{RECORD}", &self.record)
    }
}

/// The pages, with the status for the objects of the visitor, and for those of others.
const PAGES: [(&str, u16, u16); 50] = [
    ("", 200, 200),
    ("/", 200, 200),
    ("?text={APP}", 200, 200),
    ("/now", 200, 200),
    ("/consumers", 200, 200),
    ("/consumers?search={APP}", 200, 200),
    ("/subject?realm=consumer&id={APP}", 303, 404),
    ("/subject?realm=user&id={APP}", 404, 404),
    ("/explain?id={APP}", 200, 404),
    ("/raise?id={APP}", 200, 404),
    ("/block?id={APP}", 200, 404),
    ("/rules", 404, 404),
    ("/rule/templates", 404, 404),
    ("/rule/new", 404, 404),
    ("/rule/edit?name={APP}", 404, 404),
    ("/resources?app={APP}", 404, 404),
    ("/resource/new", 404, 404),
    ("/resource/edit?name={APP}", 404, 404),
    ("/blocks", 404, 404),
    ("/consumer?id={APP}", 200, 404),
    ("/consumer?id={APP}&id=shop", 200, 404),
    ("/consumer?id=shop&consumer_id={APP}", 200, 404),
    ("/consumer?id=%20{APP}", 404, 404),
    ("/consumer?id=shop&realm=user", 404, 404),
    ("/usage?id={APP}", 200, 404),
    ("/consumer/export?id={APP}&format=csv", 200, 404),
    ("/consumer/export?id=shop&format=xml", 404, 404),
    ("/months", 200, 200),
    ("/months?search={APP}", 200, 200),
    ("/months/export?format=csv", 200, 200),
    ("/months/export?format=json&search={APP}", 200, 200),
    ("/record/new", 200, 200),
    ("/record/new?consumer={APP}", 200, 403),
    ("/record/edit?record={RECORD}", 200, 404),
    ("/record/edit?record={RECORD}&consumer={APP}", 200, 404),
    ("/record/delete?record={RECORD}", 200, 404),
    ("/tiers", 200, 200),
    ("/tier/new", 403, 403),
    ("/tier/edit?name={APP}-tier", 403, 403),
    ("/subscriptions", 200, 200),
    ("/subscriptions?consumer={APP}", 200, 404),
    ("/subscription/new", 200, 200),
    ("/subscription/new?consumer={APP}", 200, 403),
    ("/changes", 200, 200),
    ("/changes?consumer={APP}", 200, 404),
    ("/store", 200, 200),
    ("/last-hour", 200, 200),
    ("/nowhere", 404, 404),
    ("/record/edit?record=none", 404, 404),
    ("/console.css", 200, 200),
];

#[tokio::test]
async fn pages_for_an_application_show_its_objects_and_no_others() {
    let house = House::new().await;
    let (own, foreign) =
        (Objects::create(&house, "shop").await, Objects::create(&house, "wallet").await);
    let user = Subject::new(rl_core::Realm::User, "wallet");
    let of_user = house.records.list(&RecordQuery::of_consumer("wallet")).await.unwrap().records;
    let content = RecordContent { realm: user.realm().clone(), ..of_user[0].content.clone() };
    let of_user = house.records.create(content, "olivia").await.unwrap();
    let of_user = Objects { app: "wallet", record: of_user.id.to_string() };
    super::usage::record(&house.records, &["shop", "wallet"]).await;
    let visitor = house.log_in(OWNER_OF_SHOP).await;
    for (page, own_status, foreign_status) in PAGES {
        let path = format!("/console{page}");
        let seen = visitor.get(&own.fill(&path)).await;
        assert_eq!(seen.status, own_status, "{page}: {}", seen.body);
        assert!(!seen.body.contains("wallet"), "{page}: {}", seen.body);
        let missing = Objects::none();
        let missing = (visitor.get(&missing.fill(&path)).await, missing);
        for objects in [&foreign, &of_user] {
            let hidden = visitor.get(&objects.fill(&path)).await;
            assert_eq!(hidden.status, foreign_status, "{page}: {}", hidden.body);
            let anonymous = |body: &str, of: &Objects| {
                body.replace(of.app, "{APP}").replace(&of.record, "{RECORD}")
            };
            // The page of the store has times.
            if page.contains('{') {
                assert_eq!(
                    anonymous(&hidden.body, objects),
                    anonymous(&missing.0.body, &missing.1),
                    "{page}: like what does not exist"
                );
            }
        }
    }
    for page in
        ["", "/consumers", "/months", "/tiers", "/changes", "/last-hour", "/consumer?id=shop"]
    {
        let seen = visitor.get(&format!("/console{page}")).await.body;
        assert!(seen.contains("shop"), "{page}: {seen}");
        assert!(!seen.contains("/tier/edit"), "{page}: {seen}");
        let all = house.log_in(OWNER).await.get(&format!("/console{page}")).await.body;
        assert!(page.contains("shop") || all.contains("wallet"), "{page}: {all}");
    }
}

/// The path and the fields of a form, with the status for the objects of the visitor, and for those
/// of others.
type Form<'a> = (&'a str, Vec<(&'a str, &'a str)>, u16, u16);

#[tokio::test]
async fn forms_for_an_application_change_its_objects_and_no_others() {
    let house = House::new().await;
    let (own, foreign) =
        (Objects::create(&house, "shop").await, Objects::create(&house, "wallet").await);
    let visitor = house.log_in(OWNER_OF_SHOP).await;
    let dates = [("from_date", "2026-02-01T12:00:00"), ("to_date", "2099-02-01T12:59:59")];
    let [from, to] = dates;
    let forms: [Form<'_>; 16] = [
        ("/record/new", vec![("consumer_id", "{APP}"), ("limits", "5/minute"), from, to], 303, 403),
        (
            "/record/edit",
            vec![("record", "{RECORD}"), ("revision", "1"), ("limits", "7/minute"), from, to],
            303,
            404,
        ),
        // The record is of one application, and the hidden field of another.
        (
            "/record/edit",
            vec![("record", "{RECORD}"), ("consumer_id", "shop"), ("revision", "0")],
            422,
            404,
        ),
        ("/record/delete", vec![("record", "{RECORD}"), ("revision", "2")], 303, 404),
        ("/consumer/tier", vec![("id", "{APP}"), ("tier", ""), ("revision", "0")], 409, 404),
        ("/reset", vec![("id", "{APP}")], 303, 404),
        ("/reset", vec![("id", "{APP}"), ("id", "shop")], 303, 404),
        ("/raise", vec![("id", "{APP}"), ("factor", "2"), ("hours", "1")], 303, 404),
        ("/block", vec![("id", "{APP}"), ("reason", "abuse"), ("end", "day")], 303, 404),
        ("/unblock", vec![("id", "{APP}")], 303, 404),
        ("/tier/new", vec![("name", "new"), ("limits", "1/second")], 403, 403),
        ("/resource/new", vec![("name", "new"), ("limits", "1/second")], 404, 404),
        ("/resource/edit", vec![("name", "{APP}"), ("revision", "1")], 404, 404),
        ("/resource/delete", vec![("name", "{APP}"), ("revision", "1")], 404, 404),
        ("/tier/edit", vec![("name", "{APP}-tier"), ("revision", "1")], 403, 403),
        ("/tier/delete", vec![("name", "{APP}-tier"), ("revision", "1")], 403, 403),
    ];
    let history = async || house.records.audit_log().entries(&AuditQuery::default()).await.unwrap();
    let before = history().await;
    let send = async |of: &Objects, path: &str, fields: &[(&str, &str)]| {
        let fields: Vec<_> = fields.iter().map(|(name, value)| (*name, of.fill(value))).collect();
        let fields: Vec<_> = fields.iter().map(|(name, value)| (*name, &**value)).collect();
        visitor.post(&format!("/console{path}"), &fields).await
    };
    for (path, fields, _, expected) in &forms {
        for objects in [&foreign, &Objects::none()] {
            let answer = send(objects, path, fields).await;
            assert_eq!(answer.status, *expected, "{path} {fields:?}: {}", answer.body);
        }
    }
    assert_eq!(history().await, before, "nothing was changed");
    for (path, fields, expected, _) in &forms {
        let answer = send(&own, path, fields).await;
        assert_eq!(answer.status, *expected, "{path} {fields:?}: {}", answer.body);
    }
    let changes = house.records.history(&HistoryQuery::default()).await.unwrap();
    assert!(changes.iter().filter(|change| change.by == "owner").count() == 6, "{changes:?}");
}
