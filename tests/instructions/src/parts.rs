//! Repeats requests of several parts, each under a rule of its own: a key, its address and the
//! fleet.

use std::hint::black_box;

use rl_core::{Cost, MaybeReady, Part, Policy, Subject};

/// Decides requests of the first `count` parts. The key is under `policy`, the address and the
/// fleet are under `limit`.
pub(crate) fn decide(policy: &Policy, limit: &str, count: usize, times: u64) {
    let one = || Policy::new([limit.parse().expect("a limit")]).expect("a policy");
    let (of_address, of_fleet) = (one(), one());
    let limiter = crate::limiter(one());
    let rule = |name| limiter.namespace().rule(name).expect("a rule");
    let namespaces = ["keys", "addresses", "fleet"].map(rule);
    let subjects =
        [Subject::consumer("consumer-00000001"), Subject::ip([10, 0, 0, 1]), Subject::global()];
    let policies = [policy, &of_address, &of_fleet];
    let part = |index: usize| {
        let part = Part::new(&subjects[index], policies[index], Cost::ONE);
        part.with_namespace(&namespaces[index])
    };
    let parts: Vec<_> = (0..count).map(part).collect();
    let once = || {
        let answer = limiter.request(black_box(&parts)).check();
        assert!(
            matches!(black_box(&answer), MaybeReady::Ready(Some(_))),
            "a decision in memory is ready at once"
        );
    };
    (0..2).for_each(|_| once());
    crate::counted(|| (0..times).for_each(|_| once()));
}
