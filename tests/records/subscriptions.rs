//! Subscriptions: each status and its effect on the limits of the consumer.

use std::sync::Arc;

use rl_core::time::{Clock, ManualClock};
use rl_records::{
    Author, ChangeError, HistoryQuery, Records, Subscription, SubscriptionContent,
    SubscriptionQuery, SubscriptionStatus, TierContent, ZeroMeans,
};

use super::{
    Database, HOUR, NEVER, NOON, limits, on_every_database, patient, per_hour, policy_text,
    until_policy,
};
use SubscriptionStatus::{Active, Cancelled, PastDue, Requested, Suspended};

fn tier(name: &str, per_hour: i64) -> TierContent {
    TierContent { name: name.into(), limits: limits([-1, -1, per_hour, -1, -1, -1]).into() }
}

fn content(status: SubscriptionStatus) -> SubscriptionContent {
    let content = SubscriptionContent::new("abc", "gold", NOON);
    SubscriptionContent { status, to_date: Some(NOON.plus_micros(1_000_000 * HOUR)), ..content }
}

/// Creates a subscription, and brings it to this status.
async fn subscription(records: &Records, status: SubscriptionStatus) -> Subscription {
    let steps: &[_] = match status {
        Requested => &[],
        Active => &[Active],
        PastDue => &[Active, PastDue],
        Suspended => &[Active, Suspended],
        Cancelled => &[Active, Cancelled],
    };
    let mut current = records.subscriptions().create(content(Requested), "alice").await.unwrap();
    for status in steps {
        let set = records.subscriptions().set_status(current.id, *status, current.revision, "bob");
        current = set.await.unwrap();
    }
    current
}

async fn records_of_abc(records: &Records) -> usize {
    let query = rl_records::RecordQuery::of_consumer("abc");
    records.list(&query).await.unwrap().records.len()
}

#[tokio::test]
async fn each_status_has_its_next_statuses_and_its_effect() {
    on_every_database(async |database: Database| {
        let clock = Arc::new(ManualClock::at(NOON.plus_micros(HOUR)));
        let records = database.connect_with(|options| options.clock(clock.clone())).await;
        records.tiers().create(tier("gold", 100), "alice").await.unwrap();
        records.create(per_hour("abc", 3), "alice").await.unwrap();
        // There is no polling, so each change has to reach the source at once.
        let source = patient(&records).poll_every(NEVER).start();
        let next = |status| match status {
            Requested => vec![Active, Cancelled],
            Active => vec![PastDue, Suspended, Cancelled],
            PastDue => vec![Active, Suspended, Cancelled],
            Suspended => vec![Active, Cancelled],
            Cancelled => vec![],
        };
        // The limit of the consumer, and the number of its records. One record was made by hand.
        let effect = |status| match status {
            Requested | Cancelled => ("hour=3/hour", 1),
            Active | PastDue => ("hour=103/hour", 2),
            Suspended => ("hour=3/hour", 2),
        };
        for from in SubscriptionStatus::ALL {
            for to in SubscriptionStatus::ALL {
                let before = subscription(&records, from).await;
                let text = policy_text(&source, "abc").await;
                assert_eq!((&*text, records_of_abc(&records).await), effect(from), "{from:?}");
                let set = records.subscriptions().set_status(before.id, to, before.revision, "bob");
                let changed = set.await;
                let stored = records.subscriptions().read(before.id).await.unwrap().unwrap();
                if from == to {
                    assert_eq!(changed.unwrap(), before, "nothing is written");
                } else if next(from).contains(&to) {
                    let after = changed.unwrap();
                    assert_eq!((after.content.status, after.revision), (to, before.revision + 1));
                    assert_eq!(after, stored);
                    assert_eq!(after.record_id.is_some(), effect(to).1 == 2);
                    let both = before.record_id.zip(after.record_id);
                    assert!(both.is_none_or(|(one, other)| one == other), "one record for life");
                    let text = policy_text(&source, "abc").await;
                    let found = (&*text, records_of_abc(&records).await);
                    assert_eq!(found, effect(to), "{from:?} {to:?}");
                } else {
                    let error = changed.unwrap_err().to_string();
                    assert!(error.starts_with(&format!("status {:?}: ", to.as_str())), "{error}");
                    let because = format!("because the status is {}", from.as_str());
                    assert!(error.contains(&because), "{error}");
                    for allowed in next(from) {
                        assert!(error.contains(allowed.as_str()), "{error}");
                    }
                    assert_eq!(stored, before);
                }
                let any = rl_records::Expected::Any;
                records.subscriptions().set_status(before.id, Cancelled, any, "bob").await.unwrap();
            }
        }
        assert_eq!(policy_text(&source, "abc").await, "hour=3/hour");
    })
    .await;
}

