//! Sliding logs: the cost and the lifetime of their entries, and entries that another program has
//! changed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use rl_core::store::{
    DecideRequest, Lease, Mode, Namespace, Part, Refund, RefundOf, Renewal, Reset, Store,
};
use rl_core::time::{ManualClock, Timestamp};
use rl_core::{
    Cost, Decision, FailureKind, LimitSet, Policy, RedisStore, RetryAfter, StoreError, Subject,
};
use rl_tests::{Bystander, Engine, RedisServer};

use super::PATIENCE;

const START: Timestamp = Timestamp::from_secs(1_769_903_998);

/// The size in bytes of an entry of a log.
const ENTRY: u64 = 14;
/// The size in bytes of the state of a subject with one empty log: the shape (5 for a named period,
/// such as an hour), the time (7), and eight cells of 7.
const NO_ENTRIES: u64 = 5 + 7 + 8 * 7;

/// One subject under some limits, on a server with a manual clock.
struct Logs {
    _server: RedisServer,
    operator: Bystander,
    store: RedisStore,
    clock: Arc<ManualClock>,
    policy: Policy,
    subject: Subject,
    namespace: Namespace,
}

impl Logs {
    async fn under(limits: &[&str]) -> Self {
        let server = RedisServer::start();
        let clock = Arc::new(ManualClock::at(START));
        let store =
            RedisStore::builder(&server.url()).small_log_pages().manual_clock(clock.clone());
        Self {
            operator: Bystander::new(&server).await,
            store: store.connection_wait(PATIENCE).connect().await.unwrap(),
            _server: server,
            clock,
            policy: policy(limits),
            subject: Subject::consumer("alice"),
            namespace: Namespace::default(),
        }
    }

    async fn try_decide(&self, mode: Mode, cost: u64) -> Result<Decision, StoreError> {
        let parts = [Part::new(&self.subject, &self.policy, Cost::new(cost))];
        self.store.decide(DecideRequest::new(&self.namespace, &parts, mode)).await
    }

    async fn decide(&self, mode: Mode, cost: u64) -> Decision {
        self.try_decide(mode, cost).await.unwrap()
    }

    async fn check(&self) -> Decision {
        self.decide(Mode::Check, 1).await
    }

    async fn used(&self) -> Vec<u64> {
        self.decide(Mode::Peek, 0).await.limits().map(|limit| limit.used()).collect()
    }

    async fn reset(&self, limit: Option<usize>) {
        let Self { namespace, subject, policy, .. } = self;
        self.store.reset(&[Reset { namespace, subject, policy, limit }]).await.unwrap();
    }

    /// Makes `count` checks of one unit, each a millisecond after the one before.
    async fn check_times(&self, count: usize) {
        for _ in 0..count {
            self.clock.advance(Duration::from_millis(1));
            assert!(self.check().await.is_allowed());
        }
    }

    /// Returns all keys: first the packed state, then the sealed blocks of logs.
    async fn keys(&mut self) -> Vec<String> {
        let mut keys: Vec<String> = self.operator.query("KEYS *").await;
        keys.sort();
        keys
    }

    /// Returns the number of entries that are stored for the only log of the policy.
    async fn entries(&mut self) -> u64 {
        let mut entries = 0;
        for key in self.keys().await {
            if self.operator.query::<String>(&format!("TYPE {key}")).await == "string" {
                let size: u64 = self.operator.query(&format!("STRLEN {key}")).await;
                entries += (size - NO_ENTRIES) / ENTRY;
                continue;
            }
            let fields: Vec<Vec<u8>> = self.operator.query(&format!("HGETALL {key}")).await;
            let fields: HashMap<&[u8], &Vec<u8>> =
                fields.as_chunks::<2>().0.iter().map(|[name, bytes]| (&name[..], bytes)).collect();
            let list = fields[&b"b"[..]].as_chunks::<11>().0;
            let mut listed = 1 + list.len();
            for page in list.iter().map(|item| fields[&item[7..]]) {
                let mut in_page = 0;
                for item in page[11..].as_chunks::<19>().0 {
                    let block = fields[&item[15..]];
                    assert_eq!(block.len() as u64, u64::from(item[14]) * ENTRY);
                    in_page += u64::from(item[14]);
                    listed += 1;
                }
                assert_eq!(u64::from(u32::from_be_bytes(page[7..11].try_into().unwrap())), in_page);
                entries += in_page;
            }
            assert_eq!(fields.len(), listed, "no field is left behind");
        }
        entries
    }

