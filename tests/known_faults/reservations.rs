//! A reservation of an estimated cost: it is refunded if its process dies, and stays charged while
//! its holder lives.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rl_core::store::{
    DecideRequest, Layout, Lease, LeaseStatus, Mode, Namespace, Part, Refund, RefundOf, Renewal,
    Reservation, Reservations, Reset, Settlement, Store,
};
use rl_core::time::{Clock, ManualClock, Timestamp};
use rl_core::{Cost, Decision, Policy, RateLimiter, RedisStore, RedisStoreBuilder, Subject};
use rl_tests::{Bystander, RedisServer};

/// The time limit for waiting for a condition.
const PATIENCE: Duration = Duration::from_secs(30);
const LIFETIME: Duration = Duration::from_secs(10);

fn policy(limits: &[&str]) -> Policy {
    Policy::new(limits.iter().map(|limit| limit.parse().unwrap())).unwrap()
}

fn patient(server: &RedisServer) -> RedisStoreBuilder {
    RedisStore::builder(&server.url()).connection_wait(PATIENCE).response_timeout(PATIENCE)
}

/// A store on Redis with a manual clock.
struct World {
    server: RedisServer,
    clock: Arc<ManualClock>,
    store: RedisStore,
}

impl World {
    async fn new() -> Self {
        let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_700_000_000)));
        let server = RedisServer::start();
        let store = patient(&server).manual_clock(clock.clone()).connect().await.unwrap();
        Self { server, clock, store }
    }

    async fn decide(
        &self,
        subject: &Subject,
        policy: &Policy,
        mode: Mode,
        cost: u64,
        reservations: Reservations,
    ) -> Decision {
        let (namespace, parts) =
            (Namespace::default(), [Part::new(subject, policy, Cost::new(cost))]);
        let request = DecideRequest::new(&namespace, &parts, mode);
        self.store.decide(request.with_reservations(reservations)).await.unwrap()
    }

    async fn reserve(&self, subject: &Subject, policy: &Policy, cost: u64) -> Decision {
        self.decide(subject, policy, Mode::Check, cost, Reservations::Reserve(LIFETIME)).await
    }

    /// Makes a check that reserves nothing itself, but refunds expired reservations.
    async fn check(&self, subject: &Subject, policy: &Policy, cost: u64) -> Decision {
        self.decide(subject, policy, Mode::Check, cost, Reservations::ReturnExpired).await
    }

    async fn used(&self, subject: &Subject, policy: &Policy) -> Vec<u64> {
        let usage = self.decide(subject, policy, Mode::Peek, 0, Reservations::ReturnExpired).await;
        usage.limits().map(|limit| limit.used()).collect()
    }

    /// Renews a reservation.
    async fn renew(
        &self,
        subject: &Subject,
        reserved: &Decision,
        expires: Timestamp,
    ) -> LeaseStatus<Timestamp> {
        let renewal = Renewal {
            namespace: &Namespace::default(),
            subject,
            policy: reserved.policy().unwrap(),
            charged: reserved.at(),
            units: reserved.granted(),
            uncharged: reserved.uncharged(),
            lease: Lease::Reservation { expires, lifetime: LIFETIME },
        };
        self.store.renew(renewal).await.unwrap()
    }

    /// Ends a reservation, and refunds units of it.
    async fn settle(
        &self,
        subject: &Subject,
        reserved: &Decision,
        expires: Timestamp,
        units: u64,
    ) -> LeaseStatus {
        let refund = Refund {
            namespace: &Namespace::default(),
            subject,
            policy: reserved.policy().unwrap(),
            charged: reserved.at(),
            units,
            of: RefundOf::Rates,
            uncharged: reserved.uncharged(),
        };
        let reservation = Some(Reservation { units: reserved.granted(), expires });
        let settlement = Settlement { reservation, ..refund.into() };
        self.store.settle(&[settlement]).await.unwrap()
    }
}

fn expires(reserved: &Decision) -> Timestamp {
    later(reserved.at(), LIFETIME)
}

fn later(time: Timestamp, by: Duration) -> Timestamp {
    time.plus_micros(by.as_micros().try_into().unwrap())
}