#[tokio::test]
async fn a_subscription_starts_as_requested_or_active_and_needs_a_tier() {
    on_every_database(async |database: Database| {
        let records = database.connect().await;
        let missing = records.subscriptions().create(content(Requested), "alice").await;
        let missing = missing.unwrap_err().to_string();
        assert!(missing.starts_with("tier \"gold\": expected the name of a tier"), "{missing}");
        records.tiers().create(tier("gold", 100), "alice").await.unwrap();
        for status in [PastDue, Suspended, Cancelled] {
            let wrong = records.subscriptions().create(content(status), "alice").await;
            let wrong = wrong.unwrap_err().to_string();
            assert!(wrong.contains("expected requested or active"), "{wrong}");
        }
        let backwards = SubscriptionContent {
            to_date: Some(NOON),
            from_date: NOON.plus_micros(1),
            ..content(Active)
        };
        let wrong = records.subscriptions().create(backwards, "alice").await.unwrap_err();
        assert!(matches!(wrong, ChangeError::Invalid(field) if field.field() == "from_date"));
        let endless = SubscriptionContent { to_date: None, ..content(Active) };
        let created = records.subscriptions().create(endless.clone(), "alice").await.unwrap();
        assert_eq!(created.content, endless);
        assert_eq!(records.subscriptions().read(created.id).await.unwrap(), Some(created.clone()));
        let record = records.read(created.record_id.unwrap()).await.unwrap().unwrap();
        assert_eq!(record.content.limits, tier("", 100).limits);
        assert_eq!(record.content.from_date, NOON);
    })
    .await;
}

/// A limit of 0 would reject calls here, because the other record has no limit per hour.
#[tokio::test]
async fn a_suspended_subscription_leaves_the_grants_of_other_records_as_they_are() {
    for meaning in [ZeroMeans::Blocked, ZeroMeans::Unlimited] {
        let defaults = limits([-1, -1, 0, -1, -1, -1]);
        let connect = Database::memory();
        let records =
            connect.connect_with(|options| options.zero_means(meaning).defaults(defaults)).await;
        records.tiers().create(tier("gold", 100), "alice").await.unwrap();
        let source = patient(&records).poll_every(NEVER).start();
        let alone = policy_text(&source, "abc").await;
        subscription(&records, Suspended).await;
        assert_eq!(policy_text(&source, "abc").await, alone, "as without a subscription");
        let mut other = per_hour("abc", -1);
        other.limits = limits([-1, 7, -1, -1, -1, -1]).into();
        records.create(other, "alice").await.unwrap();
        assert_eq!(policy_text(&source, "abc").await, "minute=7/minute");
    }
}

#[tokio::test]
async fn dates_bind_the_record_and_are_kept_while_suspended() {
    on_every_database(async |database: Database| {
        let clock = Arc::new(ManualClock::at(NOON));
        let records = database.connect_with(|options| options.clock(clock.clone())).await;
        records.tiers().create(tier("gold", 100), "alice").await.unwrap();
        let source = patient(&records).poll_every(NEVER).start();
        let created = subscription(&records, Active).await;
        let subscriptions = records.subscriptions();
        let (from, to) = (NOON.plus_micros(10), Some(NOON.plus_micros(20)));
        let moved = subscriptions
            .set_dates(created.id, from, to, None, created.revision, "bob")
            .await
            .unwrap();
        for (after, text) in [(9, "-"), (10, "hour=100/hour"), (20, "hour=100/hour"), (21, "-")] {
            clock.set(NOON.plus_micros(after));
            assert_eq!(policy_text(&source, "abc").await, text, "{after}");
        }
        // The subscription is suspended before it begins.
        clock.set(NOON);
        let set = subscriptions.set_status(moved.id, Suspended, moved.revision, "bob");
        let suspended = set.await.unwrap();
        let later = NOON.plus_micros(30);
        let set =
            subscriptions.set_dates(moved.id, NOON, Some(later), None, suspended.revision, "bob");
        let suspended = set.await.unwrap();
        for after in [0, 10, 20, 30] {
            clock.set(NOON.plus_micros(after));
            assert_eq!(policy_text(&source, "abc").await, "-", "{after}");
        }
        let set = subscriptions.set_status(moved.id, Active, suspended.revision, "bob");
        let active = set.await.unwrap();
        assert_eq!(policy_text(&source, "abc").await, "hour=100/hour", "until {:?}", clock.now());
        assert_eq!(active.record_id, created.record_id);
        let set = subscriptions.set_status(moved.id, Cancelled, active.revision, "bob");
        let cancelled = set.await.unwrap();
        let late =
            subscriptions.set_dates(moved.id, NOON, None, None, cancelled.revision, "bob").await;
        assert!(late.unwrap_err().to_string().contains("cancelled"));
    })
    .await;
}

