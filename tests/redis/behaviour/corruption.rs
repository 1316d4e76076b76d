//! Arbitrary values of the store's keys: random bytes, and valid values with a few changed bytes.
//!
//! No process panics and no script hangs. A request that an empty counter would deny is never
//! allowed.

use std::sync::Arc;
use std::time::Duration;

use rl_core::store::Layout;
use rl_core::time::{ManualClock, Timestamp};
use rl_core::{FailureKind, Limit, Origin, RateLimiter, RedisStore, Subject};
use rl_tests::{Bystander, RedisServer, is_soak};

use super::PATIENCE;
use super::logs::numbers;

/// The number of corrupted values for each run and layout. A soak test (`RL_SOAK=1`) uses a hundred
/// times as many.
const DAMAGES: usize = 300;

const PACKED: [&[&str]; 9] = [
    &["4/minute"],
    &["4/minute", "9/hour:clock", "9/month:clock"],
    &["9/minute", "4/hour:sliding-log"],
    &["4/minute:sliding-window:precision=7s", "9/hour"],
    &["9/day", "4/hour:sliding-window-counter"],
    &["4/hour:gcra", "9/day:gcra:burst=8"],
    &["4/hour:token-bucket:refill=interval", "9/1500ms"],
    &["4:concurrency:lease=1m", "9/day:sliding-log"],
    &["9/day:requests", "4/second", "1/week:shadow"],
];
const READABLE: [&[&str]; 3] =
    [&["4/minute"], &["9/hour", "4/day"], &["4/second", "9/month:shadow"]];

/// Returns a damaged value: random bytes, or `sound` with some changes.
fn damaged(sound: &[u8], number: &mut impl FnMut(u64) -> u64) -> Vec<u8> {
    let byte = |number: &mut dyn FnMut(u64) -> u64| match number(4) {
        0 => 0,
        1 => 0xff,
        2 => b"0123456789-+. e\n"[number(16) as usize],
        _ => number(256) as u8,
    };
    let mut value = sound.to_vec();
    match number(10) {
        0 => (0..number(64)).map(|_| byte(number)).collect(),
        1 => number(u64::MAX >> 31).to_string().into_bytes(),
        2 => {
            value.truncate(number(1 + value.len() as u64) as usize);
            value
        }
        3 => {
            value.extend((0..=number(30)).map(|_| byte(number)));
            value
        }
        4..=6 => {
            // Replaces integers of the state. Each has seven bytes, and their positions count from
            // the end.
            for _ in 0..=number(2) {
                let from = value.len().saturating_sub(7 * (1 + number(16) as usize));
                let old =
                    value.iter().skip(from).take(7).fold(0, |n, byte| n << 8 | u64::from(*byte));
                let what = match number(6) {
                    0 => number(10),
                    1 => old.saturating_add(number(1 << 33)),
                    2 => old.saturating_sub(number(1 << 33)),
                    3 => (1 << 53) - 1 - number(2),
                    4 => number(1 << 33) << number(20),
                    _ => old.saturating_add(number(1 << 33) << number(20)),
                };
                let bytes = what.to_be_bytes().into_iter().skip(1);
                value.iter_mut().skip(from).zip(bytes).for_each(|(old, new)| *old = new);
            }
            value
        }
        7 => [&value[value.len() / 2..], &value[..value.len() / 2]].concat(),
        _ => {
            for _ in 0..=number(3) {
                let at = number(value.len().max(1) as u64) as usize;
                let what = byte(number);
                value.get_mut(at).into_iter().for_each(|old| *old = what);
            }
            value
        }
    }
}

