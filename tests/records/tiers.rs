//! Tiers: what consumers and keys are under that have no record of their own.

use rl_core::key::KeySecret;
use rl_core::source::PolicySource;
use rl_core::{Limit, Policy, Realm, Subject};
use rl_records::{
    CallLimits, ChangeError, HistoryQuery, RecordSource, Records, TierContent, ZeroMeans,
};

use super::{
    Database, NEVER, NOON, limits, on_every_database, patient, per_hour, policy_text, until_policy,
};

fn tier(name: &str, per_hour: i64) -> TierContent {
    TierContent { name: name.into(), limits: limits([-1, -1, per_hour, -1, -1, -1]) }
}

async fn put(records: &Records, consumer: &str, tier: &str) -> i64 {
    let who = Subject::consumer(consumer);
    records.set_tier(&who, Some(tier), 0, "alice").await.unwrap().unwrap().revision
}

async fn text_of(source: &RecordSource, who: &Subject) -> String {
    let policy = source.policy(who).await.unwrap();
    policy.map_or_else(|| "-".to_owned(), |policy| policy.to_string())
}

#[tokio::test]
async fn records_come_before_the_tier_and_the_tier_before_the_defaults() {
    on_every_database(async |database: Database| {
        let defaults = limits([-1, -1, 7, -1, -1, -1]);
        let records = database.builder().defaults(defaults).connect().await.unwrap();
        let source = patient(&records).poll_every(NEVER).start();
        assert_eq!(policy_text(&source, "abc").await, "hour=7/hour");

        let gold = records.create_tier(tier("gold", 100), "alice").await.unwrap();
        let revision = put(&records, "abc", "gold").await;
        assert_eq!(policy_text(&source, "abc").await, "hour=100/hour");
        assert_eq!(policy_text(&source, "else").await, "hour=7/hour");
        let active = records.active_limits("abc", NOON).await.unwrap();
        assert_eq!((active.tier(), active.are_defaults()), (Some("gold"), false));
        assert_eq!(active.limits().numbers()[2], 100);

        let record = records.create(per_hour("abc", 3), "alice").await.unwrap();
        assert_eq!(policy_text(&source, "abc").await, "hour=3/hour", "a record of its own");
        let active = records.active_limits("abc", NOON).await.unwrap();
        assert_eq!((active.tier(), active.considered_ids().count()), (None, 1));
        records.delete(record.id, 1, "alice").await.unwrap();
        assert_eq!(policy_text(&source, "abc").await, "hour=100/hour");

        records.update_tier(tier("gold", 200), gold.revision, "bob").await.unwrap();
        assert_eq!(policy_text(&source, "abc").await, "hour=200/hour", "a changed tier binds");
        let abc = Subject::consumer("abc");
        assert!(records.set_tier(&abc, None, revision, "bob").await.unwrap().is_none());
        assert_eq!(policy_text(&source, "abc").await, "hour=7/hour");
        assert!(records.active_limits("abc", NOON).await.unwrap().are_defaults());
    })
    .await;
}

/// A record that begins later puts the tier aside when it begins, with no look-up between.
#[tokio::test]
async fn a_dated_record_puts_the_tier_aside_from_its_first_to_its_last_microsecond() {
    use std::sync::Arc;

    use rl_core::time::ManualClock;
    use rl_records::RecordContent;

    let clock = Arc::new(ManualClock::at(NOON));
    let records = Database::memory().builder().clock(clock.clone()).connect().await.unwrap();
    records.create_tier(tier("gold", 100), "alice").await.unwrap();
    put(&records, "abc", "gold").await;
    let (from, to) = (NOON.plus_micros(10), NOON.plus_micros(20));
    let content = RecordContent::new("abc", from, to, limits([-1, -1, 3, -1, -1, -1]));
    records.create(content, "alice").await.unwrap();
    let source = patient(&records).poll_every(NEVER).start();
    for (after, text) in [(0, "100"), (9, "100"), (10, "3"), (20, "3"), (21, "100")] {
        clock.set(NOON.plus_micros(after));
        assert_eq!(policy_text(&source, "abc").await, format!("hour={text}/hour"), "{after}");
    }
}