    /// Returns the key of the sealed blocks of the only log.
    async fn log_key(&mut self) -> String {
        let keys = self.keys().await;
        let [packed, log_key] = &keys[..] else { panic!("two keys, got {keys:?}") };
        assert!(log_key.starts_with(packed), "{keys:?}");
        log_key.clone()
    }
}

fn policy(limits: &[&str]) -> Policy {
    Policy::new(limits.iter().map(|text| text.parse().unwrap())).unwrap()
}

/// Generates pseudo-random numbers that are the same on each run.
pub(super) fn numbers() -> impl FnMut(u64) -> u64 {
    let mut state = 1_u64;
    move |below| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % below
    }
}

#[tokio::test]
async fn every_key_of_a_log_has_an_expiry_after_every_step() {
    let limits = ["150/5m:sliding-log", "200/hour:sliding-log", "12:concurrency:lease=7s"];
    let mut logs = Logs::under(&limits).await;
    let (mut number, mut past) = (numbers(), Vec::new());
    for step in 0..600 {
        logs.clock.advance(Duration::from_millis(number(4_000)));
        let Logs { namespace, subject, policy, store, .. } = &logs;
        let charged = past.get(past.len().saturating_sub(1 + number(9) as usize)).copied();
        let units = 1 + number(3);
        match (number(8), charged) {
            (0, Some(charged)) => {
                let of = [RefundOf::All, RefundOf::Rates, RefundOf::Permits][number(3) as usize];
                let refund = Refund {
                    namespace,
                    subject,
                    policy,
                    charged,
                    units,
                    of,
                    uncharged: LimitSet::EMPTY,
                };
                store.settle(&[refund.into()]).await.unwrap();
            }
            (1, Some(charged)) => {
                let renewal = Renewal {
                    namespace,
                    subject,
                    policy,
                    charged,
                    units,
                    uncharged: LimitSet::EMPTY,
                    lease: Lease::Permits,
                };
                past.extend(store.renew(renewal).await.unwrap().held());
            }
            (2, _) if number(20) == 0 => logs.reset(Some(number(3) as usize)).await,
            (3, _) => past.push(logs.decide(Mode::Charge, 1).await.at()),
            (4, _) => past.push(logs.decide(Mode::CheckUpTo, units).await.at()),
            _ => past.push(logs.decide(Mode::Check, units).await.at()),
        }
        assert_eq!(logs.operator.keys_without_expiry().await, [""; 0], "step {step}");
    }
    // The three keys are the packed state and the sealed blocks of the two sliding logs. The limit
    // of permits has so few entries that they are in the packed state.
    assert_eq!(logs.keys().await.len(), 3);
}

/// Charges beyond the limit do not add entries.
#[tokio::test]
async fn a_log_is_never_longer_than_its_limit() {
    for (limit, max) in [("50/hour:sliding-log", 50), ("30:concurrency:lease=1h", 30)] {
        let mut logs = Logs::under(&[limit]).await;
        for _ in 0..300 {
            logs.clock.advance(Duration::from_millis(3));
            logs.decide(Mode::Charge, 1).await;
            logs.check().await;
        }
        // Checks were allowed while units were left. Every charge was made, even beyond the limit.
        assert_eq!(logs.used().await, [300 + max / 2]);
        assert_eq!(logs.entries().await, max, "{limit}");
        assert_eq!(logs.operator.keys_without_expiry().await, [""; 0]);
    }
}

#[tokio::test]
async fn the_entries_of_a_short_log_are_in_the_packed_state() {
    let mut logs = Logs::under(&["50/hour:sliding-log"]).await;
    logs.check_times(36).await;
    assert_eq!((logs.keys().await.len(), logs.entries().await), (1, 36));
    logs.check_times(1).await;
    assert_eq!((logs.keys().await.len(), logs.entries().await), (2, 37));
    // All entries expire, so the state contains only the entry of the next check. The server
    // deletes the sealed blocks later, when their key expires.
    logs.clock.advance(Duration::from_secs(3_600));
    logs.check_times(1).await;
    let state = logs.keys().await.remove(0);
    let size: u64 = logs.operator.query(&format!("STRLEN {state}")).await;
    assert_eq!(size, NO_ENTRIES + ENTRY);
    assert_eq!(logs.operator.keys_without_expiry().await, [""; 0]);
}

