//! Records and resources: storing, listing, invalid values and the history.

use std::sync::Arc;

use rl_core::time::{Clock, ManualClock};
use rl_core::{FailureKind, MAX_UNITS, Realm};
use rl_records::{
    ChangeError, HistoryQuery, Limits, Permits, RecordContent, RecordQuery, Records,
    ResourceLimitContent,
};

use super::{Database, HOUR, NOON, limits, on_every_database, per_hour};

fn whole(consumer: &str) -> RecordContent {
    RecordContent {
        api_name: Some("getBanks".into()),
        api_version: Some("v6.0.0".into()),
        bank_id: Some("gh.29.uk".into()),
        ..RecordContent::new(
            consumer,
            NOON,
            NOON.plus_micros(HOUR),
            limits([1, 20, 300, 4_000, -1, 0]),
        )
    }
}

#[tokio::test]
async fn a_record_is_created_read_changed_and_deleted() {
    on_every_database(async |database: Database| {
        let clock = Arc::new(ManualClock::at(NOON));
        let records = database.connect_with(|options| options.clock(clock.clone())).await;
        let created = records.create(whole("abc"), "alice").await.unwrap();
        assert_eq!(created.content, whole("abc"));
        assert_eq!((&*created.created_by, &*created.updated_by), ("alice", "alice"));
        assert_eq!((created.created_at, created.updated_at, created.revision), (NOON, NOON, 1));
        assert_eq!(records.read(created.id).await.unwrap(), Some(created.clone()));

        clock.set(NOON.plus_micros(1));
        let mut content = whole("abc");
        content.api_name = Some(String::new());
        content.limits = Limits::UNLIMITED;
        content.to_date = NOON;
        let changed = records.update(created.id, content, 1, "bob").await.unwrap();
        assert_eq!(changed.content.api_name, None, "an empty text is none");
        assert_eq!((&*changed.created_by, &*changed.updated_by), ("alice", "bob"));
        assert_eq!((changed.created_at, changed.updated_at), (NOON, clock.now()));
        assert_eq!(records.read(created.id).await.unwrap(), Some(changed.clone()));

        assert_eq!(records.delete(created.id, 2, "carol").await.unwrap(), changed);
        assert_eq!(records.read(created.id).await.unwrap(), None);
        let gone = records.delete(created.id, 2, "carol").await.unwrap_err();
        assert!(matches!(gone, ChangeError::NotFound), "{gone:?}");
        let gone = records.update(created.id, whole("abc"), 2, "carol").await.unwrap_err();
        assert!(matches!(gone, ChangeError::NotFound), "{gone:?}");
    })
    .await;
}

#[tokio::test]
async fn an_invalid_field_is_named_and_nothing_is_stored() {
    on_every_database(async |database: Database| {
        let records = database.connect().await;
        let stored = records.create(per_hour("abc", MAX_UNITS.cast_signed()), "al").await.unwrap();
        let ok = || per_hour("abc", -1);
        #[rustfmt::skip]
        let cases = [
            ("consumer_id", RecordContent { subject_id: String::new(), ..ok() }, "\"\": expected 1 to 250 bytes"),
            ("consumer_id", RecordContent { subject_id: "ä".repeat(126), ..ok() }, "expected 1 to 250 bytes"),
            ("consumer_id", RecordContent { subject_id: "a\0b".into(), ..ok() }, "without control characters"),
            ("api_name", RecordContent { api_name: Some("a\nb".into()), ..ok() }, "without control characters"),
            ("bank_id", RecordContent { bank_id: Some("a".repeat(251)), ..ok() }, "expected 1 to 250 bytes"),
            ("rule", RecordContent { rule: Some("a b".into()), ..ok() }, "\"a b\": expected the name of a rule: 1 to 64 characters"),
            ("subject", RecordContent { realm: Realm::Key, ..ok() }, "\"abc\": expected the keyed hash of a key: 32 hexadecimal digits"),
            ("subject", RecordContent { realm: Realm::Global, ..ok() }, "\"abc\": expected \"-\", because"),
            ("subject", RecordContent { realm: Realm::Ip, subject_id: "a\nb".into(), ..ok() }, "without control characters"),
            ("from_date", RecordContent { to_date: NOON, from_date: NOON.plus_micros(1), ..ok() }, "not after to_date"),
            ("to_date", RecordContent { to_date: NOON.plus_micros(u64::MAX), ..ok() }, "before the year 10000"),
            ("limits", per_hour("abc", 1), "together with the records that overlap"),
        ];
        for (field, content, words) in cases {
            for error in [
                records.create(content.clone(), "alice").await.unwrap_err(),
                records.update(stored.id, content, 1, "alice").await.err().unwrap_or_else(|| {
                    // The update of the last case succeeds: it replaces the stored record, so the
                    // sum does not overflow. `NotFound` represents this success.
                    ChangeError::NotFound
                }),
            ] {
                match error {
                    ChangeError::Invalid(error) => {
                        assert_eq!(error.field(), field);
                        assert!(error.to_string().contains(words), "{error}");
                    }
                    ChangeError::NotFound => assert_eq!(field, "limits"),
                    error => panic!("{field}: {error}"),
                }
            }
        }
        let error = records.create(ok(), "").await.unwrap_err();
        assert!(error.to_string().starts_with("created_by \"\": expected"), "{error}");
        let other = records.update(stored.id, per_hour("other", 1), 2, "al").await.unwrap_err();
        assert!(other.to_string().starts_with("consumer_id \"other\": expected"), "{other}");
        let all = records.list(&RecordQuery::default()).await.unwrap().records;
        assert_eq!(all.len(), 1);
        assert_eq!(records.history(&HistoryQuery::default()).await.unwrap().len(), 2);
    })
    .await;
}

