//! The combined limits of the records of a consumer, and their enforcement.

use std::any::Any;
use std::net::IpAddr;
use std::sync::Arc;

use rl_core::key::{Identified, KeyExtractor, KeySecret, RequestInfo, Route};
use rl_core::rules::{Rule, Rules, RulesFile};
use rl_core::source::PolicySource;
use rl_core::time::{Clock, ManualClock, Timestamp};
use rl_core::{FailureKind, Limit, OnFailure, Policy, RateLimiter, Realm, Subject};
use rl_records::{
    Permits, RecordContent, Records, RecordsOptions, ResourceLimitContent, ZeroMeans,
};

use super::{
    Database, GIVE_UP, HOUR, NOON, limits, on_every_database, patient, per_hour, policy_text,
};

async fn add(
    records: &Records,
    from: Timestamp,
    to: Timestamp,
    numbers: [i64; 6],
) -> rl_records::Record {
    records.create(RecordContent::new("abc", from, to, limits(numbers)), "alice").await.unwrap()
}

#[tokio::test]
async fn records_that_overlap_add_up_from_edge_to_edge() {
    on_every_database(async |database: Database| {
        let records = database.connect().await;
        let at = |micros: u64| NOON.plus_micros(micros);
        let one = add(&records, at(10), at(20), [10, 100, 1_000, 5_000, -1, -1]).await;
        let two = add(&records, at(15), at(30), [5, 50, 500, 2_500, -1, -1]).await;
        add(&records, at(40), at(40), [0, 0, -1, -1, -1, -1]).await;
        records.create(per_hour("another consumer", 1), "alice").await.unwrap();
        #[rustfmt::skip]
        let table: [(u64, &[_], [i64; 6]); 10] = [
            (9,  &[],               [-1; 6]),
            (10, &[one.id],         [10, 100, 1_000, 5_000, -1, -1]),
            (14, &[one.id],         [10, 100, 1_000, 5_000, -1, -1]),
            (15, &[one.id, two.id], [15, 150, 1_500, 7_500, -1, -1]),
            (20, &[one.id, two.id], [15, 150, 1_500, 7_500, -1, -1]),
            (21, &[two.id],         [5, 50, 500, 2_500, -1, -1]),
            (30, &[two.id],         [5, 50, 500, 2_500, -1, -1]),
            (31, &[],               [-1; 6]),
            (39, &[],               [-1; 6]),
            (41, &[],               [-1; 6]),
        ];
        for (now, ids, numbers) in table {
            let active = records.active_limits("abc", at(now)).await.unwrap();
            assert_eq!(active.considered_ids().collect::<Vec<_>>(), ids, "{now}");
            assert_eq!(active.limits().call_limits().unwrap().numbers(), numbers, "{now}");
            assert_eq!(active.is_default(), ids.is_empty());
        }
        let active = records.active_limits("abc", at(40)).await.unwrap();
        assert_eq!(active.limits().call_limits().unwrap().numbers(), [0, 0, -1, -1, -1, -1]);
        assert!(active.policy().is_some());

        let both = records.active_limits("abc", at(15)).await.unwrap();
        let why: Vec<_> =
            both.contributions().iter().map(|record| record.limits.as_slice()[1]).collect();
        assert_eq!(why, [Limit::per_minute(100), Limit::per_minute(50)]);
        let hour = records.active_limits_during("abc", at(0), at(29)).await.unwrap();
        assert_eq!(hour.considered_ids().count(), 2, "all that overlap with the hour");
    })
    .await;
}

#[tokio::test]
async fn without_a_record_the_defaults_apply_and_zero_means_what_is_configured() {
    on_every_database(async |database: Database| {
        let defaults = limits([7, 0, -1, -1, -1, -1]);
        let blocks = database.connect_with(|options| options.defaults(defaults)).await;
        let active = blocks.active_limits("abc", NOON).await.unwrap();
        assert!(active.is_default());
        assert_eq!(*active.limits(), defaults.into());
        add(&blocks, NOON, NOON, [-1, -1, 0, -1, -1, -1]).await;
        let active = blocks
            .active_limits("abc", NOON)
            .await
            .unwrap()
            .limits()
            .call_limits()
            .unwrap()
            .numbers();
        assert_eq!(active, [-1, -1, 0, -1, -1, -1], "a record replaces the defaults");

        let literal =
            |options: RecordsOptions| options.defaults(defaults).zero_means(ZeroMeans::Unlimited);
        let literal = database.connect_with(literal).await;
        if database.is_shared {
            let active = literal.active_limits("abc", NOON).await.unwrap();
            assert!(!active.is_default() && active.policy().is_none());
        }
        let active = literal
            .active_limits("unknown", NOON)
            .await
            .unwrap()
            .limits()
            .call_limits()
            .unwrap()
            .numbers();
        assert_eq!(active, [7, -1, -1, -1, -1, -1]);
    })
    .await;
}

