//! Tiers: the limits of consumers and keys without an active record.

use rl_core::key::KeySecret;
use rl_core::source::PolicySource;
use rl_core::{Limit, Policy, Realm, Subject};
use rl_records::{
    ChangeError, HistoryQuery, Limits, RecordSource, Records, TierContent, ZeroMeans,
};

use super::{
    Database, NEVER, NOON, limits, on_every_database, patient, per_hour, policy_text, until_policy,
};

fn tier(name: &str, per_hour: i64) -> TierContent {
    TierContent { name: name.into(), limits: limits([-1, -1, per_hour, -1, -1, -1]).into() }
}

async fn put(records: &Records, consumer: &str, tier: &str) -> i64 {
    let subject = Subject::consumer(consumer);
    records.tiers().set_member(&subject, Some(tier), 0, "alice").await.unwrap().unwrap().revision
}

async fn text_of(source: &RecordSource, subject: &Subject) -> String {
    let policy = source.policy(subject).await.unwrap();
    policy.map_or_else(|| "-".to_owned(), |policy| policy.to_string())
}

#[tokio::test]
async fn records_come_before_the_tier_and_the_tier_before_the_defaults() {
    on_every_database(async |database: Database| {
        let defaults = limits([-1, -1, 7, -1, -1, -1]);
        let records = database.connect_with(|options| options.defaults(defaults)).await;
        let source = patient(&records).poll_every(NEVER).start();
        assert_eq!(policy_text(&source, "abc").await, "hour=7/hour");

        let gold = records.tiers().create(tier("gold", 100), "alice").await.unwrap();
        let revision = put(&records, "abc", "gold").await;
        assert_eq!(policy_text(&source, "abc").await, "hour=100/hour");
        assert_eq!(policy_text(&source, "else").await, "hour=7/hour");
        let active = records.active_limits("abc", NOON).await.unwrap();
        assert_eq!((active.tier(), active.is_default()), (Some("gold"), false));
        assert_eq!(active.limits().call_limits().unwrap().numbers()[2], 100);

        let record = records.create(per_hour("abc", 3), "alice").await.unwrap();
        assert_eq!(policy_text(&source, "abc").await, "hour=3/hour", "a record of its own");
        let active = records.active_limits("abc", NOON).await.unwrap();
        assert_eq!((active.tier(), active.considered_ids().count()), (None, 1));
        records.delete(record.id, 1, "alice").await.unwrap();
        assert_eq!(policy_text(&source, "abc").await, "hour=100/hour");

        records.tiers().update(tier("gold", 200), gold.revision, "bob").await.unwrap();
        assert_eq!(policy_text(&source, "abc").await, "hour=200/hour", "the changed tier applies");
        let abc = Subject::consumer("abc");
        assert!(records.tiers().set_member(&abc, None, revision, "bob").await.unwrap().is_none());
        assert_eq!(policy_text(&source, "abc").await, "hour=7/hour");
        assert!(records.active_limits("abc", NOON).await.unwrap().is_default());
    })
    .await;
}

