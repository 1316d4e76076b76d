//! Grants: records that add to the limits that apply without them.

use std::sync::Arc;

use rl_core::source::{PolicySource, Preset};
use rl_core::time::ManualClock;
use rl_core::{MemoryStore, RateLimiter, Realm, Subject};
use rl_records::{
    Author, ChangeError, Expected, HistoryQuery, Limits, RecordContent, RecordSource, Records,
    TierContent,
};

use super::{Database, HOUR, NOON, on_every_database, patient};

fn grant(limits: &str) -> RecordContent {
    let limits: Limits = limits.parse().unwrap();
    RecordContent::grant("abc", NOON, NOON.plus_micros(1_000_000 * HOUR), limits)
}

/// Returns a record that is no grant.
fn own(limits: &str) -> RecordContent {
    RecordContent { grants: false, ..grant(limits) }
}

async fn text_of(source: &RecordSource, subject: &Subject) -> String {
    let policy = source.policy(subject).await.unwrap();
    policy.map_or_else(|| "-".to_owned(), |policy| policy.to_string())
}

async fn set_tier(records: &Records, limits: &str) {
    let content = TierContent { name: "free".into(), limits: limits.parse().unwrap() };
    match records.tiers().read("free").await.unwrap() {
        Some(tier) => records.tiers().update(content, tier.revision, "alice").await.unwrap(),
        None => records.tiers().create(content, "alice").await.unwrap(),
    };
}

#[tokio::test]
async fn a_grant_is_added_to_the_records_the_tier_or_the_defaults_that_apply() {
    on_every_database(async |database: Database| {
        let records = database.connect().await;
        let source = patient(&records).start();
        let abc = Subject::consumer("abc");
        let granted = records.create(grant("5000/month, 9/minute"), "alice").await.unwrap();
        // There is no limit to which it adds.
        assert_eq!(text_of(&source, &abc).await, "-");
        let active = records.active_limits("abc", NOON).await.unwrap();
        assert!(active.is_default() && active.contributions()[0].grants);

        set_tier(&records, "10/second, 20000/month").await;
        records.tiers().set_member(&abc, Some("free"), Expected::Nothing, "alice").await.unwrap();
        assert_eq!(text_of(&source, &abc).await, "second=10/second, month=25000/month");
        // The tier changes, and what is granted stays.
        set_tier(&records, "10/second, 30000/month").await;
        assert_eq!(text_of(&source, &abc).await, "second=10/second, month=35000/month");
        let active = records.active_limits("abc", NOON).await.unwrap();
        assert_eq!(active.limits().to_string(), "10/second, 35000/month");
        assert_eq!((active.tier(), active.is_default()), (Some("free"), false));

        let own = records.create(own("1/minute, 0/month"), "alice").await.unwrap();
        assert_eq!(text_of(&source, &abc).await, "minute=10/minute, month=0/month");
        records.delete(own.id, 1, "alice").await.unwrap();
        records.delete(granted.id, 1, "alice").await.unwrap();
        assert_eq!(text_of(&source, &abc).await, "second=10/second, month=30000/month");
    })
    .await;
}

#[tokio::test]
async fn a_grant_is_added_to_the_limits_that_another_source_has_for_an_address() {
    on_every_database(async |database: Database| {
        let records = database.connect().await;
        let source = patient(&records).others(Preset::OpenBank).start();
        let (one, other) = (Subject::ip([192, 0, 2, 7]), Subject::ip([192, 0, 2, 8]));
        assert_eq!(text_of(&source, &one).await, "hour=1000/hour");
        let content =
            RecordContent { realm: Realm::Ip, subject_id: "192.0.2.7".into(), ..grant("500/hour") };
        let granted = records.create(content, "alice").await.unwrap();
        assert_eq!(text_of(&source, &one).await, "hour=1500/hour");
        assert_eq!(text_of(&source, &other).await, "hour=1000/hour");
        records.delete(granted.id, 1, "alice").await.unwrap();
        assert_eq!(text_of(&source, &one).await, "hour=1000/hour");
    })
    .await;
}

