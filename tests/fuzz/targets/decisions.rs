//! Arbitrary limits, and arbitrary operations at arbitrary times, also while the clock steps back.
//! The memory store never panics, and never grants more units than remain under its limits.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use rl_core::store::{DecideRequest, Lease, Mode, Namespace, Part, Refund, RefundOf, Renewal, Reset, Store};
use rl_core::time::{ManualClock, Timestamp};
use rl_core::{Cost, Decision, Limit, LimitSet, MaybeReady, MemoryStore, Origin, Policy, Subject};

#[derive(Arbitrary, Debug)]
enum Operation {
    At(u64),
    Later(u32),
    Decide { subject: u8, mode: u8, cost: u64 },
    Small { subject: u8, cost: u8 },
    Refund { past: u8, units: u64, of: u8 },
    Renew { past: u8, units: u64 },
    Reset { subject: u8, place: Option<u8> },
}

const TEXTS: [&str; 14] = [
    "3/minute",
    "9007199254740991/36500d",
    "3/1ms",
    "3/second:clock",
    "3/month:clock",
    "3/month:clock:offset=14days",
    "3/second:clock:offset=7ms",
    "3/minute:sliding-log",
    "3/minute:sliding-window:precision=7s",
    "3/minute:sliding-window-counter",
    "3/minute:gcra:burst=9",
    "3000000/1ms:gcra",
    "3/minute:token-bucket:capacity=9:refill=interval",
    "0/minute",
    "3:concurrency:lease=5s",
    "3/hour:requests",
];

fn at_once<T>(answer: rl_core::store::StoreFuture<T>) -> T {
    match answer {
        MaybeReady::Ready(Some(Ok(answer))) => answer,
        _ => panic!("the memory store answers at once"),
    }
}

fn policy(choice: u16, in_shadow: u16) -> Option<Policy> {
    let chosen = TEXTS.iter().enumerate().filter(|(place, _)| choice >> place & 1 == 1);
    let limits = chosen.map(|(place, text)| {
        let limit: Limit = text.parse().expect("a limit");
        if in_shadow >> place & 1 == 1 { limit.shadow() } else { limit }
    });
    Policy::new(limits).ok()
}

fuzz_target!(|input: (u16, u16, Vec<Operation>)| {
    let (choice, in_shadow, operations) = input;
    let Some(policy) = policy(choice, in_shadow) else { return };
    let policy = &policy;
    let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_767_225_600)));
    let store = MemoryStore::builder().capacity(64).clock(Arc::clone(&clock)).build();
    let namespace = &Namespace::default();
    let subjects: Vec<_> = (0..=255_u8).map(|n| Subject::user(&n.to_string())).collect();
    let mut past: Vec<(u8, Decision)> = Vec::new();
    let decide = |subject: u8, mode, cost| {
        let cost = Cost::new(cost);
        let subject = &subjects[usize::from(subject)];
        let decision = at_once(store.decide(DecideRequest::new(namespace, &[Part::new(subject, policy, cost)], mode)));
        assert_eq!(decision.origin(), Origin::Store);
        if mode == Mode::Check && decision.is_allowed() {
            let enforced = decision.limits().filter(|limit| !limit.limit().is_shadow());
            let units = |limit: Limit| if limit.counts_requests() { 1 } else { cost.units() };
            let mut granted = enforced.filter(|_| cost.units() > 0);
            assert!(granted.all(|limit| units(limit.limit()) <= limit.limit().capacity()));
        }
        for limit in decision.limits() {
            let _ = (limit.remaining(), limit.reset_after(), limit.retry_after());
        }
        decision
    };
    for operation in operations.into_iter().take(200) {
        match operation {
            Operation::At(micros) => clock.set(Timestamp::from_micros(micros >> 11)),
            Operation::Later(micros) => {
                clock.advance(std::time::Duration::from_micros(u64::from(micros)));
            }
            Operation::Decide { subject, mode, cost } => {
                let modes = [Mode::Check, Mode::CheckUpTo, Mode::Peek, Mode::Charge];
                past.push((subject, decide(subject, modes[usize::from(mode) % 4], cost)));
            }
            Operation::Small { subject, cost } => {
                past.push((subject, decide(subject, Mode::Check, u64::from(cost % 4))));
            }
            Operation::Refund { past: which, units, of } => {
                let Some((subject, decision)) = past.get(usize::from(which)) else { continue };
                let subject = &subjects[usize::from(*subject)];
                let of = [RefundOf::All, RefundOf::Rates, RefundOf::Permits][usize::from(of) % 3];
                let (charged, uncharged) = (decision.at(), LimitSet::EMPTY);
                at_once(store.settle(&[Refund {
                    namespace,
                    subject,
                    policy,
                    charged,
                    units,
                    of,
                    uncharged,
                }.into()]));
            }
            Operation::Renew { past: which, units } => {
                let Some((subject, decision)) = past.get(usize::from(which)) else { continue };
                let subject = &subjects[usize::from(*subject)];
                let (charged, uncharged) = (decision.at(), LimitSet::EMPTY);
                at_once(store.renew(Renewal {
                    namespace,
                    subject,
                    policy,
                    charged,
                    units,
                    uncharged, lease: Lease::Permits,
                }));
            }
            Operation::Reset { subject, place } => {
                let subject = &subjects[usize::from(subject)];
                let limit = place.map(usize::from);
                at_once(store.reset(&[Reset { namespace, subject, policy, limit }]));
            }
        }
        assert!(store.len() <= 128);
    }
});
