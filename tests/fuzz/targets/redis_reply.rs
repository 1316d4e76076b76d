//! Replies of a faulty server: each yields an error or a valid decision, which grants no more than
//! the reply contains.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use rl_core::denial::{DenialBody, DenialReason, Protocol};
use rl_core::headers::{HeaderFamily, Headers};
use rl_core::store::Mode;
use rl_core::{Cost, GoverningLimit, Policy, RedisStore, Subject};

static POLICIES: LazyLock<Vec<Policy>> = LazyLock::new(|| {
    let policies: [&[&str]; 9] = [
        &["5/minute"],
        &["5/second:clock", "9007199254740991/month:clock"],
        &["5/minute:sliding-log", "100000/day:sliding-log"],
        &["5/hour:sliding-window:precision=5m"],
        &["5/hour:sliding-window-counter", "0/second"],
        &["5/hour:gcra", "1/month:gcra:burst=9"],
        &["5/hour:token-bucket:capacity=9", "5/1ms:token-bucket:refill=interval"],
        &["5:concurrency", "5/minute:requests", "5/day:shadow"],
        &["1/100ms", "7/1500ms:gcra", "3:concurrency:lease=1ms", "1/day:sliding-log:shadow"],
    ];
    let policy = |limits: &&[&str]| {
        let limits = limits.iter().map(|limit| limit.parse().expect("a limit"));
        Policy::new(limits).expect("a policy")
    };
    policies.iter().map(policy).collect()
});

fuzz_target!(|input: (u8, u8, u64, &[u8])| {
    let (policy, mode, cost, reply) = input;
    let policy = &POLICIES[usize::from(policy) % POLICIES.len()];
    let modes = [Mode::Check, Mode::CheckUpTo, Mode::Peek, Mode::Charge];
    let mode = modes[usize::from(mode) % modes.len()];
    let Ok(decision) = RedisStore::decode_reply(reply, policy, mode, Cost::new(cost)) else {
        return;
    };

    assert_eq!(decision.limits().len(), policy.limits().len());
    let _ = (decision.is_allowed(), decision.retry_after(), decision.granted());
    for limit in decision.limits() {
        assert!(limit.remaining() <= limit.max().max(limit.limit().capacity()));
        let _ = (limit.used(), limit.reset_after(), limit.retry_after(), limit.is_over());
    }
    let headers =
        Headers::new(HeaderFamily::IetfDraft11).and(HeaderFamily::OpenBank).and(HeaderFamily::GitHub);
    for line in headers.lines(&decision).iter() {
        assert!(line.value.iter().all(|b| (b' '..=b'~').contains(b)));
    }
    let subject = Subject::ip([192, 0, 2, 7]);
    for protocol in [Protocol::Http, Protocol::Grpc] {
        let reason = DenialReason::Decision { decision: &decision, subject: &subject, rule: None };
        let _ = DenialBody::problem().denial(reason, GoverningLimit::FewestRemaining, protocol);
    }
});