#[tokio::test]
async fn a_key_is_under_its_tier_or_under_the_policies_of_the_others() {
    on_every_database(async |database: Database| {
        let records = database.connect().await;
        let secret = KeySecret::new(b"a secret of the tests").unwrap();
        let key = |text: &str| secret.subject(Realm::Key, text.as_bytes());
        let others = || Policy::builder().limit(Limit::per_hour(9)).build().unwrap();
        let source = patient(&records).others(others()).tiers_of_keys().poll_every(NEVER).start();
        let without = patient(&records).others(others()).poll_every(NEVER).start();
        records.create_tier(tier("gold", 100), "alice").await.unwrap();
        records
            .create_tier(TierContent { limits: CallLimits::UNLIMITED, ..tier("free", 0) }, "alice")
            .await
            .unwrap();
        assert_eq!(text_of(&source, &key("one")).await, "hour=9/hour");
        let member = records.set_tier(&key("one"), Some("gold"), 0, "alice").await.unwrap();
        assert_eq!(text_of(&source, &key("one")).await, "hour=100/hour");
        assert_eq!(text_of(&source, &key("two")).await, "hour=9/hour");
        assert_eq!(text_of(&without, &key("one")).await, "hour=9/hour", "it was not asked for");

        let revision = member.unwrap().revision;
        records.set_tier(&key("one"), Some("free"), revision, "alice").await.unwrap();
        assert_eq!(text_of(&source, &key("one")).await, "-", "a tier without limits is one");
        let history = records.tier_history_of(&key("one"), &HistoryQuery::default()).await.unwrap();
        let steps: Vec<_> = history
            .iter()
            .map(|change| (change.before.as_deref(), change.after.as_deref()))
            .collect();
        assert_eq!(steps, [(Some("gold"), Some("free")), (None, Some("gold"))]);

        // The consumer of the same text is another subject.
        let consumer = Subject::consumer(&key("one").id().to_string());
        assert_eq!(records.tier_of(&consumer).await.unwrap(), None);
        assert_eq!(records.tier_of(&key("one")).await.unwrap().unwrap().tier, "free");
    })
    .await;
}

#[tokio::test]
async fn an_edit_of_a_tier_that_somebody_else_changed_is_refused_and_all_is_remembered() {
    on_every_database(async |database: Database| {
        let records = database.connect().await;
        let gold = records.create_tier(tier("gold", 1), "alice").await.unwrap();
        let twice = records.create_tier(tier("gold", 2), "alice").await.unwrap_err();
        assert!(matches!(twice, ChangeError::Conflict { current } if *current == gold));
        let changed = records.update_tier(tier("gold", 3), gold.revision, "bob").await.unwrap();
        let late = records.update_tier(tier("gold", 4), gold.revision, "carol").await.unwrap_err();
        assert!(matches!(late, ChangeError::Conflict { current } if *current == changed));
        assert_eq!(records.read_tier("gold").await.unwrap(), Some(changed.clone()));

        let abc = Subject::consumer("abc");
        let none = records.set_tier(&abc, Some("silver"), 0, "alice").await.unwrap_err();
        assert!(none.to_string().contains("tier \"silver\": expected the name"), "{none}");
        let revision = put(&records, "abc", "gold").await;
        let late = records.set_tier(&abc, None, 0, "bob").await.unwrap_err();
        assert!(matches!(late, ChangeError::Conflict { .. }), "{late:?}");
        let used = records.delete_tier("gold", changed.revision, "bob").await.unwrap_err();
        assert!(used.to_string().contains("without members"), "{used}");
        records.set_tier(&abc, None, revision, "bob").await.unwrap();
        // A request that names the first membership does not change the next one.
        put(&records, "abc", "gold").await;
        let late = records.set_tier(&abc, None, revision, "carol").await.unwrap_err();
        assert!(matches!(late, ChangeError::Conflict { .. }), "{late:?}");
        let revision = records.tier_of(&abc).await.unwrap().unwrap().revision;
        records.set_tier(&abc, None, revision, "bob").await.unwrap();
        records.delete_tier("gold", changed.revision, "bob").await.unwrap();
        assert_eq!(records.list_tiers(None, 10).await.unwrap(), []);

        let history = records.tier_history(&HistoryQuery::default()).await.unwrap();
        let by: Vec<_> = history.iter().map(|change| &*change.by).collect();
        assert_eq!(by, ["bob", "bob", "alice"]);
        assert_eq!(history[1].before.as_ref(), Some(&tier("gold", 1)));
        assert_eq!(history[1].after.as_ref(), Some(&tier("gold", 3)));

        for who in [Subject::ip("10.0.0.1"), Subject::consumer(&"a".repeat(5_000))] {
            let error = records.set_tier(&who, Some("gold"), 0, "alice").await.unwrap_err();
            assert!(matches!(error, ChangeError::Invalid(_)), "{error:?}");
        }
        let empty = records.create_tier(tier("", 1), "alice").await.unwrap_err();
        assert!(matches!(empty, ChangeError::Invalid(field) if field.field() == "name"));
    })
    .await;
}