#[tokio::test]
async fn an_expired_reservation_is_settled_at_zero_under_every_algorithm() {
    let world = World::new().await;
    let limits = [
        "100/minute",
        "100/hour:clock",
        "100/minute:sliding-log",
        "100/minute:sliding-window:precision=second",
        "100/minute:sliding-window-counter",
        "100/minute:token-bucket:capacity=90",
        "100/minute:token-bucket:capacity=90:refill=interval",
        "100/minute:gcra:burst=90",
        "100/day:requests",
        "50/day:shadow",
        "9:concurrency:lease=minute:requests",
    ];
    let mut policies: Vec<Policy> = limits.iter().map(|limit| policy(&[limit])).collect();
    policies.push(policy(&limits[..2]));
    policies.push(policy(&["100/minute", "100/hour", "100/day"]));
    policies.push(policy(&limits[2..]));
    for (n, policy) in policies.iter().enumerate() {
        let [dies, settles] = ["dies", "settles"].map(|id| Subject::user(&format!("{id}-{n}")));
        for cost in [30, 40] {
            let reserved = world.reserve(&dies, policy, cost).await;
            let charged =
                world.decide(&settles, policy, Mode::Check, cost, Reservations::Ignore).await;
            assert!(reserved.is_allowed() && charged.is_allowed(), "{policy}: {reserved:?}");
            world.clock.advance(LIFETIME - Duration::from_micros(1));
            assert_eq!(
                world.used(&dies, policy).await,
                world.used(&settles, policy).await,
                "{policy}: it has not expired"
            );
            world.clock.advance(Duration::from_micros(1));
            let refund = Refund {
                namespace: &Namespace::default(),
                subject: &settles,
                policy,
                charged: charged.at(),
                units: cost,
                of: RefundOf::Rates,
                uncharged: charged.uncharged(),
            };
            world.store.settle(&[refund.into()]).await.unwrap();
            let after =
                [world.check(&dies, policy, 1).await, world.check(&settles, policy, 1).await];
            let [one, other] = after.each_ref().map(|decision| {
                let limits = decision.limits();
                let seen = limits.map(|limit| (limit.used(), limit.reset_after()));
                (decision.is_allowed(), seen.collect::<Vec<_>>())
            });
            assert_eq!(one, other, "{policy}");
            world.clock.advance(Duration::from_secs(2));
        }
    }
    assert_eq!(world.server.keys_without_expiry().await, [""; 0]);
}

#[tokio::test]
async fn usage_excludes_expired_reservations_before_a_decision_gives_them_back() {
    let world = World::new().await;
    let (alice, policy) = (&Subject::user("alice"), &policy(&["100/hour"]));
    world.reserve(alice, policy, 60).await;
    assert_eq!(world.used(alice, policy).await, [60]);
    world.clock.advance(LIFETIME);
    assert_eq!(world.used(alice, policy).await, [0]);
    assert!(world.check(alice, policy, 100).await.is_allowed());
}

#[tokio::test]
async fn a_renewed_reservation_stays_charged_and_a_settled_one_is_refunded_once() {
    let world = World::new().await;
    let (alice, policy) = (&Subject::user("alice"), &policy(&["100/hour", "200/day"]));
    let reserved = world.reserve(alice, policy, 60).await;
    let mut until = expires(&reserved);
    for _ in 0..5 {
        world.clock.advance(LIFETIME / 2);
        let status = world.renew(alice, &reserved, until).await;
        until = later(world.clock.now(), LIFETIME);
        assert_eq!(status, LeaseStatus::Held(until));
        assert_eq!(world.used(alice, policy).await, [60, 60]);
    }
    let status = world.settle(alice, &reserved, until, 20).await;
    assert_eq!(status, LeaseStatus::Held(()));
    world.clock.advance(2 * LIFETIME);
    assert_eq!(world.check(alice, policy, 1).await.limits().next().unwrap().used(), 41);
    let status = world.settle(alice, &reserved, until, 20).await;
    assert_eq!(status, LeaseStatus::Expired, "its end is no longer known");
    assert_eq!(world.used(alice, policy).await, [41, 41]);
}

#[tokio::test]
async fn a_reservation_that_expired_or_was_lost_or_reset_is_not_settled() {
    let world = World::new().await;
    let (alice, policy) = (&Subject::user("alice"), &policy(&["100/hour"]));
    let lost = world.reserve(alice, policy, 60).await;
    world.clock.advance(LIFETIME);
    assert!(world.check(alice, policy, 90).await.is_allowed());
    let status = world.settle(alice, &lost, expires(&lost), 60).await;
    assert_eq!(status, LeaseStatus::Expired);
    assert_eq!(world.used(alice, policy).await, [90]);

    let bob = &Subject::user("bob");
    let reset = world.reserve(bob, policy, 60).await;
    world.clock.advance(Duration::from_secs(1));
    let namespace = &Namespace::default();
    let forget = Reset { namespace, subject: bob, policy, limit: None };
    world.store.reset(&[forget]).await.unwrap();
    assert!(world.check(bob, policy, 90).await.is_allowed());
    world.settle(bob, &reset, expires(&reset), 60).await;
    assert_eq!(world.used(bob, policy).await, [90], "units that were reset are not refunded");

    let carol = &Subject::user("carol");
    let lost = world.reserve(carol, policy, 60).await;
    Bystander::new(&world.server).await.query::<()>("FLUSHALL").await;
    let status = world.settle(carol, &lost, expires(&lost), 60).await;
    assert_eq!(status, LeaseStatus::Forgotten);
}

