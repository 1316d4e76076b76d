//! The permissions that a service needs on Redis. With exactly these, it works.

use rl_core::store::{
    DecideRequest, Layout, Lease, Mode, Namespace, Part, Refund, RefundOf, Renewal, Reset, Store,
};
use rl_core::{Cost, Limit, LimitSet, Origin, Policy, RateLimiter, RedisStore, Subject};
use rl_tests::{Bystander, RedisServer};

use super::{LAYOUTS, PATIENCE};

/// Returns the `ACL SETUSER` command of REDIS.md, so that the documented permissions are tested.
pub(crate) fn documented_user(layout: Layout) -> String {
    let page = include_str!("../../../crates/rl-core/docs/REDIS.md");
    let keys = match layout {
        Layout::Packed => " resetkeys ~rl:* resetchannels ",
        Layout::Readable => " resetkeys ~*_PER_* resetchannels ",
    };
    let is_for_layout = |line: &&str| line.starts_with("ACL SETUSER rl ") && line.contains(keys);
    let lines: Vec<&str> = page.lines().filter(is_for_layout).collect();
    let [line] = lines[..] else { panic!("one line for {layout:?}: {lines:?}") };
    assert!(line.contains(" >PASSWORD "), "{line}");
    line.replace(">PASSWORD", ">secret")
}

fn limiter_policy() -> Policy {
    Policy::new([Limit::per_minute(5), Limit::per_hour(9)]).unwrap()
}

/// Creates a limiter that connects as the user `rl`.
async fn limiter_of_user(server: &RedisServer, layout: Layout) -> RateLimiter {
    let store = RedisStore::builder(&server.url_of("rl", "secret"))
        .local_denial(false)
        .layout(layout)
        .connection_wait(PATIENCE);
    RateLimiter::builder()
        .policy(limiter_policy())
        .store(store.connect().await.unwrap())
        .deadline(PATIENCE)
        .build()
        .unwrap()
}

/// Runs every operation on a sliding log, which requires a second key and further commands.
async fn assert_logs_work(operator: &mut Bystander, server: &RedisServer) {
    let store = RedisStore::builder(&server.url_of("rl", "secret"))
        .local_denial(false)
        .connection_wait(PATIENCE);
    let store = store.connect().await.unwrap();
    let limits = ["2/second", "90/minute:sliding-log", "90:concurrency:lease=1m"];
    let policy = Policy::new(limits.map(|text| text.parse().unwrap())).unwrap();
    let (subject, namespace) = (&Subject::consumer("bob"), &Namespace::default());
    let mut last = None;
    // A log seals each block of 36 entries, so these 40 requests need the key of the sealed blocks
    // too.
    for _ in 0..40 {
        let (mode, cost) = (Mode::Charge, Cost::ONE);
        let parts = [Part::new(subject, &policy, cost)];
        let request = DecideRequest::new(namespace, &parts, mode);
        last = Some(store.decide(request).await.unwrap().at());
    }
    let (charged, units, policy) = (last.unwrap(), 1, &policy);
    let renewal = Renewal {
        namespace,
        subject,
        policy,
        charged,
        units,
        uncharged: LimitSet::EMPTY,
        lease: Lease::Permits,
    };
    let charged = store.renew(renewal).await.unwrap().held().unwrap();
    let of = RefundOf::Permits;
    let refund =
        Refund { namespace, subject, policy, charged, units, of, uncharged: LimitSet::EMPTY };
    store.settle(&[refund.into()]).await.unwrap();
    let keys: Vec<String> = operator.query("KEYS *bob*").await;
    assert_eq!(keys.len(), 3);
    for key in keys {
        operator.query::<()>(&format!("PERSIST {key}")).await;
    }
    let parts = [Part::new(subject, policy, Cost::new(90))];
    let request = DecideRequest::new(namespace, &parts, Mode::Check);
    let denied = store.decide(request).await.unwrap();
    let used: Vec<u64> = denied.limits().skip(1).map(|limit| limit.used()).collect();
    assert_eq!((denied.is_allowed(), used), (false, vec![40, 39]));
    assert_eq!(operator.keys_without_expiry().await, [""; 0]);
    assert_eq!(store.healed(), 3);
    store.reset(&[Reset { namespace, subject, policy, limit: Some(1) }]).await.unwrap();
}

/// Runs every operation except a reset, which only operators may run.
async fn assert_works(limiter: &RateLimiter, operator: &mut Bystander) {
    let subject = Subject::consumer("alice");
    let decision = limiter.check(&subject, 3).await;
    assert_eq!(decision.origin(), Origin::Store);
    limiter.request(&subject).refund(&decision, &[2]).await.unwrap();
    let peek = limiter.peek(&subject, 5).await;
    assert_eq!((peek.origin(), peek.is_allowed()), (Origin::Store, false));
    let usage = limiter.usage(&subject).await.unwrap();
    assert!(usage.limits().all(|limit| limit.used() == 1));
    assert_eq!(limiter.request(&subject).cost(4).charge().await.origin(), Origin::Store);

    let keys: Vec<String> = operator.query("KEYS *").await;
    for key in keys {
        operator.query::<()>(&format!("PERSIST {key}")).await;
    }
    let denied = limiter.check(&subject, 1).await;
    assert_eq!((denied.origin(), denied.is_allowed()), (Origin::Store, false));
    assert_eq!(operator.keys_without_expiry().await, [""; 0]);
}

#[tokio::test]
async fn both_layouts_work_under_the_documented_minimal_user() {
    let server = RedisServer::start();
    let mut operator = Bystander::new(&server).await;
    for layout in LAYOUTS {
        operator.query::<()>("FLUSHALL").await;
        operator.query::<()>(&documented_user(layout)).await;
        let limiter = limiter_of_user(&server, layout).await;
        assert_works(&limiter, &mut operator).await;
        if layout == Layout::Packed {
            assert_logs_work(&mut operator, &server).await;
        }
        // A reset needs permissions that the service does not have.
        assert!(limiter.reset(&Subject::consumer("alice")).await.is_err());
    }
}

/// If an operator loads the scripts, the service needs only the permission to run scripts.
#[tokio::test]
async fn both_layouts_work_with_scripts_that_an_operator_has_loaded() {
    let server = RedisServer::start();
    let mut operator = Bystander::new(&server).await;
    let without = ["+script|load", "+ping", "+hello", "+auth", "+client|setname"];
    let user_of = |layout| {
        let user = documented_user(layout);
        without.iter().fold(user, |user, word| user.replace(&format!(" {word}"), ""))
    };
    for layout in LAYOUTS {
        operator.query::<()>("FLUSHALL").await;
        operator.query::<()>(&user_of(layout)).await;
        for script in RedisStore::scripts(layout, [&limiter_policy()]) {
            let mut load = redis::cmd("SCRIPT");
            let sha: String = operator.send(load.arg("LOAD").arg(script.text())).await;
            assert_eq!(sha, script.sha(), "{}", script.name());
        }
        let limiter = limiter_of_user(&server, layout).await;
        assert_works(&limiter, &mut operator).await;
    }

    // Scripts are the only way in which the store decides. Without them, it allows nothing.
    operator.query::<()>("SCRIPT FLUSH").await;
    for layout in LAYOUTS {
        operator.query::<()>(&user_of(layout)).await;
        let limiter = limiter_of_user(&server, layout).await;
        let denied = limiter.check(&Subject::consumer("bob"), 1).await;
        assert!(!denied.is_allowed());
        assert!(matches!(denied.origin(), Origin::FailedClosed(_)), "{denied:?}");
    }
}