/// Makes ten thousand requests. Compares the memory of their log with that of a sorted set, and
/// counts the commands of further requests.
#[tokio::test]
async fn ten_thousand_entries_take_a_fifth_of_a_sorted_set_and_few_are_read() {
    const CALLS: u64 = 10_000;

    let mut logs = Logs::under(&["10000/hour:sliding-log"]).await;
    let mut set = redis::cmd("ZADD");
    set.arg("set");
    for _ in 0..CALLS {
        logs.clock.advance(Duration::from_micros(1_234));
        let decision = logs.check().await;
        assert!(decision.is_allowed());
        let at = decision.at().as_micros();
        set.arg(at).arg(at);
    }
    let log_key = logs.log_key().await;
    assert_eq!(logs.operator.send::<u64>(&set).await, CALLS);
    let of_set: u64 = logs.operator.query("MEMORY USAGE set SAMPLES 0").await;
    let of_ring: u64 = logs.operator.query(&format!("MEMORY USAGE {log_key} SAMPLES 0")).await;
    println!("{CALLS} entries: {of_ring} bytes in a log, {of_set} in a sorted set");
    // Valkey 9 stores the short strings of a sorted set in less memory than Redis.
    let part = if Engine::of_program().name == "Valkey" { 4 } else { 5 };
    assert!(of_ring * part <= of_set, "{of_ring} bytes, a sorted set {of_set}");

    // Five entries expire after the denial, so the next request is allowed.
    let before = logs.operator.calls().await;
    let denied = logs.decide(Mode::Check, 5).await;
    let RetryAfter::In(wait) = denied.retry_after() else { panic!("{denied:?}") };
    logs.clock.advance(wait);
    assert!(logs.decide(Mode::Check, 5).await.is_allowed());
    let since = logs.operator.calls().await;
    let count = |command: &str| since[command] - before.get(command).copied().unwrap_or(0);
    println!("read: {}, written: {}", count("hget"), count("hset"));
    assert!(count("hget") <= 3 * 4 && count("hset") <= 2, "{since:?}");
    assert_eq!(logs.used().await, [CALLS]);
}

/// Fault: the refund of an old charge rewrote all later entries, which blocked the server for tens
/// of milliseconds.
#[tokio::test]
async fn a_refund_and_a_release_touch_few_fields_of_a_log_of_ten_thousand_entries() {
    const CALLS: u64 = 10_000;

    for limit in ["100000/hour:sliding-log", "10000:concurrency:lease=1h"] {
        let mut logs = Logs::under(&[limit]).await;
        let mut charged = Vec::new();
        for _ in 0..CALLS {
            logs.clock.advance(Duration::from_micros(7));
            charged.push(logs.check().await.at());
        }
        let mut number = numbers();
        for left in (CALLS - 500..CALLS).rev() {
            let charged = charged.swap_remove(number(charged.len() as u64) as usize);
            let before = logs.operator.calls().await;
            let Logs { namespace, subject, policy, store, .. } = &logs;
            let of = RefundOf::All;
            let uncharged = LimitSet::EMPTY;
            let refund = Refund { namespace, subject, policy, charged, units: 1, of, uncharged };
            store.settle(&[refund.into()]).await.unwrap();
            let since = logs.operator.calls().await;
            let count = |command: &str| {
                let calls = |of: &std::collections::BTreeMap<String, u64>| {
                    of.get(command).copied().unwrap_or(0)
                };
                calls(&since) - calls(&before)
            };
            // Only these fields are read: the list of pages, the page and the block of the charge,
            // and sometimes their neighbours.
            assert!(count("hget") <= 6 && count("hset") <= 1 && count("hdel") <= 1, "{since:?}");
            if left % 100 == 0 {
                assert_eq!(logs.used().await, [left], "{limit}");
            }
        }
        assert_eq!(logs.entries().await, CALLS - 500);
    }
}

#[tokio::test]
async fn deleted_blocks_of_a_log_no_longer_count() {
    let mut logs = Logs::under(&["200/hour:sliding-log", "900/day"]).await;
    logs.check_times(100).await;
    let log_key = logs.log_key().await;
    logs.operator.query::<()>(&format!("DEL {log_key}")).await;
    // The deleted key contained two sealed blocks of 36 entries, so 28 of the 100 entries are left.
    assert_eq!(logs.used().await, [28, 100]);
    logs.check_times(40).await;
    assert_eq!(logs.used().await, [68, 140]);
    assert_eq!(logs.log_key().await, log_key);
    assert_eq!(logs.operator.keys_without_expiry().await, [""; 0]);

    // The blocks of a log count only if the packed state refers to them.
    let packed = logs.keys().await.remove(0);
    logs.operator.query::<()>(&format!("DEL {packed}")).await;
    logs.check_times(5).await;
    assert_eq!(logs.used().await, [5, 5]);
    logs.check_times(40).await;
    assert_eq!(logs.used().await, [45, 45]);
    let list: Vec<u8> = logs.operator.send(redis::cmd("HGET").arg(&log_key).arg("b")).await;
    assert_eq!(list.len(), 11, "one page");
}