#[tokio::test]
async fn a_reservation_made_before_a_reset_refunds_nothing_when_it_expires() {
    let world = World::new().await;
    let (alice, policy) = (&Subject::user("alice"), &policy(&["100/hour", "100/hour:clock"]));
    world.reserve(alice, policy, 60).await;
    world.clock.advance(Duration::from_secs(1));
    let namespace = &Namespace::default();
    world.store.reset(&[Reset { namespace, subject: alice, policy, limit: None }]).await.unwrap();
    assert!(world.check(alice, policy, 90).await.is_allowed());
    world.clock.advance(LIFETIME);
    world.check(alice, policy, 1).await;
    assert_eq!(world.used(alice, policy).await, [91, 91]);
}

/// A decision refunds at most 32 reservations, or 4 under a log, so that it does not block the
/// server.
#[tokio::test]
async fn reservations_that_expire_together_are_refunded_in_bounded_steps() {
    let world = World::new().await;
    for (limit, step) in [("1000/hour", 32), ("1000/hour:sliding-log", 4)] {
        let (alice, policy) = (&Subject::user("alice"), &policy(&[limit]));
        for _ in 0..100 {
            assert!(world.reserve(alice, policy, 2).await.is_allowed());
        }
        assert_eq!(world.used(alice, policy).await, [200], "reserved at the same time");
        // The manual clock stood still, so the store gave each reservation a time one microsecond
        // after the one before. The last of the 100 expires less than a millisecond after the
        // first.
        world.clock.advance(LIFETIME + Duration::from_millis(1));
        let decision = world.check(alice, policy, 1).await;
        assert_eq!(decision.limits().next().unwrap().used(), 201 - 2 * step, "{limit}");
        for _ in 0..100 / step {
            world.check(alice, policy, 1).await;
        }
        assert_eq!(world.used(alice, policy).await, [1 + 100 / step], "{limit}");
    }
}

/// A busy machine may interrupt the server. So the test uses the shortest of several decisions,
/// each of which refunds the maximum number of reservations.
#[tokio::test]
async fn refunding_expired_reservations_takes_the_server_less_than_a_millisecond() {
    let world = World::new().await;
    let windows = ["second", "minute", "hour", "day", "week", "month"];
    let mut mixed: Vec<String> =
        windows.iter().map(|period| format!("9000/{period}:clock")).collect();
    mixed.extend(windows.iter().map(|period| format!("9000/{period}:gcra:burst=9000")));
    mixed.push("9000/200seconds:sliding-window:precision=1second".to_owned());
    mixed.push("9000/hour:sliding-window-counter".to_owned());
    let mixed: Vec<&str> = mixed.iter().map(String::as_str).collect();
    for policy in [policy(&mixed), policy(&["9000/hour:sliding-log", "9000/day:sliding-log"])] {
        let mut shortest = u64::MAX;
        for n in 0..8 {
            let alice = &Subject::user(&format!("alice-{n}"));
            for _ in 0..40 {
                assert!(world.reserve(alice, &policy, 1).await.is_allowed());
                world.clock.advance(Duration::from_micros(1));
            }
            world.clock.advance(LIFETIME);
            let before = micros_in_scripts(&world.server).await;
            world.check(alice, &policy, 1).await;
            shortest = shortest.min(micros_in_scripts(&world.server).await - before);
        }
        assert!(shortest < 1_000, "{shortest} µs under {policy}");
    }
}

/// Returns the time in µs that the server has spent in scripts.
async fn micros_in_scripts(server: &RedisServer) -> u64 {
    let stats: String = Bystander::new(server).await.query("INFO commandstats").await;
    let scripts = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:")).unwrap();
    let micros = scripts.split(',').find_map(|field| field.strip_prefix("usec=")).unwrap();
    micros.parse().unwrap()
}

#[tokio::test]
async fn an_expired_reservation_refunds_the_limits_that_a_changed_policy_still_has() {
    let world = World::new().await;
    let before = &policy(&["100/minute", "100/hour:gcra:burst=100", "100/day:clock"]);
    let after = &policy(&["100/day:clock", "300/minute", "50/week"]);
    let alice = &Subject::user("alice");
    world.reserve(alice, before, 40).await;
    world.check(alice, after, 5).await;
    assert_eq!(world.used(alice, after).await, [45, 45, 5]);
    world.clock.advance(LIFETIME);
    world.check(alice, after, 1).await;
    assert_eq!(world.used(alice, after).await, [6, 6, 6]);
}