#[tokio::test]
async fn a_change_of_the_tier_reaches_the_records_of_its_subscriptions() {
    on_every_database(async |database: Database| {
        let records = database.connect().await;
        let gold = records.tiers().create(tier("gold", 100), "alice").await.unwrap();
        records.create(per_hour("abc", 3), "alice").await.unwrap();
        let source = patient(&records).poll_every(NEVER).start();
        let active = subscription(&records, Active).await;
        assert_eq!(policy_text(&source, "abc").await, "hour=103/hour");
        let uses = records.tiers().uses("gold").await.unwrap();
        assert_eq!((uses.members, uses.subscriptions), (0, 1));
        let gold = records.tiers().update(tier("gold", 200), gold.revision, "bob").await.unwrap();
        assert_eq!(policy_text(&source, "abc").await, "hour=203/hour");
        let set = records.subscriptions().set_status(active.id, Suspended, active.revision, "bob");
        let suspended = set.await.unwrap();
        let gold = records.tiers().update(tier("gold", 300), gold.revision, "bob").await.unwrap();
        assert_eq!(policy_text(&source, "abc").await, "hour=3/hour");
        let set = records.subscriptions().set_status(active.id, Active, suspended.revision, "bob");
        let active = set.await.unwrap();
        assert_eq!(policy_text(&source, "abc").await, "hour=303/hour");

        let used = records.tiers().delete("gold", gold.revision, "bob").await.unwrap_err();
        assert!(used.to_string().contains("without subscriptions: cancel them"), "{used}");
        let set = records.subscriptions().set_status(active.id, Cancelled, active.revision, "bob");
        set.await.unwrap();
        records.tiers().delete("gold", gold.revision, "bob").await.unwrap();
        assert_eq!(policy_text(&source, "abc").await, "hour=3/hour");
    })
    .await;
}