#[tokio::test]
async fn calls_stay_counted_when_a_grant_begins_and_ends() {
    let clock = Arc::new(ManualClock::at(NOON));
    let records = Database::memory().connect_with(|options| options.clock(clock.clone())).await;
    records.create(own("2/hour"), "alice").await.unwrap();
    let source = patient(&records).start();
    let store = MemoryStore::builder().clock(clock.clone()).build();
    let limiter = RateLimiter::builder().policies(source).store(store).build().unwrap();
    let abc = Subject::consumer("abc");
    let call = async || limiter.check(&abc, 1).await.is_allowed();
    assert_eq!([call().await, call().await, call().await], [true, true, false]);
    let mut content = grant("2/hour");
    content.to_date = NOON.plus_micros(HOUR / 2);
    records.create(content, "alice").await.unwrap();
    assert_eq!([call().await, call().await, call().await], [true, true, false]);
    clock.set(NOON.plus_micros(HOUR / 2 + 1));
    assert!(!call().await);
    clock.set(NOON.plus_micros(HOUR));
    assert_eq!([call().await, call().await, call().await], [true, true, false]);
}

#[tokio::test]
async fn an_invalid_grant_is_refused_and_a_record_never_becomes_or_stops_being_a_grant() {
    on_every_database(async |database: Database| {
        let records = database.connect().await;
        for (content, expected) in [
            (grant(""), "limits \"\": expected at least one limit above 0, because the record is a grant"),
            (grant("0/hour"), "limits \"0/hour\": expected at least one limit above 0, because the record is a grant"),
            (
                RecordContent { blocks: true, ..grant("1/hour") },
                "blocks \"true\": expected false, because a grant cannot block",
            ),
        ] {
            let error = records.create(content, "alice").await.unwrap_err();
            assert_eq!(error.to_string(), expected);
        }
        let own = records.create(own("1/hour:unit=tokens"), "alice").await.unwrap();
        let error = records.create(grant("1/hour"), "alice").await.unwrap_err();
        assert!(error.to_string().contains("expected the unit tokens"), "{error}");
        // A grant creates no limit, so its limits do not count towards the sixteen of a sum.
        let many = (1..=16).map(|hours| format!("1/{}minutes", hours * 7)).collect::<Vec<_>>();
        let granted = records.create(grant(&many.join(", ")), "alice").await.unwrap();

        for (before, content) in [
            (&own, RecordContent { grants: true, ..own.content.clone() }),
            (&granted, RecordContent { grants: false, ..granted.content.clone() }),
        ] {
            let error = records.update(before.id, content, 1, "alice").await.unwrap_err();
            let ChangeError::Invalid(field) = error else { panic!("{error}") };
            assert_eq!(field.field(), "grants");
        }
        let content = RecordContent { grants: false, ..granted.content.clone() };
        let kept = records.update_limits(granted.id, content, 1, "alice").await.unwrap();
        assert!(kept.content.grants);
        let query = HistoryQuery { owner: Some("abc".into()), ..HistoryQuery::default() };
        let history = records.history(&query).await.unwrap();
        assert!(
            history[0].after.as_ref().unwrap().grants && history[0].before.as_ref().unwrap().grants
        );
    })
    .await;
}

#[tokio::test]
async fn a_grant_needs_no_right_to_block_or_unblock() {
    on_every_database(async |database: Database| {
        let records = database.connect().await;
        records.create(own("0/hour"), "alice").await.unwrap();
        let author = Author::new("bob").may_block(false).may_unblock(false);
        let granted = records.create(grant("1/hour"), author).await.unwrap();
        let active = records.active_limits("abc", NOON).await.unwrap();
        assert_eq!(active.limits().to_string(), "0/hour");
        records.delete(granted.id, 1, author).await.unwrap();
    })
    .await;
}