#[tokio::test]
async fn a_tier_of_zero_blocks_or_not_as_records_do() {
    for (meaning, text) in [(ZeroMeans::Blocked, "hour=0/hour"), (ZeroMeans::Unlimited, "-")] {
        let records = Database::memory().builder().zero_means(meaning).connect().await.unwrap();
        records.create_tier(tier("closed", 0), "alice").await.unwrap();
        put(&records, "abc", "closed").await;
        assert_eq!(policy_text(&patient(&records).start(), "abc").await, text);
    }
}

#[tokio::test]
async fn a_changed_tier_reaches_other_instances() {
    for database in [Database::file(), Database::postgres()] {
        let (one, other) = (database.connect().await, database.connect().await);
        let source = patient(&other).start();
        assert_eq!(policy_text(&source, "abc").await, "-");
        let gold = one.create_tier(tier("gold", 5), "alice").await.unwrap();
        put(&one, "abc", "gold").await;
        until_policy(&source, "abc", "hour=5/hour").await;
        one.update_tier(tier("gold", 6), gold.revision, "alice").await.unwrap();
        until_policy(&source, "abc", "hour=6/hour").await;
    }
}

#[tokio::test]
async fn consumers_with_records_or_a_tier_are_listed_by_their_ids() {
    on_every_database(async |database: Database| {
        use rl_records::ConsumerQuery;

        let records = database.connect().await;
        records.create_tier(tier("gold", 1), "alice").await.unwrap();
        for name in ["b", "Bob", "c%"] {
            records.create(per_hour(name, 1), "alice").await.unwrap();
            records.create(per_hour(name, 2), "alice").await.unwrap();
        }
        put(&records, "a", "gold").await;
        put(&records, "b", "gold").await;
        let list = async |search: Option<&str>, after: Option<&str>, limit| {
            let (search, after) = (search.map(Into::into), after.map(Into::into));
            let query = ConsumerQuery { search, after, limit };
            let page = records.consumers(&query, NOON).await.unwrap();
            let ids: Vec<String> =
                page.consumers.iter().map(|one| one.consumer_id.clone()).collect();
            (ids.join(" "), page.next, page.consumers)
        };
        let (ids, next, all) = list(None, None, 10).await;
        assert_eq!((&*ids, next), ("Bob a b c%", None));
        let seen: Vec<_> =
            all.iter().map(|one| (one.records, one.active, one.tier.as_deref())).collect();
        assert_eq!(seen, [(2, 2, None), (0, 0, Some("gold")), (2, 2, Some("gold")), (2, 2, None)]);
        let (ids, next, _) = list(None, None, 2).await;
        assert_eq!((&*ids, next.as_deref()), ("Bob a", Some("a")));
        let (ids, next, _) = list(None, next.as_deref(), 2).await;
        assert_eq!((&*ids, next), ("b c%", None));
        assert_eq!(list(Some("B"), None, 10).await.0, "Bob b");
        assert_eq!(list(Some("%"), None, 10).await.0, "c%");
        assert_eq!(list(Some("\0"), None, 10).await.0, "");
    })
    .await;
}