#[tokio::test]
async fn months_on_the_clock_begin_on_the_billing_day_of_each_subscription() {
    on_every_database(async |database: Database| {
        let records = database.connect().await;
        let gold =
            |limits: &str| TierContent { name: "gold".into(), limits: limits.parse().unwrap() };
        let tier = gold("9/second, 50/month, 500/month:clock, 5/month:clock:offset=1h");
        let tier = records.tiers().create(tier, "alice").await.unwrap();
        let source = patient(&records).poll_every(NEVER).start();
        let (subscriptions, days) = (records.subscriptions(), [None, Some(1), Some(2), Some(28)]);
        let mut created = Vec::new();
        for (index, billing_day) in days.into_iter().enumerate() {
            let content = SubscriptionContent::new(&format!("of-{index}"), "gold", NOON);
            let content = SubscriptionContent { status: Active, billing_day, ..content };
            created.push(subscriptions.create(content, "alice").await.unwrap());
        }
        let limits = async |of: &Subscription| {
            let consumer = of.content.consumer_id.clone();
            let policy = super::policy(&source, &consumer).await.unwrap();
            let limits = policy.limits().iter().map(|named| named.limit().to_string());
            limits.filter(|limit| limit.contains(":clock")).collect::<Vec<_>>().join(", ")
        };
        for (subscription, month) in created.iter().zip(["", "", ":offset=day", ":offset=27days"]) {
            let expected = format!("500/month:clock{month}, 5/month:clock:offset=hour");
            assert_eq!(limits(subscription).await, expected);
        }
        let larger = gold("600/month:clock, 50/day:clock");
        records.tiers().update(larger, tier.revision, "alice").await.unwrap();
        for (subscription, month) in created.iter().zip(["", "", ":offset=day", ":offset=27days"]) {
            let expected = format!("50/day:clock, 600/month:clock{month}");
            assert_eq!(limits(subscription).await, expected);
        }
        // Two months of the tier begin on the same day for one subscription: the smaller one decides.
        let tier = records.tiers().read("gold").await.unwrap().unwrap();
        let both = gold("600/month:clock, 50/day:clock, 7/month:clock:offset=27d");
        records.tiers().update(both, tier.revision, "alice").await.unwrap();
        let last = created.pop().unwrap();
        assert_eq!(limits(&last).await, "50/day:clock, 7/month:clock:offset=27days");
        let moved = subscriptions.set_dates(last.id, NOON, None, Some(15), 1, "bob").await.unwrap();
        assert_eq!(moved.content.billing_day, Some(15));
        let expected = "50/day:clock, 7/month:clock:offset=27days, 600/month:clock:offset=2weeks";
        assert_eq!(limits(&last).await, expected);
        let query =
            HistoryQuery { owner: Some(last.content.consumer_id), ..HistoryQuery::default() };
        let history = subscriptions.history(&query).await.unwrap();
        let days = history.iter().map(|change| change.after.as_ref().unwrap().billing_day);
        assert_eq!(days.collect::<Vec<_>>(), [Some(15), Some(28)]);
        for day in [0, 29, 255] {
            let wrong = subscriptions.set_dates(last.id, NOON, None, Some(day), 2, "bob").await;
            let expected =
                format!("billing_day \"{day}\": expected a day of the month from 1 to 28");
            assert_eq!(wrong.unwrap_err().to_string(), expected);
        }
    })
    .await;
}

#[tokio::test]
async fn a_change_of_a_subscription_or_its_tier_reaches_other_instances() {
    for database in Database::shared() {
        let (one, other) = (database.connect().await, database.connect().await);
        let source = patient(&other).start();
        let gold = one.tiers().create(tier("gold", 5), "alice").await.unwrap();
        assert_eq!(policy_text(&source, "abc").await, "-");
        let active = subscription(&one, Active).await;
        until_policy(&source, "abc", "hour=5/hour").await;
        one.tiers().update(tier("gold", 6), gold.revision, "alice").await.unwrap();
        until_policy(&source, "abc", "hour=6/hour").await;
        let subscriptions = one.subscriptions();
        subscriptions.set_status(active.id, Suspended, active.revision, "bob").await.unwrap();
        until_policy(&source, "abc", "-").await;
    }
}

#[tokio::test]
async fn only_its_subscription_changes_an_owned_record() {
    on_every_database(async |database: Database| {
        let records = database.connect().await;
        records.tiers().create(tier("gold", 100), "alice").await.unwrap();
        let active = subscription(&records, Active).await;
        let id = active.record_id.unwrap();
        let owned = records.read(id).await.unwrap().unwrap();
        for refused in [
            records.update(id, per_hour("abc", 1), owned.revision, "eve").await.unwrap_err(),
            records.update_limits(id, per_hour("abc", 1), owned.revision, "eve").await.unwrap_err(),
            records.delete(id, owned.revision, "eve").await.unwrap_err(),
        ] {
            let text = refused.to_string();
            assert!(text.contains("change the subscription instead"), "{text}");
        }
        assert_eq!(records.read(id).await.unwrap(), Some(owned));
        let by_hand = records.upsert(per_hour("abc", 1), 0, "alice").await.unwrap();
        assert_ne!(by_hand.id, id, "an upsert does not find the record of the subscription");
        assert_eq!(records_of_abc(&records).await, 2);
    })
    .await;
}