async fn assert_corruption_allows_no_additional_requests(layout: Layout, policies: &[&[&str]]) {
    let server = RedisServer::start();
    let mut operator = Bystander::new(&server).await;
    let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_769_903_998)));
    let store = RedisStore::builder(&server.url())
        .layout(layout)
        .small_log_pages()
        .manual_clock(clock.clone());
    let store = store.connection_wait(PATIENCE).connect().await.unwrap();
    let limiters: Vec<RateLimiter> = policies
        .iter()
        .map(|limits| {
            let builder = RateLimiter::builder().store(store.clone()).deadline(PATIENCE);
            let limits = limits.iter().map(|text| text.parse::<Limit>().unwrap());
            limits.fold(builder, |builder, limit| builder.limit(limit)).build().unwrap()
        })
        .collect();
    let alice = Subject::consumer("alice");
    let mut number = numbers();
    let times = if is_soak() { 100 } else { 1 };
    let (mut refused, mut read) = (0, 0);
    for step in 0..DAMAGES * times {
        operator.query::<()>("FLUSHALL").await;
        let limiter = &limiters[step % limiters.len()];
        for _ in 0..1 + number(3) {
            clock.advance(Duration::from_millis(1 + number(300)));
            assert_eq!(limiter.check(&alice, 1).await.origin(), Origin::Store);
        }
        let keys: Vec<String> = operator.query("KEYS *").await;
        let key = &keys[number(keys.len() as u64) as usize];
        // A log keeps its older entries in blocks. Each block is in a field of a hash.
        let fields: Vec<String> = match &*operator.query::<String>(&format!("TYPE {key}")).await {
            "hash" => operator.query(&format!("HKEYS {key}")).await,
            _ => Vec::new(),
        };
        let field = (!fields.is_empty()).then(|| &fields[number(fields.len() as u64) as usize]);
        let get = if field.is_some() { "HGET" } else { "GET" };
        let sound: Vec<u8> = operator.send(redis::cmd(get).arg(key).arg(field)).await;
        let value = damaged(&sound, &mut number);
        let mut set = redis::cmd(if field.is_some() { "HSET" } else { "SET" });
        set.arg(key).arg(field).arg(&value);
        if field.is_none() {
            set.arg("KEEPTTL");
        }
        operator.send::<()>(&set).await;

        let context = format!("{layout:?}, step {step}: {limiter:?}, {}", value.escape_ascii());
        let mut passed = 0;
        for _ in 0..12 {
            let decision = limiter.check(&alice, 1).await;
            match decision.origin() {
                Origin::Store => read += 1,
                Origin::FailedClosed(FailureKind::Corrupt | FailureKind::Protocol) => refused += 1,
                other => panic!("{other:?}: {context}"),
            }
            // The decision and the charge of the script must agree.
            assert_eq!(decision.is_allowed(), decision.granted() == 1, "{decision:?} {context}");
            passed += u32::from(decision.is_allowed());
        }
        assert!(passed <= 4, "{passed} passed: {context}");
        let _ = (limiter.usage(&alice).await, limiter.request(&alice).cost(3).check_up_to().await);
        let left = operator.keys_without_expiry().await;
        assert_eq!(left, [""; 0], "{context}");
    }
    assert!(refused > DAMAGES && read > DAMAGES);
}

#[tokio::test]
async fn corrupted_packed_values_allow_no_additional_requests() {
    assert_corruption_allows_no_additional_requests(Layout::Packed, &PACKED).await;
}

#[tokio::test]
async fn corrupted_readable_values_allow_no_additional_requests() {
    assert_corruption_allows_no_additional_requests(Layout::Readable, &READABLE).await;
}

/// Corrupted values with which an earlier version allowed unlimited requests. The test above found
/// them.
///
/// In the first value, the period of a bucket begins years ahead. The script denied the request and
/// charged nothing, but the library computed another decision from the unchanged state.
///
/// In the second value, the time of the last change is nearly the largest one that can be stored.
/// The script capped later times at that maximum, so they were no longer later than the last
/// change.
#[tokio::test]
async fn states_with_extreme_times_allow_no_additional_requests() {
    let server = RedisServer::start();
    let mut operator = Bystander::new(&server).await;
    let (last, ahead, latest) =
        (1_769_903_998_000_000_u64, 8_525_338_000_000_000_u64, (1_u64 << 53) - 2);
    let clock = Arc::new(ManualClock::at(Timestamp::from_micros(last)));
    let store = RedisStore::builder(&server.url()).small_log_pages().manual_clock(clock);
    let store = store.connection_wait(PATIENCE).connect().await.unwrap();
    let cases = [
        (
            "4/hour:token-bucket:refill=interval",
            0x63,
            vec![last, ahead, 3, last + 3_600_000_000, 0],
        ),
        ("4/hour:gcra", 0x43, vec![latest, last + 900_000_000, 0, last]),
    ];
    for (limit, tag, numbers) in cases {
        let alice = Subject::consumer(limit);
        let builder = RateLimiter::builder().store(store.clone()).deadline(PATIENCE);
        let limiter = builder.limit(limit.parse().unwrap()).build().unwrap();
        assert_eq!(limiter.check(&alice, 1).await.origin(), Origin::Store);
        let keys: Vec<String> = operator.query("KEYS *").await;
        let key = keys.iter().find(|key| key.contains(&limit.replace(':', "%3A"))).unwrap();
        let stored: Vec<u8> = operator.send(redis::cmd("GET").arg(key)).await;
        let mut value = vec![6, 1, 0x81, tag];
        numbers.iter().for_each(|number| value.extend(&number.to_be_bytes()[1..]));
        assert_eq!((stored.len(), &stored[..4]), (value.len(), &value[..4]), "{limit}");
        operator.send::<()>(redis::cmd("SET").arg(key).arg(&value).arg("KEEPTTL")).await;
        let mut passed = 0;
        for _ in 0..12 {
            passed += u32::from(limiter.check(&alice, 1).await.is_allowed());
        }
        assert!(passed <= 1, "{limit}: {passed}");
    }
}
