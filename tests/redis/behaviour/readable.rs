//! The readable layout: the values that `redis-cli` shows, and counters that are shared with other
//! services.

use rl_core::source::{ByRealm, Preset};
use rl_core::store::Layout;
use rl_core::{Decision, Limit, Policy, RateLimiter, Realm, Subject};
use rl_tests::{Bystander, RedisServer};

use super::{PATIENCE, check, limiter, six_limits, store_of, used};

const SECONDS: [(&str, u64); 6] = [
    ("PER_SECOND", 1),
    ("PER_MINUTE", 60),
    ("PER_HOUR", 3_600),
    ("PER_DAY", 86_400),
    ("PER_WEEK", 604_800),
    ("PER_MONTH", 2_592_000),
];

/// Counts a call as another service with the same format does. That service reads `TTL`. It then
/// sends `SETEX` for the first call of a window, and `INCR` for a later one. Returns the count.
async fn count_as_others_do(other: &mut Bystander, key: &str, seconds: u64) -> u64 {
    match other.query::<i64>(&format!("TTL {key}")).await {
        -2 => {
            other.query::<()>(&format!("SETEX {key} {seconds} 1")).await;
            1
        }
        _ => other.query(&format!("INCR {key}")).await,
    }
}

#[tokio::test]
async fn a_counter_shows_its_count_and_its_window() {
    let server = RedisServer::start();
    let store = store_of(&server, Layout::Readable).await;
    let limiter = limiter(&store, &[Limit::per_minute(100)]);
    let mut operator = Bystander::new(&server).await;
    for count in 1..=42 {
        check(&limiter, &Subject::consumer("consumer_abc123")).await;
        let shown: String = operator.query("GET consumer_abc123_PER_MINUTE").await;
        assert_eq!(shown, count.to_string());
    }
    let ttl: u64 = operator.query("TTL consumer_abc123_PER_MINUTE").await;
    assert!((55..=60).contains(&ttl), "{ttl}");
    let keys: Vec<String> = operator.query("KEYS *").await;
    assert_eq!(keys, ["consumer_abc123_PER_MINUTE"]);
}

#[tokio::test]
async fn all_six_counters_live_as_long_as_their_periods() {
    let server = RedisServer::start();
    let store = store_of(&server, Layout::Readable).await;
    let limiter = limiter(&store, &six_limits());
    let mut operator = Bystander::new(&server).await;
    let mut expiries = redis::cmd("EVAL");
    // One script reads all expiries, so that the window of one second cannot end between two of
    // them.
    expiries.arg("local all = {} for i, key in ipairs(KEYS) do all[i] = redis.call('PTTL', key) end return all");
    expiries.arg(SECONDS.len());
    for (suffix, _) in SECONDS {
        expiries.arg(format!("consumer_abc123_{suffix}"));
    }
    check(&limiter, &Subject::consumer("consumer_abc123")).await;
    let left: Vec<u64> = operator.send(&expiries).await;
    for ((suffix, seconds), left) in SECONDS.into_iter().zip(left) {
        let millis = 1_000 * seconds;
        assert!((millis - 900..=millis).contains(&left), "{suffix}: {left} ms");
    }
}

/// Consumers have limits for six periods. Each address of anonymous clients has one limit per hour.
#[tokio::test]
async fn the_open_bank_preset_counts_consumers_in_six_periods_and_addresses_by_the_hour() {
    let server = RedisServer::start();
    let store = store_of(&server, Layout::Readable).await;
    let fewer_anonymous = Policy::new([Limit::per_hour(60)]).unwrap();
    let of = |policies: ByRealm| {
        RateLimiter::builder()
            .policies(policies)
            .store(store.clone())
            .deadline(PATIENCE)
            .build()
            .unwrap()
    };
    let preset = of(Preset::OpenBank.policies());
    let adjusted = of(Preset::OpenBank.policies().with(Realm::Ip, fewer_anonymous));
    let maxima = |decision: Decision| -> Vec<(String, u64)> {
        let limits = decision.limits();
        limits.map(|limit| (limit.name().to_owned(), limit.max())).collect()
    };

    let consumer = check(&preset, &Subject::consumer("consumer_abc123")).await;
    let names: Vec<String> = maxima(consumer).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["second", "minute", "hour", "day", "week", "month"]);
    let anonymous = Subject::ip([192, 168, 1, 100]);
    for (limiter, max) in [(&preset, 1_000), (&adjusted, 60)] {
        let decision = check(limiter, &anonymous).await;
        assert_eq!(maxima(decision), [("hour".to_owned(), max)]);
    }
    let count: String = server.query("GET 192.168.1.100_PER_HOUR").await;
    assert_eq!(count, "2");
    let ttl: u64 = server.query("TTL 192.168.1.100_PER_HOUR").await;
    assert!((3_590..=3_600).contains(&ttl), "{ttl}");
}

/// Either service may open the window. Both services then count in it.
#[tokio::test]
async fn counters_are_shared_with_another_service_in_both_directions() {
    let server = RedisServer::start();
    let store = store_of(&server, Layout::Readable).await;
    // There is no limit per second, because its window would end during the test.
    let limits = SECONDS[1..].len();
    let limiter = limiter(
        &store,
        &six_limits()[1..]
            .iter()
            .map(|limit| Limit::new(8, limit.period()).unwrap())
            .collect::<Vec<_>>(),
    );
    let mut other = Bystander::new(&server).await;
    for (first_is_ours, consumer) in [(true, "ours_first"), (false, "others_first")] {
        let subject = Subject::consumer(consumer);
        let mut turn_is_ours = first_is_ours;
        for count in 1..=8 {
            if turn_is_ours {
                let decision = check(&limiter, &subject).await;
                assert!(decision.is_allowed());
                let counts: Vec<u64> = decision.limits().map(|limit| limit.used()).collect();
                assert_eq!(counts, vec![count; limits]);
            } else {
                for (suffix, seconds) in &SECONDS[1..] {
                    let key = format!("{consumer}_{suffix}");
                    assert_eq!(count_as_others_do(&mut other, &key, *seconds).await, count);
                }
            }
            turn_is_ours = !turn_is_ours;
        }
        // Both services together have used the limit of eight.
        assert!(!check(&limiter, &subject).await.is_allowed());
        assert_eq!(used(&limiter, &subject).await, vec![8; limits]);
        for (suffix, seconds) in &SECONDS[1..] {
            let key = format!("{consumer}_{suffix}");
            assert_eq!(other.query::<String>(&format!("GET {key}")).await, "8");
            let ttl: u64 = other.query(&format!("TTL {key}")).await;
            assert!((seconds - 10..=*seconds).contains(&ttl), "{key}: {ttl}");
        }
    }
}

/// A reset of one limit deletes the counter of that limit only.
#[tokio::test]
async fn a_reset_deletes_one_counter_or_all() {
    let server = RedisServer::start();
    let store = store_of(&server, Layout::Readable).await;
    let limiter = limiter(&store, &six_limits()[1..3]);
    let subject = Subject::consumer("consumer_abc123");
    check(&limiter, &subject).await;
    limiter.request(&subject).reset_limit("minute").await.unwrap();
    let keys: Vec<String> = server.query("KEYS *").await;
    assert_eq!(keys, ["consumer_abc123_PER_HOUR"]);
    assert_eq!(used(&limiter, &subject).await, [0, 1]);
    limiter.reset(&subject).await.unwrap();
    assert_eq!(server.query::<u64>("DBSIZE").await, 0);
}