#[tokio::test]
async fn requests_on_a_damaged_log_are_rejected_and_leave_it_unchanged() {
    const CHECKS: usize = 6;

    let mut logs = Logs::under(&["9/minute", "20/hour:sliding-log", "20/day:sliding-log"]).await;
    let mut charged = START;
    for _ in 0..CHECKS {
        logs.clock.advance(Duration::from_secs(1));
        charged = logs.check().await.at();
    }
    let keys = logs.keys().await;
    // The state ends with the entries of the last log.
    let state: Vec<u8> = logs.operator.send(redis::cmd("GET").arg(&keys[0])).await;
    let (head, sound) = state.split_at(state.len() - CHECKS * ENTRY as usize);
    let cases = [
        ("a byte too few", sound[..sound.len() - 1].to_vec()),
        ("a byte too many", [sound, b"\0"].concat()),
        ("an entry too few", sound[..sound.len() - ENTRY as usize].to_vec()),
        ("a word", b"garbage".to_vec()),
        ("all zeros", vec![0; sound.len()]),
        ("all ones", vec![0xff; sound.len()]),
        ("times that are counts", sound[7..].iter().chain(&[0; 7]).copied().collect()),
    ];
    for (what, entries) in cases {
        let mut set = redis::cmd("SET");
        set.arg(&keys[0]).arg([head, &entries].concat()).arg("KEEPTTL");
        logs.operator.send::<()>(&set).await;
        assert_refused_and_untouched(&mut logs, &keys, charged, what).await;
    }
}

/// Requests on a log whose list of pages is damaged are rejected.
#[tokio::test]
async fn requests_on_damaged_blocks_are_rejected() {
    let mut logs = Logs::under(&["40/hour:sliding-log"]).await;
    logs.check_times(40).await;
    let log_key = logs.log_key().await;
    let list: Vec<u8> = logs.operator.send(redis::cmd("HGET").arg(&log_key).arg("b")).await;
    for damaged in [&list[1..], &[&list[..], b"\0"].concat(), b"", b"garbage"] {
        let mut set = redis::cmd("HSET");
        logs.operator.send::<()>(set.arg(&log_key).arg("b").arg(damaged)).await;
        // A check of one unit is left out: its wait is in the packed state, so the list is not
        // read.
        for (mode, cost) in [(Mode::Check, 2), (Mode::Peek, 1), (Mode::Charge, 1)] {
            let error = logs.try_decide(mode, cost).await.unwrap_err();
            assert_eq!(error.kind(), FailureKind::Corrupt, "{mode:?}: {damaged:?}");
        }
    }
    logs.operator.query::<()>(&format!("DEL {log_key}")).await;
    logs.operator.query::<()>(&format!("LPUSH {log_key} 1")).await;
    let error = logs.try_decide(Mode::Peek, 1).await.unwrap_err();
    assert_eq!(error.kind(), FailureKind::Corrupt);

    // An operator repairs the subject by deleting the key.
    logs.operator.query::<()>(&format!("DEL {log_key}")).await;
    assert_eq!(logs.used().await, [4]);
}

async fn assert_refused_and_untouched(
    logs: &mut Logs,
    keys: &[String],
    charged: Timestamp,
    what: &str,
) {
    let mut before: Vec<Vec<u8>> = Vec::new();
    for key in keys {
        before.push(logs.operator.send(redis::cmd("DUMP").arg(key)).await);
    }
    for mode in [Mode::Check, Mode::CheckUpTo, Mode::Peek, Mode::Charge] {
        let error = logs.try_decide(mode, 1).await.unwrap_err();
        assert_eq!(error.kind(), FailureKind::Corrupt, "{what}");
    }
    let Logs { namespace, subject, policy, store, .. } = &*logs;
    let of = RefundOf::All;
    let refund =
        Refund { namespace, subject, policy, charged, units: 1, of, uncharged: LimitSet::EMPTY };
    let error = store.settle(&[refund.into()]).await.unwrap_err();
    assert_eq!(error.kind(), FailureKind::Corrupt, "{what}");
    for (key, before) in keys.iter().zip(before) {
        let after: Vec<u8> = logs.operator.send(redis::cmd("DUMP").arg(key)).await;
        assert_eq!(after, before, "{what}: {key}");
    }
}