#[tokio::test]
async fn a_change_of_another_revision_conflicts_and_one_of_ten_concurrent_changes_wins() {
    on_every_database(async |database: Database| {
        let records = database.connect().await;
        records.tiers().create(tier("gold", 100), "alice").await.unwrap();
        let requested = subscription(&records, Requested).await;
        let subscriptions = records.subscriptions();
        let changes = (0..10).map(|_| subscriptions.set_status(requested.id, Active, 1, "bob"));
        let results = futures::future::join_all(changes).await;
        let won = results.iter().filter(|result| result.is_ok()).count();
        assert_eq!((won, records_of_abc(&records).await), (1, 1));
        for lost in results.into_iter().filter_map(Result::err) {
            let ChangeError::Conflict { current } = lost else { panic!("{lost}") };
            assert_eq!((current.revision, current.content.status), (2, Active));
        }
        let late =
            subscriptions.set_dates(requested.id, NOON, None, None, 1, "carol").await.unwrap_err();
        assert!(matches!(late, ChangeError::Conflict { .. }), "{late}");
    })
    .await;
}

#[tokio::test]
async fn an_author_without_the_right_to_block_cannot_end_the_only_grant() {
    let defaults = limits([0, 0, 0, 0, 0, 0]);
    let records = Database::memory().connect_with(|options| options.defaults(defaults)).await;
    records.tiers().create(tier("gold", 100), "alice").await.unwrap();
    let active = subscription(&records, Active).await;
    let carol = Author::new("carol").may_block(false);
    let set = records.subscriptions().set_status(active.id, Cancelled, active.revision, carol);
    assert!(matches!(set.await.unwrap_err(), ChangeError::MayNotBlock));
}

#[tokio::test]
async fn subscriptions_are_listed_in_pages_and_their_changes_are_in_the_history() {
    on_every_database(async |database: Database| {
        let records = database.connect().await;
        records.tiers().create(tier("gold", 100), "alice").await.unwrap();
        records.tiers().create(tier("free", 1), "alice").await.unwrap();
        for consumer in ["a", "b", "b", "c"] {
            let content = SubscriptionContent::new(consumer, "free", NOON);
            records.subscriptions().create(content, "alice").await.unwrap();
        }
        let active = subscription(&records, Active).await;
        let all = SubscriptionQuery::default();
        for (query, count) in [
            (all.clone(), 5),
            (SubscriptionQuery { consumer: Some("b".into()), ..all.clone() }, 2),
            (SubscriptionQuery { tier: Some("free".into()), ..all.clone() }, 4),
            (SubscriptionQuery { status: Some(Active), ..all.clone() }, 1),
            (SubscriptionQuery { consumer: Some("\0".into()), ..all.clone() }, 0),
        ] {
            let mut pages = Vec::new();
            let mut after = None;
            loop {
                let query = SubscriptionQuery { after, limit: 2, ..query.clone() };
                pages.push(records.subscriptions().list(&query).await.unwrap());
                after = pages.last().and_then(|page| page.next);
                if after.is_none() {
                    break;
                }
            }
            let found: Vec<_> = pages.iter().flat_map(|page| &page.subscriptions).collect();
            assert_eq!(found.len(), count, "{query:?}");
            assert_eq!(pages.len(), count.div_ceil(2).max(1), "no page is empty");
            assert!(found.is_sorted_by_key(|one| one.id.to_string()));
            // The same pages in the other direction.
            assert_eq!(pages[0].previous, None);
            for (page, following) in pages.iter().zip(&pages[1..]) {
                let before = following.previous;
                let query = SubscriptionQuery { before, limit: 2, ..query.clone() };
                let back = records.subscriptions().list(&query).await.unwrap();
                assert_eq!(
                    (&back.subscriptions, back.previous),
                    (&page.subscriptions, page.previous)
                );
            }
        }
        let item = Some(active.id.to_string());
        let query = HistoryQuery { owner: Some("abc".into()), item, ..HistoryQuery::default() };
        let history = records.subscriptions().history(&query).await.unwrap();
        let steps: Vec<_> = history
            .iter()
            .map(|change| {
                let status = |side: &Option<SubscriptionContent>| side.as_ref().map(|is| is.status);
                (&*change.by, status(&change.before), status(&change.after))
            })
            .collect();
        assert_eq!(
            steps,
            [("bob", Some(Requested), Some(Active)), ("alice", None, Some(Requested))]
        );
        assert_eq!(history[0].after.as_ref(), Some(&active.content));
    })
    .await;
}