#[tokio::test]
async fn hostile_text_is_returned_unchanged() {
    on_every_database(async |database: Database| {
        let records = database.connect().await;
        let long = "ü".repeat(125);
        let texts = [
            "'; DROP TABLE rl_records; --",
            "\" OR 1=1",
            "<script>alert(1)</script>",
            "$1 ?",
            "%",
            "_",
            "!",
            "\\",
            "NULL",
            "a}{b",
            "👩‍👩‍👧",
            "\u{202e}abc",
            &long,
        ];
        for text in texts {
            let content = RecordContent {
                api_name: Some(text.into()),
                bank_id: Some(text.into()),
                ..per_hour(text, 1)
            };
            let stored = records.create(content.clone(), text).await.unwrap();
            let read = records.read(stored.id).await.unwrap().unwrap();
            assert_eq!((read.content, read.created_by), (content, text.to_owned()));
            let found = records.active_limits(text, NOON).await.unwrap();
            assert_eq!(found.considered_ids().collect::<Vec<_>>(), [stored.id], "{text}");
            for query in [
                RecordQuery::of_consumer(text),
                RecordQuery { search: Some(text.into()), ..RecordQuery::default() },
            ] {
                let found = records.list(&query).await.unwrap().records;
                assert!(found.iter().any(|record| record.id == stored.id), "{query:?}");
                let has_text = |id: &str| id.starts_with(text);
                assert!(found.iter().all(|found| has_text(&found.content.subject_id)), "{text}");
            }
        }
        for text in ["\0", "a\0", "' OR ''='"] {
            let query = RecordQuery { search: Some(text.into()), ..RecordQuery::default() };
            assert!(records.list(&query).await.unwrap().records.is_empty(), "{text:?}");
            assert!(records.active_limits(text, NOON).await.unwrap().is_default());
            assert_eq!(records.resources().read(text).await.unwrap(), None);
        }
    })
    .await;
}

#[tokio::test]
async fn the_list_has_pages_and_can_be_searched() {
    on_every_database(async |database: Database| {
        let records = database.connect().await;
        for number in (0..25_u64).rev() {
            let consumer = format!("Shop-{}", number / 5);
            let from = NOON.plus_micros((number % 5) * HOUR);
            let to = from.plus_micros(HOUR - 1);
            let content = RecordContent::new(&consumer, from, to, limits([1, -1, -1, -1, -1, -1]));
            records.create(content, "alice").await.unwrap();
        }
        let mut query = RecordQuery { limit: 10, ..RecordQuery::default() };
        let mut seen = Vec::new();
        loop {
            let page = records.list(&query).await.unwrap();
            assert!(page.records.len() <= 10);
            seen.extend(page.records);
            let Some(next) = page.next else { break };
            // Converts the cursor to text and back, and deletes the record to which it points. The
            // list must continue all the same.
            query.after = Some(next.to_string().parse().unwrap());
            if seen.len() == 10 {
                records.delete(seen[9].id, 1, "alice").await.unwrap();
            }
        }
        assert_eq!(seen.len(), 25);
        let order = |record: &rl_records::Record| {
            (record.content.subject_id.clone(), record.content.from_date)
        };
        assert!(seen.is_sorted_by_key(order));

        let count = async |query: RecordQuery| records.list(&query).await.unwrap().records.len();
        let all = RecordQuery::default;
        assert_eq!(count(RecordQuery { search: Some("Shop-3".into()), ..all() }).await, 5);
        for other in ["shop-3", "hop-3", "Shop_3", "Shop-%"] {
            assert_eq!(
                count(RecordQuery { search: Some(other.into()), ..all() }).await,
                0,
                "{other}"
            );
        }
        assert_eq!(count(RecordQuery::of_consumer("Shop-3")).await, 5);
        assert_eq!(count(RecordQuery::of_consumer("shop-3")).await, 0);
        let second_hour = Some(NOON.plus_micros(HOUR));
        assert_eq!(count(RecordQuery { active_at: second_hour, ..all() }).await, 5);
        assert_eq!(count(RecordQuery { limit: 0, ..all() }).await, 1);
    })
    .await;
}