#[tokio::test]
async fn a_request_is_charged_its_cost_in_the_end_if_its_reservation_expired() {
    let world = World::new().await;
    let limiter = RateLimiter::builder().policy(policy(&["100/hour", "100/day:requests"]));
    let limiter = limiter.store(world.store.clone()).deadline(PATIENCE);
    let limiter = limiter.reservation_expires_after(LIFETIME).build().unwrap();
    let alice = &Subject::user("alice");
    let used = async || {
        let usage = limiter.usage(alice).await.unwrap();
        usage.limits().map(|limit| limit.used()).collect::<Vec<_>>()
    };
    // The second limit counts requests. When a reservation has expired, its cost and its request
    // are refunded. The settlement of a cost above 0 then charges that cost and one request.
    for (due, expected) in [(60, [60, 1]), (25, [85, 2]), (0, [85, 2])] {
        let before = used().await;
        let permit = limiter.acquire(alice, 15).await;
        assert!(permit.decision().is_allowed());
        world.clock.advance(LIFETIME + Duration::from_millis(1));
        assert_eq!(used().await, before, "it has expired");
        assert!(limiter.check(alice, 0).await.is_allowed());
        permit.set_cost(due);
        permit.settle().await.unwrap();
        assert_eq!(used().await, expected);
    }
}

#[tokio::test]
async fn a_reserved_permit_is_settled_exactly() {
    let world = World::new().await;
    let limits =
        ["1000/hour", "1000/minute:token-bucket", "100/day:requests", "5:concurrency:requests"];
    let limiter = RateLimiter::builder().policy(policy(&limits)).store(world.store.clone());
    let limiter = limiter.reservation_expires_after(LIFETIME).deadline(PATIENCE).build().unwrap();
    let alice = &Subject::user("alice");
    let mut expected = [0, 0, 0];
    for (reserved, due) in [(40, 40), (40, 10), (10, 70), (30, 0)] {
        let permit = limiter.acquire(alice, reserved).await;
        assert!(permit.decision().is_allowed());
        permit.set_cost(due);
        permit.settle().await.unwrap();
        let requests = u64::from(due > 0);
        expected = [expected[0] + due, expected[1] + due, expected[2] + requests];
        let usage = limiter.usage(alice).await.unwrap();
        let used: Vec<_> = usage.limits().map(|limit| limit.used()).collect();
        assert_eq!((&used[..3], used[3]), (&expected[..], 0), "{reserved} reserved, {due} due");
    }
    // No reservation is left that could expire.
    world.clock.advance(LIFETIME);
    limiter.check(alice, 0).await;
    assert_eq!(limiter.usage(alice).await.unwrap().limits().next().unwrap().used(), expected[0]);
    let mut bystander = Bystander::new(&world.server).await;
    let keys = bystander.query::<Vec<String>>("KEYS *:reserved").await;
    assert_eq!(keys, [""; 0]);
}

#[tokio::test]
async fn the_readable_layout_reserves_nothing() {
    let server = RedisServer::start();
    let store = patient(&server).layout(Layout::Readable).connect().await.unwrap();
    let limiter = RateLimiter::builder().policy(policy(&["100/hour"])).store(store);
    let limiter = limiter.reservation_expires_after(LIFETIME).deadline(PATIENCE).build().unwrap();
    let alice = &Subject::user("alice");
    let permit = limiter.acquire(alice, 40).await;
    permit.set_cost(30);
    permit.settle().await.unwrap();
    assert_eq!(limiter.usage(alice).await.unwrap().limits().next().unwrap().used(), 30);
}

/// A real process reserves an estimated cost, and is killed.
#[tokio::test]
async fn the_estimate_of_a_process_that_is_killed_comes_back() {
    const SECOND: Duration = Duration::from_secs(1);

    let server = RedisServer::start();
    let mut bystander = Bystander::new(&server).await;
    let mut process = Command::new(env!("CARGO_BIN_EXE_contender"))
        .args([&server.url(), "5/hour", "1000"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().starts_with("ready"));
    writeln!(process.stdin.as_ref().unwrap(), "alice 5").unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "5");

    let limiter = RateLimiter::builder().policy(policy(&["5/hour"])).deadline(PATIENCE);
    let store = patient(&server).local_denial(false).connect().await.unwrap();
    let limiter = limiter.store(store).reservation_expires_after(SECOND).build().unwrap();
    let alice = &Subject::user("alice");
    let three_lifetimes = later(bystander.now().await, 3 * SECOND);
    while bystander.now().await < three_lifetimes {
        assert!(!limiter.check(alice, 1).await.is_allowed(), "the holder lives");
    }
    process.kill().unwrap();
    process.wait().unwrap();
    let expired = later(bystander.now().await, SECOND);
    bystander.wait_until(expired).await;
    let decision = limiter.check(alice, 5).await;
    assert!(decision.is_allowed(), "{decision:?}");
}
