//! Limits and changes during an outage of the database.

use std::time::Duration;

use rl_core::source::PolicySource;
use rl_core::{FailureKind, MaybeReady, OnFailure, Origin, RateLimiter, Realm, Subject};
use rl_records::{ChangeError, Expected, Record, RecordSource, Records, TierContent};
use rl_tests::on_every_server;

use super::{GIVE_UP, NEVER, limits, patient, per_hour, policy_text, until_policy};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_limits_apply_while_the_database_is_down_and_changes_follow_after_it() {
    on_every_server(async |mut server| {
        let records = Records::connect(&server.url()).await.unwrap();
        let record = records.create(per_hour("abc", 5), "alice").await.unwrap();
        let source = RecordSource::start(&records);
        until_policy(&source, "abc", "hour=5/hour").await;
        // On PostgreSQL, the instance `quiet` does not poll: it learns of changes only through
        // announcements.
        let quiet = Records::connect(&server.url()).await.unwrap();
        let listening = patient(&quiet);
        let is_announced = server.url().starts_with("postgres:");
        let listening = if is_announced { listening.poll_every(NEVER) } else { listening }.start();
        until_policy(&listening, "abc", "hour=5/hour").await;

        server.stop();
        let limiter = RateLimiter::builder().policies(source.clone());
        let limiter = limiter.on_store_failure(OnFailure::Reject).build().unwrap();
        let mut allowed = 0;
        for _ in 0..1_000 {
            let decision = limiter.check(&Subject::consumer("abc"), 1).await;
            assert_eq!(decision.origin(), Origin::Store);
            allowed += u32::from(decision.is_allowed());
        }
        assert_eq!(allowed, 5);
        let unknown = source.policy(&Subject::consumer("never seen")).await.unwrap_err();
        let kinds = [FailureKind::Unavailable, FailureKind::TimedOut];
        assert!(kinds.contains(&unknown.kind()), "{unknown}");
        assert!(!limiter.check(&Subject::consumer("never seen"), 1).await.is_allowed());
        assert!(records.update(record.id, per_hour("abc", 6), 1, "bob").await.is_err());

        server.restart();
        let changed = until_changed(&records, &record, 6).await;
        assert_eq!(changed.revision, 2);
        until_policy(&source, "abc", "hour=6/hour").await;
        until_policy(&listening, "abc", "hour=6/hour").await;
        until_known(&source, "never seen").await;

        // After the outage, announcements of other instances arrive again.
        let other = Records::connect(&server.url()).await.unwrap();
        other.update(record.id, per_hour("abc", 7), 2, "carol").await.unwrap();
        until_policy(&source, "abc", "hour=7/hour").await;
        until_policy(&listening, "abc", "hour=7/hour").await;
        assert_eq!(policy_text(&source, "never seen").await, "-");
    })
    .await;
}

/// Fault: the instance had noticed the new block, but could no longer read it, and allowed the
/// consumer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_block_applies_on_its_instance_although_the_database_is_lost_before_the_next_call() {
    on_every_server(async |mut server| {
        let records = Records::connect(&server.url()).await.unwrap();
        let source = patient(&records).start();
        let limiter = RateLimiter::builder().policies(source.clone()).build().unwrap();
        let known = records.create(per_hour("known", 5), "alice").await.unwrap();
        assert!(limiter.check(&Subject::consumer("known"), 1).await.is_allowed());

        records.update(known.id, per_hour("known", 0), 1, "alice").await.unwrap();
        records.create(per_hour("never seen", 0), "alice").await.unwrap();
        server.stop();
        for consumer in ["known", "never seen"] {
            assert_eq!(policy_text(&source, consumer).await, "hour=0/hour", "{consumer}");
            let decision = limiter.check(&Subject::consumer(consumer), 1).await;
            assert!(!decision.is_allowed(), "{consumer}: {decision:?}");
        }
    })
    .await;
}

/// Fault: after a change of a tier, the tier of each member was looked up only at its next request.
/// By then the connection to the database was lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_tier_applies_on_its_instance_although_the_database_is_lost_before_the_next_call()
{
    on_every_server(async |mut server| {
        let records = Records::connect(&server.url()).await.unwrap();
        let source = patient(&records).poll_every(NEVER).tiers_of_keys().start();
        let tier = |per_hour| TierContent {
            name: "gold".into(),
            limits: limits([-1, -1, per_hour, -1, -1, -1]).into(),
        };
        records.tiers().create(tier(5), "alice").await.unwrap();
        let mut members: Vec<Subject> =
            (0..20).map(|number| Subject::consumer(&format!("member {number}"))).collect();
        members.push(Subject::digest(Realm::Key, [7; 16]));
        let policy_of = async |member: &Subject| source.policy(member).await.unwrap().unwrap();
        for member in &members {
            records.tiers().set_member(member, Some("gold"), 0, "alice").await.unwrap();
            assert_eq!(policy_of(member).await.to_string(), "hour=5/hour");
        }

        records.tiers().update(tier(0), Expected::Any, "alice").await.unwrap();
        server.stop();
        for member in &members {
            assert_eq!(policy_of(member).await.to_string(), "hour=0/hour", "{}", member.id());
        }
    })
    .await;
}

