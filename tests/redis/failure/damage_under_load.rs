//! Faults while a service is under load: keys that another program changes, and a server clock that
//! is set back.

use std::sync::Arc;
use std::time::Duration;

use rl_core::store::Layout;
use rl_core::time::{ManualClock, Timestamp};
use rl_core::{Limit, Origin, RateLimiter, RedisStore, Subject};
use rl_tests::Bystander;

use super::load::{Load, Service};
use super::{GIVE_UP, server, url};

/// Returns the keys of one consumer.
async fn keys_of(operator: &mut Bystander, subject: &str) -> Vec<String> {
    let keys: Vec<String> = operator.query("KEYS *").await;
    keys.into_iter().filter(|key| key.contains(subject)).collect()
}

#[tokio::test]
async fn keys_that_lose_their_expiry_under_load_get_one() {
    let server = server();
    let service = Service::patient(&server);
    let mut operator = Bystander::new(&server).await;
    let load = Load::on(std::slice::from_ref(&service)).await;
    let mut persisted = 0;
    for _ in 0..5 {
        load.run_for_tenths(2).await;
        for key in keys_of(&mut operator, "c").await {
            persisted += u32::from(operator.query::<bool>(&format!("PERSIST {key}")).await);
        }
    }
    load.run_for_tenths(2).await;
    let report = load.finish().await;

    assert!(persisted >= 5, "{persisted}");
    assert_eq!(operator.keys_without_expiry().await, [""; 0]);
    let by_store = report.count(|answer| answer.is_by_store());
    assert_eq!(by_store, report.answers.len(), "every request is decided by the store");
    assert_eq!(service.charged().await, report.passed_by_store(), "counts are exact");
    report.assert_limits(0);
    let lines = service.log.lines();
    // Not every removed expiry is found: a charge rewrites the key with an expiry. Only a denial
    // finds a key without one.
    let found = service.store.healed();
    assert_eq!(lines.len(), usize::from(found > 0), "one line for all {found}: {lines:#?}");
    assert!(lines.iter().all(|(_, line)| line.starts_with("counters without expiry found")));
    report.print(&format!("PERSIST of {persisted} keys"), "");
}

/// A subject whose key is deleted gets a new window. No request fails.
#[tokio::test]
async fn keys_deleted_under_load_begin_new_windows() {
    let server = server();
    let service = Service::patient(&server);
    let mut operator = Bystander::new(&server).await;
    let load = Load::on(std::slice::from_ref(&service)).await;
    for _ in 0..5 {
        load.run_for_tenths(2).await;
        for key in keys_of(&mut operator, "c").await {
            operator.query::<u64>(&format!("DEL {key}")).await;
        }
    }
    load.run_for_tenths(2).await;
    let report = load.finish().await;

    let by_store = report.count(|answer| answer.is_by_store());
    assert_eq!(by_store, report.answers.len());
    assert_eq!(operator.keys_without_expiry().await, [""; 0]);
    report.assert_limits(5);
    report.print("DEL of every key, 5 times", "");
}

/// Damage to one subject is no outage. Requests of that subject are rejected, and others are
/// decided. The log does not get a line for each request.
#[tokio::test]
async fn a_value_damaged_under_load_rejects_only_its_subject() {
    let server = server();
    let service = Service::patient(&server);
    let mut operator = Bystander::new(&server).await;
    let load = Load::on(std::slice::from_ref(&service)).await;
    load.run_for_tenths(3).await;
    let key = keys_of(&mut operator, "c0").await.remove(0);
    let mut damage = redis::cmd("SET");
    // A request may be rejected before the reply to this command is read.
    let damaged = load.now();
    operator.send::<()>(damage.arg(&key).arg("garbage").arg("PX").arg(100_000)).await;
    load.run_for_tenths(5).await;
    operator.query::<u64>(&format!("DEL {key}")).await;
    let mended = load.now();
    load.run_for_tenths(5).await;
    let report = load.finish().await;

    let refused = report.count(|answer| answer.status == 503);
    assert!(refused > 0);
    for answer in &report.answers {
        // The value was changed while some requests were in flight. Those may be decided or
        // rejected.
        let is_in = answer.sent + answer.took >= damaged && answer.sent <= mended;
        match &*answer.origin {
            "store" => assert!([200, 429].contains(&answer.status)),
            "failed_closed" => assert!(answer.subject == 0 && is_in, "{answer:?}"),
            origin => panic!("{origin}"),
        }
    }
    let well = |answer: &super::load::Answer| answer.sent > mended && answer.subject == 0;
    assert!(report.count(|answer| well(answer) && answer.is_by_store()) > 0, "it is mended");
    let lines = service.log.lines();
    // Each time the value is changed, replies from before may be read after one from afterwards.
    // Each time, this may add a line and its end.
    assert!([2, 4, 6].contains(&lines.len()), "{lines:#?}");
    let tag = Subject::consumer("c0").redacted().to_string();
    for pair in lines.chunks(2) {
        let [(_, begin), (_, end)] = pair else { panic!("a line and its end: {lines:#?}") };
        assert!(begin.starts_with("stored value damaged"), "{begin}");
        assert!(begin.contains("rejected with 503, others are decided"), "{begin}");
        assert!(begin.contains(&tag) && end.contains(&tag), "{lines:#?}");
        assert!(end.starts_with("stored value recovered"), "{end}");
    }
    report.print(&format!("a damaged value ({} lines in the log)", lines.len()), "");
}

/// Two instances use one manual clock in place of the server's clock. It is set forwards and back
/// by up to five seconds. Together, the instances still allow no more than the limit.
#[tokio::test]
async fn a_server_clock_that_is_set_back_grants_nothing_twice() {
    let server = server();
    let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_750_000_000)));
    for layout in [Layout::Packed, Layout::Readable] {
        let fleet = [
            instance(&url(&server), &clock, layout).await,
            instance(&url(&server), &clock, layout).await,
        ];
        let subject = Subject::consumer(&format!("{layout:?}"));
        let mut passed = 0;
        for seconds in [0_u64, 5, 0, 4, 1] {
            clock.set(Timestamp::from_secs(1_750_000_000 + seconds));
            for limiter in &fleet {
                for _ in 0..10 {
                    let decision = limiter.check(&subject, 1).await;
                    assert_eq!(decision.origin(), Origin::Store);
                    passed += u32::from(decision.is_allowed());
                }
            }
        }
        assert_eq!(passed, 10, "{layout:?}: a minute has not passed in any order");
    }
}

async fn instance(url: &str, clock: &Arc<ManualClock>, layout: Layout) -> RateLimiter {
    let store =
        RedisStore::builder(url).layout(layout).small_log_pages().manual_clock(Arc::clone(clock));
    let store = store.connection_wait(GIVE_UP).connect().await.unwrap();
    let limiter = RateLimiter::builder().limit(Limit::per_minute(10)).store(store);
    limiter.deadline(Duration::from_secs(20)).build().unwrap()
}