/// A record begins at a later time. It then replaces the tier without another look-up.
#[tokio::test]
async fn a_record_replaces_the_tier_from_its_first_to_its_last_microsecond() {
    use std::sync::Arc;

    use rl_core::time::ManualClock;
    use rl_records::RecordContent;

    let clock = Arc::new(ManualClock::at(NOON));
    let records = Database::memory().connect_with(|options| options.clock(clock.clone())).await;
    records.tiers().create(tier("gold", 100), "alice").await.unwrap();
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
async fn a_key_has_its_tier_or_else_the_policies_of_other_subjects() {
    on_every_database(async |database: Database| {
        let records = database.connect().await;
        let secret = KeySecret::new(b"a secret of the tests").unwrap();
        let key = |text: &str| secret.subject(Realm::Key, text.as_bytes());
        let others = || Policy::builder().limit(Limit::per_hour(9)).build().unwrap();
        let source = patient(&records).others(others()).tiers_of_keys().poll_every(NEVER).start();
        let without = patient(&records).others(others()).poll_every(NEVER).start();
        records.tiers().create(tier("gold", 100), "alice").await.unwrap();
        records
            .tiers()
            .create(TierContent { limits: Limits::UNLIMITED, ..tier("free", 0) }, "alice")
            .await
            .unwrap();
        assert_eq!(text_of(&source, &key("one")).await, "hour=9/hour");
        let member =
            records.tiers().set_member(&key("one"), Some("gold"), 0, "alice").await.unwrap();
        assert_eq!(text_of(&source, &key("one")).await, "hour=100/hour");
        assert_eq!(text_of(&source, &key("two")).await, "hour=9/hour");
        assert_eq!(text_of(&without, &key("one")).await, "hour=9/hour", "tiers of keys are off");

        let revision = member.unwrap().revision;
        records.tiers().set_member(&key("one"), Some("free"), revision, "alice").await.unwrap();
        assert_eq!(text_of(&source, &key("one")).await, "-", "the tier has no limits");
        let history =
            records.tiers().member_history(&key("one"), &HistoryQuery::default()).await.unwrap();
        let steps: Vec<_> = history
            .iter()
            .map(|change| (change.before.as_deref(), change.after.as_deref()))
            .collect();
        assert_eq!(steps, [(Some("gold"), Some("free")), (None, Some("gold"))]);

        // A consumer whose id has the same text as the id of a key is a different subject.
        let consumer = Subject::consumer(&key("one").id().to_string());
        assert_eq!(records.tiers().member(&consumer).await.unwrap(), None);
        assert_eq!(records.tiers().member(&key("one")).await.unwrap().unwrap().tier, "free");
    })
    .await;
}

#[tokio::test]
async fn an_edit_of_another_revision_of_a_tier_conflicts_and_changes_are_in_the_history() {
    on_every_database(async |database: Database| {
        let records = database.connect().await;
        let gold = records.tiers().create(tier("gold", 1), "alice").await.unwrap();
        let twice = records.tiers().create(tier("gold", 2), "alice").await.unwrap_err();
        assert!(matches!(twice, ChangeError::Conflict { current } if *current == gold));
        let changed = records.tiers().update(tier("gold", 3), gold.revision, "bob").await.unwrap();
        let late =
            records.tiers().update(tier("gold", 4), gold.revision, "carol").await.unwrap_err();
        assert!(matches!(late, ChangeError::Conflict { current } if *current == changed));
        assert_eq!(records.tiers().read("gold").await.unwrap(), Some(changed.clone()));

        let abc = Subject::consumer("abc");
        let none = records.tiers().set_member(&abc, Some("silver"), 0, "alice").await.unwrap_err();
        assert!(none.to_string().contains("tier \"silver\": expected the name"), "{none}");
        let revision = put(&records, "abc", "gold").await;
        let late = records.tiers().set_member(&abc, None, 0, "bob").await.unwrap_err();
        assert!(matches!(late, ChangeError::Conflict { .. }), "{late:?}");
        let used = records.tiers().delete("gold", changed.revision, "bob").await.unwrap_err();
        assert!(used.to_string().contains("without members"), "{used}");
        records.tiers().set_member(&abc, None, revision, "bob").await.unwrap();
        // A new membership must not reuse the revision of a deleted one.
        put(&records, "abc", "gold").await;
        let late = records.tiers().set_member(&abc, None, revision, "carol").await.unwrap_err();
        assert!(matches!(late, ChangeError::Conflict { .. }), "{late:?}");
        let revision = records.tiers().member(&abc).await.unwrap().unwrap().revision;
        records.tiers().set_member(&abc, None, revision, "bob").await.unwrap();
        records.tiers().delete("gold", changed.revision, "bob").await.unwrap();
        assert_eq!(records.tiers().list(None, 10).await.unwrap(), []);

        let history = records.tiers().history(&HistoryQuery::default()).await.unwrap();
        let by: Vec<_> = history.iter().map(|change| &*change.by).collect();
        assert_eq!(by, ["bob", "bob", "alice"]);
        assert_eq!(history[1].before.as_ref(), Some(&tier("gold", 1)));
        assert_eq!(history[1].after.as_ref(), Some(&tier("gold", 3)));

        for subject in [Subject::ip([10, 0, 0, 1]), Subject::consumer(&"a".repeat(5_000))] {
            let error =
                records.tiers().set_member(&subject, Some("gold"), 0, "alice").await.unwrap_err();
            assert!(matches!(error, ChangeError::Invalid(_)), "{error:?}");
        }
        let empty = records.tiers().create(tier("", 1), "alice").await.unwrap_err();
        assert!(matches!(empty, ChangeError::Invalid(field) if field.field() == "name"));
    })
    .await;
}

#[tokio::test]
async fn a_limit_of_zero_means_the_same_in_a_tier_as_in_a_record() {
    for (meaning, text) in [(ZeroMeans::Blocked, "hour=0/hour"), (ZeroMeans::Unlimited, "-")] {
        let records = Database::memory().connect_with(|options| options.zero_means(meaning)).await;
        records.tiers().create(tier("closed", 0), "alice").await.unwrap();
        put(&records, "abc", "closed").await;
        assert_eq!(policy_text(&patient(&records).start(), "abc").await, text);
    }
}

#[tokio::test]
async fn a_changed_tier_reaches_other_instances() {
    for database in Database::shared() {
        let (one, other) = (database.connect().await, database.connect().await);
        let source = patient(&other).start();
        assert_eq!(policy_text(&source, "abc").await, "-");
        let gold = one.tiers().create(tier("gold", 5), "alice").await.unwrap();
        put(&one, "abc", "gold").await;
        until_policy(&source, "abc", "hour=5/hour").await;
        one.tiers().update(tier("gold", 6), gold.revision, "alice").await.unwrap();
        until_policy(&source, "abc", "hour=6/hour").await;
    }
}

#[tokio::test]
async fn consumers_with_records_or_a_tier_are_listed_by_their_ids() {
    on_every_database(async |database: Database| {
        use rl_records::ConsumerQuery;

        let records = database.connect().await;
        records.tiers().create(tier("gold", 1), "alice").await.unwrap();
        for name in ["b", "Bob", "c%"] {
            records.create(per_hour(name, 1), "alice").await.unwrap();
            records.create(per_hour(name, 2), "alice").await.unwrap();
        }
        put(&records, "a", "gold").await;
        put(&records, "b", "gold").await;
        let list = async |search: Option<&str>, after: Option<&str>, limit| {
            let (search, after) = (search.map(Into::into), after.map(Into::into));
            let query = ConsumerQuery { search, after, limit, ..ConsumerQuery::default() };
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
        assert_eq!(list(Some("B"), None, 10).await.0, "Bob");
        assert_eq!(list(Some("b"), None, 10).await.0, "b");
        assert_eq!(list(Some("c%"), None, 10).await.0, "c%");
        assert_eq!(list(Some("%"), None, 10).await.0, "");
        assert_eq!(list(Some(""), None, 10).await.0, "Bob a b c%");
        assert_eq!(list(Some("\0"), None, 10).await.0, "");
    })
    .await;
}