#[tokio::test]
async fn blocks_without_expiry_get_one_from_a_denial_or_when_a_block_is_added() {
    let mut logs = Logs::under(&["80/hour:sliding-log"]).await;
    logs.check_times(60).await;
    let log_key = logs.log_key().await;
    for allowed in [true, false] {
        assert!(logs.operator.query::<bool>(&format!("PERSIST {log_key}")).await);
        // A peek writes nothing, so it does not set an expiry either.
        logs.used().await;
        assert_eq!(logs.operator.keys_without_expiry().await, std::slice::from_ref(&log_key));
        if allowed {
            logs.check_times(20).await;
        } else {
            assert!(!logs.check().await.is_allowed());
        }
        assert_eq!(logs.operator.keys_without_expiry().await, [""; 0]);
    }
    assert_eq!(logs.store.healed(), 1);
}

#[tokio::test]
async fn a_reset_leaves_no_entry_behind() {
    let limits = ["50/hour:sliding-log", "50/day:sliding-log", "50:concurrency"];
    let mut logs = Logs::under(&limits).await;
    logs.check_times(40).await;
    let keys = logs.keys().await;
    logs.reset(Some(0)).await;
    assert_eq!(logs.used().await, [0, 40, 40]);
    let left = logs.keys().await;
    assert_eq!((keys.len(), left.len()), (4, 3));
    assert!(!left.iter().any(|key| key.ends_with(":3600000")), "{left:?}");
    assert!(logs.decide(Mode::Check, 2).await.is_allowed());
    assert_eq!(logs.used().await, [2, 42, 42]);
    // A charge and a reset in the same microsecond would leave an empty state for a moment, so time
    // passes between them.
    logs.clock.advance(Duration::from_millis(1));
    logs.reset(None).await;
    assert_eq!(logs.keys().await, [""; 0]);
}

/// During a rollout, some instances have the old policy and some the new one. Neither may remove
/// the log of the other policy.
#[tokio::test]
async fn a_log_that_the_present_policy_does_not_name_is_kept() {
    for checks in [1, 40] {
        let mut logs = Logs::under(&["90/hour:sliding-log", "90:concurrency:lease=1h"]).await;
        for _ in 0..checks {
            assert!(logs.decide(Mode::Check, 2).await.is_allowed());
            logs.clock.advance(Duration::from_micros(1));
        }
        let used = 2 * checks;
        let new = policy(&["5/hour", "5/minute:sliding-log"]);
        let old = std::mem::replace(&mut logs.policy, new);
        logs.clock.advance(Duration::from_secs(1));
        logs.decide(Mode::Check, 1).await;
        logs.policy = old;
        assert_eq!(logs.used().await, [used, used]);
        logs.clock.advance(Duration::from_secs(1));
        assert!(logs.decide(Mode::Check, 3).await.is_allowed());
        assert_eq!(logs.used().await, [used + 3, used + 3]);
        logs.clock.advance(Duration::from_secs(3_598));
        assert_eq!(logs.used().await, [3, 3]);
    }
}

/// At every time on the server's clock, at most as many permits are held as the limit allows.
/// Released permits can be granted again.
#[tokio::test]
async fn concurrent_requests_never_hold_more_permits_than_the_limit() {
    let server = RedisServer::start();
    let store = RedisStore::builder(&server.url()).connection_wait(PATIENCE);
    let store = store.connect().await.unwrap();
    let policy = policy(&["20:concurrency:lease=1h"]);
    let (subject, namespace) = (&Subject::user("alice"), &Namespace::default());
    let parts = [Part::new(subject, &policy, Cost::ONE)];
    let request = DecideRequest::new(namespace, &parts, Mode::Check);
    let at_once = async |count: usize| -> Vec<Decision> {
        let decisions = (0..count).map(|_| tokio::spawn(store.decide(request)));
        let decisions = futures::future::join_all(decisions).await;
        let decisions = decisions.into_iter().map(|decision| decision.unwrap().unwrap());
        decisions.filter(Decision::is_allowed).collect()
    };
    let held = at_once(100).await;
    assert_eq!(held.len(), 20);
    for decision in &held[..7] {
        let (policy, charged, of) = (&policy, decision.at(), RefundOf::Permits);
        let refund = Refund {
            namespace,
            subject,
            policy,
            charged,
            units: 1,
            of,
            uncharged: LimitSet::EMPTY,
        };
        store.settle(&[refund.into()]).await.unwrap();
    }
    assert_eq!(at_once(100).await.len(), 7);
    assert_eq!(server.keys_without_expiry().await, [""; 0]);
}