/// Creates and deletes a record with a limit of 0, and one with a limit of 10.
#[tokio::test]
async fn a_record_of_zero_blocks_alone_and_adds_nothing_to_others() {
    on_every_database(async |database: Database| {
        let records = database.connect().await;
        let limiter = RateLimiter::builder().policies(patient(&records).start());
        let limiter = limiter.deadline(GIVE_UP).build().unwrap();
        let calls = async || limiter.check(&Subject::consumer("abc"), 1).await.is_allowed();
        assert!(calls().await);

        let zero = records.create(per_hour("abc", 0), "alice").await.unwrap();
        assert!(!calls().await);
        let ten = records.create(per_hour("abc", 10), "alice").await.unwrap();
        assert!(calls().await);
        records.delete(ten.id, 1, "alice").await.unwrap();
        assert!(!calls().await);
        records.delete(zero.id, 1, "alice").await.unwrap();
        assert!(calls().await);
        records.create(per_hour("abc", -1), "alice").await.unwrap();
        assert!(calls().await);
    })
    .await;
}

#[tokio::test]
async fn records_begin_and_end_on_time_although_they_were_looked_up_before() {
    on_every_database(async |database: Database| {
        let clock = Arc::new(ManualClock::at(NOON));
        let records = database.connect_with(|options| options.clock(clock.clone())).await;
        let (from, to) = (NOON.plus_micros(HOUR / 2), NOON.plus_micros(3 * HOUR));
        add(&records, from, to, [1, -1, -1, -1, -1, -1]).await;
        let source = patient(&records).start();
        assert_eq!(policy_text(&source, "abc").await, "-");
        // The database is closed, so no look-up is possible from here on.
        records.close().await;
        let micro = |time: Timestamp| Timestamp::from_micros(time.as_micros() - 1);
        for (now, expected) in [
            (micro(from), "-"),
            (from, "second=1/second"),
            (to, "second=1/second"),
            (to.plus_micros(1), "-"),
            (from, "second=1/second"),
        ] {
            clock.set(now);
            assert_eq!(policy_text(&source, "abc").await, expected, "{:?}", clock.now());
        }
    })
    .await;
}

#[tokio::test]
async fn consumers_have_records_and_other_subjects_have_policies() {
    on_every_database(async |database: Database| {
        let records = database.connect().await;
        records.create(per_hour("10.0.0.1", 5), "alice").await.unwrap();
        let source = patient(&records).start();
        let text = async |source: &rl_records::RecordSource, subject: &Subject| {
            let found = source.policy(subject).await.unwrap();
            found.map_or_else(|| "-".to_owned(), |policy| policy.to_string())
        };
        assert_eq!(text(&source, &Subject::consumer("10.0.0.1")).await, "hour=5/hour");
        assert_eq!(text(&source, &Subject::ip([10, 0, 0, 1])).await, "hour=1000/hour");
        let long = Subject::consumer(&"a".repeat(1_000));
        assert_eq!(text(&source, &long).await, "-");

        let own = Policy::new([Limit::per_minute(3)]).unwrap();
        let source = patient(&records).others(own).start();
        assert_eq!(text(&source, &Subject::ip([10, 0, 0, 1])).await, "minute=3/minute");
    })
    .await;
}

#[tokio::test]
async fn an_application_that_a_resource_does_not_list_has_no_limit() {
    on_every_database(async |database: Database| {
        let records = database.connect().await;
        let content = |rate| ResourceLimitContent {
            name: "payments".into(),
            apps: vec!["shop".into()],
            limits: Permits { max_permits: 3, rate }.limits().unwrap(),
        };
        let source = patient(&records).start();
        let limiter = RateLimiter::builder().policies(source.clone()).build().unwrap();
        let bucket = Subject::new(Realm::custom("resource").unwrap(), "payments");
        assert!(source.resource("payments", "shop").await.unwrap().is_none());

        let created = records.resources().create(content(1), "alice").await.unwrap();
        let policy = source.resource("payments", "shop").await.unwrap().unwrap();
        assert_eq!(policy.to_string(), "resource=1/second:token-bucket:capacity=3");
        assert!(source.resource("payments", "Shop").await.unwrap().is_none());
        assert!(!limiter.request(&bucket).policy(&policy).cost(4).check().await.is_allowed());
        assert!(limiter.request(&bucket).policy(&policy).cost(3).check().await.is_allowed());

        let updated =
            records.resources().update(content(0), created.revision, "bob").await.unwrap();
        let policy = source.resource("payments", "shop").await.unwrap().unwrap();
        assert!(!limiter.request(&bucket).policy(&policy).check().await.is_allowed());
        records.resources().delete("payments", updated.revision, "bob").await.unwrap();
        assert!(source.resource("payments", "shop").await.unwrap().is_none());
    })
    .await;
}