/// A page begins after the last id of the page before it. So every database must sort as Rust does,
/// by bytes, whatever its locale is.
#[tokio::test]
async fn text_is_ordered_by_bytes_on_every_database() {
    let order = ["-", "B", "_", "a", "ä"];
    on_every_database(async |database: Database| {
        let records = database.connect().await;
        for name in ["a", "B", "_", "ä", "-"] {
            records.create(per_hour(name, 1), "alice").await.unwrap();
            let limits = Limits::UNLIMITED;
            let tier = rl_records::TierContent { name: name.into(), limits };
            records.tiers().create(tier, "alice").await.unwrap();
            let (name, apps) = (name.into(), vec!["shop".into()]);
            let resource = ResourceLimitContent { name, apps, limits: Limits::UNLIMITED };
            records.resources().create(resource, "alice").await.unwrap();
        }
        let (mut after, mut seen) = (None, Vec::new());
        loop {
            let query = RecordQuery { after, limit: 1, ..RecordQuery::default() };
            let page = records.list(&query).await.unwrap();
            seen.extend(page.records.into_iter().map(|record| record.content.subject_id));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(seen, order, "records");
        let mut seen: Vec<String> = Vec::new();
        while let Some(tier) =
            records.tiers().list(seen.last().map(|name| &**name), 1).await.unwrap().pop()
        {
            seen.push(tier.content.name);
        }
        assert_eq!(seen, order, "tiers");
        for of in [None, Some("shop")] {
            let mut seen: Vec<String> = Vec::new();
            loop {
                let after = seen.last().map(|name| &**name);
                let page = match of {
                    None => records.resources().list(after, 1).await,
                    Some(app) => {
                        records.resources().list_for_applications(&[app.into()], after, 1).await
                    }
                };
                let Some(found) = page.unwrap().pop() else { break };
                seen.push(found.content.name);
            }
            assert_eq!(seen, order, "resources");
        }
        let query = rl_records::ConsumerQuery::default();
        let page = records.consumers(&query, NOON).await.unwrap();
        let seen: Vec<_> = page.consumers.iter().map(|one| &*one.consumer_id).collect();
        assert_eq!(seen, order, "consumers");
    })
    .await;
}

#[tokio::test]
async fn the_history_has_the_author_the_time_and_the_content_of_every_change() {
    on_every_database(async |database: Database| {
        let clock = Arc::new(ManualClock::at(NOON));
        let records = database.connect_with(|options| options.clock(clock.clone())).await;
        let record = records.create(whole("abc"), "alice").await.unwrap();
        clock.set(NOON.plus_micros(7));
        records.update(record.id, per_hour("abc", 5), 1, "bob").await.unwrap();
        records.create(per_hour("other", 1), "alice").await.unwrap();
        records.delete(record.id, 2, "carol").await.unwrap();

        let owner = Some("abc".to_owned());
        let query = HistoryQuery { owner: owner.clone(), ..HistoryQuery::default() };
        let history = records.history(&query).await.unwrap();
        let [deleted, updated, created] = &history[..] else { panic!("{history:?}") };
        assert_eq!((&created.before, &created.after), (&None, &Some(whole("abc"))));
        assert_eq!(
            (&updated.before, &updated.after),
            (&Some(whole("abc")), &Some(per_hour("abc", 5)))
        );
        assert_eq!((&deleted.before, &deleted.after), (&Some(per_hour("abc", 5)), &None));
        assert_eq!([&*created.by, &*updated.by, &*deleted.by], ["alice", "bob", "carol"]);
        assert_eq!([created.at, updated.at], [NOON, NOON.plus_micros(7)]);
        assert!(history.iter().all(|change| change.item == record.id.to_string()));

        let before = Some(updated.number);
        let older = HistoryQuery { owner, before, ..HistoryQuery::default() };
        assert_eq!(&records.history(&older).await.unwrap()[..], std::slice::from_ref(created));
        let item = Some(record.id.to_string());
        let of_one = HistoryQuery { item, limit: 2, ..HistoryQuery::default() };
        assert_eq!(records.history(&of_one).await.unwrap(), [deleted.clone(), updated.clone()]);
        assert!(records.resources().history(&HistoryQuery::default()).await.unwrap().is_empty());
    })
    .await;
}

#[tokio::test]
async fn one_of_concurrent_edits_succeeds_and_the_others_conflict() {
    on_every_database(async |database: Database| {
        let records = database.connect().await;
        let other = if database.is_shared { database.connect().await } else { records.clone() };
        let record = records.create(per_hour("abc", 1), "alice").await.unwrap();
        let edits = (0..10_i64).map(|number| {
            let records = if number % 2 == 0 { records.clone() } else { other.clone() };
            tokio::spawn(async move {
                records.update(record.id, per_hour("abc", 100 + number), 1, "bob").await
            })
        });
        let edits: Vec<_> = edits.collect();
        let (mut won, mut lost) = (Vec::new(), Vec::new());
        for edit in edits {
            match edit.await.unwrap() {
                Ok(record) => won.push(record),
                Err(ChangeError::Conflict { current }) => lost.push(*current),
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!((won.len(), lost.len()), (1, 9));
        assert!(lost.iter().all(|current| *current == won[0]), "a conflict has the current record");
        assert_eq!(records.read(record.id).await.unwrap(), won.pop());
        let late = records.delete(record.id, 1, "carol").await.unwrap_err();
        assert!(matches!(late, ChangeError::Conflict { .. }), "{late:?}");
        assert_eq!(records.history(&HistoryQuery::default()).await.unwrap().len(), 2);
    })
    .await;
}

#[tokio::test]
async fn limits_of_resources_have_revisions_and_a_history() {
    on_every_database(async |database: Database| {
        let records = database.connect().await;
        let content = |rate| ResourceLimitContent {
            name: "payments".into(),
            apps: vec!["shop".into(), "Shop 2".into()],
            limits: Permits { max_permits: 50, rate }.limits().unwrap(),
        };
        let created = records.resources().create(content(10), "alice").await.unwrap();
        let again = records.resources().create(content(11), "bob").await.unwrap_err();
        let ChangeError::Conflict { current } = again else { panic!("{again}") };
        assert_eq!(*current, created);
        let changed = records.resources().update(content(11), created.revision, "bob").await;
        let changed = changed.unwrap();
        assert!(changed.revision > created.revision);
        assert_eq!((&*changed.created_by, &*changed.updated_by), ("alice", "bob"));
        let late =
            records.resources().update(content(12), created.revision, "carol").await.unwrap_err();
        assert!(matches!(late, ChangeError::Conflict { .. }));
        assert_eq!(records.resources().read("payments").await.unwrap(), Some(changed.clone()));
        assert_eq!(records.resources().read("payment").await.unwrap(), None);
        assert_eq!(
            records.resources().list(None, 10).await.unwrap()[..],
            std::slice::from_ref(&changed)[..]
        );
        assert_eq!(records.resources().list(Some("payments"), 10).await.unwrap(), []);

        let policy = changed.content.policy_for("Shop 2").unwrap();
        assert_eq!(policy.to_string(), "resource=11/second:token-bucket:capacity=50");
        for app in ["", "sho", "shop2", "SHOP", "shop\n"] {
            assert!(changed.content.policy_for(app).is_none(), "{app:?}");
        }
        let wrong = ResourceLimitContent { apps: vec!["a\nb".into()], ..content(1) };
        let wrong = records.resources().update(wrong, changed.revision, "bob").await.unwrap_err();
        assert!(wrong.to_string().starts_with("apps \"a\\nb\": expected"), "{wrong}");
        let several = "100/day, 5/second:gcra".parse::<Limits>().unwrap();
        let several = ResourceLimitContent { limits: several, ..content(11) };
        let updated = records.resources().update(several.clone(), changed.revision, "bob").await;
        let stored = records.resources().read("payments").await.unwrap().unwrap();
        assert_eq!((&stored, &stored.content), (&updated.unwrap(), &several));
        let policy = several.policy_for("shop").unwrap().to_string();
        assert_eq!(policy, "second=5/second:gcra, day=100/day");
        let changed = records.resources().update(content(11), stored.revision, "bob").await;
        let changed = changed.unwrap();

        records.resources().delete("payments", changed.revision, "carol").await.unwrap();
        let history = records.resources().history(&HistoryQuery::default()).await.unwrap();
        assert_eq!(history.len(), 5);
        assert_eq!((&*history[0].by, history[0].after.is_none()), ("carol", true));
        assert_eq!(
            (&history[1].before, &history[2].after),
            (&Some(several.clone()), &Some(several))
        );
        assert_eq!(history[3].before, Some(content(10)));

        // A new limit with the name of a deleted one must not reuse a revision of the deleted one.
        let other = records.resources().create(content(20), "dora").await.unwrap();
        for seen in [created.revision, changed.revision] {
            let late = records.resources().update(content(12), seen, "carol").await.unwrap_err();
            assert!(matches!(late, ChangeError::Conflict { .. }), "{late}");
            let late = records.resources().delete("payments", seen, "carol").await.unwrap_err();
            assert!(matches!(late, ChangeError::Conflict { .. }), "{late}");
        }
        assert_eq!(records.resources().read("payments").await.unwrap(), Some(other));
    })
    .await;
}

#[tokio::test]
async fn stored_records_are_visible_to_concurrent_and_later_connections() {
    on_every_database(async |database: Database| {
        if !database.is_shared {
            return;
        }
        let starting = (0..4).map(|_| database.connect());
        let handles = futures::future::join_all(starting).await;
        let record = handles[0].create(whole("abc"), "alice").await.unwrap();
        assert_eq!(handles[3].read(record.id).await.unwrap(), Some(record.clone()));
        for handle in handles {
            handle.close().await;
            let closed = handle.read(record.id).await.unwrap_err();
            assert_eq!(closed.kind(), FailureKind::Unavailable);
        }
        assert_eq!(database.connect().await.read(record.id).await.unwrap(), Some(record));
    })
    .await;
}

#[tokio::test]
async fn an_invalid_url_is_an_error_without_the_password() {
    for (url, kind) in [
        ("oracle://root:hunter2@localhost/db", FailureKind::Unsupported),
        ("", FailureKind::Unsupported),
        ("sqlite:///no/such/folder/hunter2.db", FailureKind::Unavailable),
        ("postgres://rl:hunter2@[::1/db", FailureKind::Protocol),
        ("mysql://rl:hunter2@[::1/db", FailureKind::Protocol),
        ("mariadb://rl:hunter2@[::1/db", FailureKind::Protocol),
    ] {
        let error = Records::connect(url).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{url}: {error:?}");
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    }
    let records = Records::connect("sqlite::memory:?cache=shared").await.unwrap();
    assert!(!format!("{records:?}").contains("memory"));
}

#[tokio::test]
async fn a_search_in_all_realms_has_pages() {
    on_every_database(async |database: Database| {
        let records = database.connect().await;
        let team = Realm::custom("team").unwrap();
        for (realm, id) in [
            (Realm::User, "shop"),
            (Realm::User, "a shop"),
            (team, "shop-1"),
            (Realm::Consumer, "shop-2"),
            (Realm::Consumer, "shop"),
            (Realm::Consumer, "shoq"),
        ] {
            let content = RecordContent { realm, ..per_hour(id, 1) };
            records.create(content, "alice").await.unwrap();
        }
        for limit in 1..6 {
            let search = Some("shop".to_owned());
            let mut query = RecordQuery { search, limit, ..RecordQuery::default() };
            let mut found = Vec::new();
            loop {
                let page = records.list(&query).await.unwrap();
                assert!(page.records.len() <= limit as usize);
                found.extend(page.records.into_iter().map(|record| {
                    format!("{}/{}", record.content.realm.as_str(), record.content.subject_id)
                }));
                query.after = page.next;
                if query.after.is_none() {
                    break;
                }
            }
            assert_eq!(found, ["consumer/shop", "consumer/shop-2", "team/shop-1", "user/shop"]);
        }
    })
    .await;
}