#[tokio::test]
async fn an_unreachable_database_is_reported_with_its_cause_and_without_the_login() {
    let port = rl_tests::free_port();
    for (url, words) in [
        ("sqlite:///nonexistent/folder/x.db".to_owned(), "unable to open database file".to_owned()),
        (
            format!("postgres://limiter-user:hunter2@127.0.0.1:{port}/limits"),
            format!("could not connect to 127.0.0.1:{port}: Connection refused"),
        ),
        (
            "postgres://limiter-user:hunter2@no-such-host.invalid/limits".to_owned(),
            "could not connect to no-such-host.invalid:5432: ".to_owned(),
        ),
        (
            format!("mysql://limiter-user:hunter2@127.0.0.1:{port}/limits"),
            format!("could not connect to 127.0.0.1:{port}: Connection refused"),
        ),
        (
            "mariadb://limiter-user:hunter2@no-such-host.invalid/limits".to_owned(),
            "could not connect to no-such-host.invalid:3306: ".to_owned(),
        ),
    ] {
        let error = Records::connect(&url).await.unwrap_err();
        let text = error.to_string();
        assert!(text.contains(&words), "{text}");
        assert!(!text.contains("hunter2") && !text.contains("limiter-user"), "{text}");
    }
}

/// The server accepts connections but never replies, as if its disk hung.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_limits_apply_while_the_database_hangs_and_every_call_ends() {
    on_every_server(async |server| {
        let records = Records::connect(&server.url()).await.unwrap();
        let record = records.create(per_hour("abc", 5), "alice").await.unwrap();
        let source = RecordSource::start(&records);
        until_policy(&source, "abc", "hour=5/hour").await;

        server.hang();
        let hanging = async {
            let unknown = (0..1_000).map(|number| Subject::consumer(&format!("new {number}")));
            let asked: Vec<_> = unknown.map(|consumer| source.policy(&consumer)).collect();
            // If the queue of look-ups is full, a look-up fails immediately.
            let refused =
                asked.iter().filter(|policy| matches!(policy, MaybeReady::Ready(_))).count();
            assert!(refused > 500, "{refused}");
            for policy in futures::future::join_all(asked).await {
                let kind = policy.unwrap_err().kind();
                assert!(!kind.is_configuration(), "{kind}");
            }
            assert_eq!(policy_text(&source, "abc").await, "hour=5/hour");
            let edit = records.update(record.id, per_hour("abc", 6), 1, "bob");
            let (edit, read) = futures::future::join(edit, records.read(record.id)).await;
            assert!(matches!(edit, Err(ChangeError::Database(_))), "{edit:?}");
            assert!(read.is_err());
            assert_eq!(policy_text(&source, "abc").await, "hour=5/hour");
        };
        tokio::time::timeout(GIVE_UP, hanging).await.unwrap();

        server.go_on();
        let now = records.read(record.id).await.unwrap().unwrap();
        let changed = until_changed(&records, &now, 7).await;
        assert_eq!(changed.revision, now.revision + 1);
        until_policy(&source, "abc", "hour=7/hour").await;
        until_known(&source, "new 1").await;
    })
    .await;
}

/// Names that no record can have are neither looked up nor cached.
#[tokio::test]
async fn a_name_that_no_record_can_have_needs_no_database() {
    let records = Records::connect("sqlite::memory:").await.unwrap();
    let source = patient(&records).start();
    records.close().await;
    assert!(source.resource("payments", "shop").await.is_err());
    assert!(source.policy(&Subject::consumer("abc")).await.is_err());
    for name in ["", "a\nb", "a\0", &"a".repeat(251), &"a".repeat(100_000)] {
        assert!(source.resource(name, "shop").await.unwrap().is_none(), "{name:?}");
        assert!(source.policy(&Subject::consumer(name)).await.unwrap().is_none(), "{name:?}");
    }
}

/// Changes the record, as soon as the database has recovered.
async fn until_changed(records: &Records, record: &Record, calls: i64) -> Record {
    let attempts = async {
        let mut attempts = tokio::time::interval(Duration::from_millis(20));
        loop {
            attempts.tick().await;
            let content = per_hour("abc", calls);
            // A connection that was opened before the outage fails once. So the update is repeated.
            match records.update(record.id, content, record.revision, "bob").await {
                Ok(changed) => return changed,
                Err(ChangeError::Database(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
    };
    tokio::time::timeout(GIVE_UP, attempts).await.expect("the database recovers")
}

async fn until_known(source: &RecordSource, consumer: &str) {
    let attempts = async {
        let mut attempts = tokio::time::interval(Duration::from_millis(20));
        while source.policy(&Subject::consumer(consumer)).await.is_err() {
            attempts.tick().await;
        }
    };
    tokio::time::timeout(GIVE_UP, attempts).await.expect("the database recovers");
}