/// A request that a consumer makes to a route.
struct Request {
    consumer: Subject,
    route: &'static str,
}

impl RequestInfo for Request {
    fn method(&self) -> &str {
        "GET"
    }

    fn path(&self) -> &str {
        "/"
    }

    fn query(&self) -> Option<&str> {
        None
    }

    fn route(&self) -> Option<&str> {
        Some(self.route)
    }

    fn header_lines<'a>(&'a self, _: &str, _: &mut dyn FnMut(&'a [u8])) {}

    fn peer(&self) -> Option<IpAddr> {
        None
    }

    fn extensions(&self) -> &dyn Any {
        &()
    }

    fn identified_subject(&self) -> Option<&Subject> {
        Some(&self.consumer)
    }
}

/// Fault: a combined subject has a digest as its id, like a subject whose id is too long for
/// records. The two were confused, so consumers that were counted by route had no limit.
#[tokio::test]
async fn a_consumer_counted_by_route_has_the_records_of_the_consumer() {
    let records = Database::memory().connect().await;
    records.create(per_hour("blocked", 0), "alice").await.unwrap();
    records.create(per_hour("abc", 1), "alice").await.unwrap();
    let limiter = RateLimiter::builder().policies(patient(&records).start()).build().unwrap();
    let is_allowed = async |consumer: &str, route| {
        let request = Request { consumer: Subject::consumer(consumer), route };
        let by_route = Identified.and(Route).subject(&request).unwrap().unwrap();
        let twice = Identified.and(Route).and(Route).subject(&request).unwrap().unwrap();
        assert_ne!(by_route, twice);
        [
            limiter.check(&by_route, 1).await.is_allowed(),
            limiter.check(&twice, 1).await.is_allowed(),
        ]
    };
    assert_eq!(is_allowed("blocked", "/a").await, [false; 2]);
    assert_eq!(is_allowed("abc", "/a").await, [true; 2]);
    assert_eq!(is_allowed("abc", "/a").await, [false; 2]);
    assert_eq!(is_allowed("abc", "/b").await, [true; 2], "each route has its counters");
    let unlimited = "a".repeat(300);
    assert_eq!(is_allowed(&unlimited, "/a").await, [true; 2], "no record has an id of this length");
}

/// No record can contain a digest. Without an error, a consumer that is known only by a digest
/// would have no limit.
#[tokio::test]
async fn a_consumer_known_only_by_a_digest_is_a_configuration_error() {
    let records = Database::memory().connect().await;
    let source = patient(&records).start();
    let secret = KeySecret::new(b"a secret of the tests").unwrap();
    let consumer = secret.subject(Realm::Consumer, b"abc");
    let error = source.policy(&consumer).await.unwrap_err();
    assert_eq!(error.kind(), FailureKind::Unsupported);
    let limiter = RateLimiter::builder().policies(source).on_store_failure(OnFailure::Allow);
    assert!(!limiter.build().unwrap().check(&consumer, 1).await.is_allowed());
}

#[tokio::test]
async fn records_are_the_limits_of_a_rule_in_code_and_in_a_file() {
    let records = Database::memory().connect().await;
    records.create(per_hour("abc", 2), "alice").await.unwrap();
    let source = patient(&records).start();

    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("limits.yaml");
    let content =
        "rules:\n  consumers: { per: identified, limits: records }\n  fleet: { limits: 3/hour }\n";
    std::fs::write(&path, content).unwrap();
    let file = RulesFile::builder(&path).source("records", source.clone());
    let file = file.pause(std::time::Duration::from_millis(10)).watch().unwrap();
    let consumers = Rule::named("consumers").per(Identified).policies(source);
    let rules = Rules::new().rule(consumers).rule(Rule::named("fleet").limit(Limit::per_hour(3)));
    for limiter in [RateLimiter::builder().rules(rules), RateLimiter::builder().rules(&file)] {
        let limiter = limiter.deadline(GIVE_UP).build().unwrap();
        let consumer = Subject::consumer("abc");
        let mut allowed = Vec::new();
        for _ in 0..3 {
            allowed.push(limiter.rule("consumers").of(&consumer).check().await.is_allowed());
        }
        assert_eq!(allowed, [true, true, false]);
        let usage = limiter.rule("consumers").of(&consumer).usage().await.unwrap();
        let hour = usage.limits().find(|limit| limit.name() == "hour").unwrap();
        assert_eq!((hour.used(), hour.max()), (2, 2));
        // A consumer without records has the default limits of the source. Here there are none.
        let other = limiter.rule("consumers").of(&Subject::consumer("other")).check().await;
        assert!(other.is_allowed());
    }
}
