//! The contract of [`Store`] as a test: run [`suite`] on a store of your own.
//!
//! # Example
//!
//! ```
//! use rl_core::conformance::{Suite, suite};
//! use rl_core::store::MemoryStore;
//! use rl_core::time::{ManualClock, Timestamp};
//! use std::sync::Arc;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_750_000_000)));
//! let store = MemoryStore::builder().clock(clock.clone()).build();
//! suite(&Suite::new(store, clock)).await;
//! # }
//! ```

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::store::{Charge, Mode, Namespace, Refund, RefundOf, Renewal, Reset, Store};
use crate::time::{Clock, ManualClock, Timestamp};
use crate::{Anchor, Cost, Decision, Limit, LimitSet, Period, Policy, RetryAfter, Subject};

/// The time a store decides on, as far as a test can move it.
pub trait Time: fmt::Debug + Send + Sync + 'static {
    /// Lets this much time pass for the store, and not much more.
    fn pass(&self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;

    /// The clock, if it stands still until it is moved: then the suite checks microseconds, too.
    fn manual(&self) -> Option<&ManualClock>;
}

impl Time for Arc<ManualClock> {
    fn pass(&self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        self.advance(time);
        Box::pin(std::future::ready(()))
    }

    fn manual(&self) -> Option<&ManualClock> {
        Some(self)
    }
}

/// A store under test.
#[derive(Debug)]
pub struct Suite {
    store: Arc<dyn Store>,
    time: Box<dyn Time>,
    clock_windows: bool,
    permits: bool,
    subjects: AtomicU64,
}

impl Suite {
    /// A store that holds nothing yet, and the time it decides on.
    #[must_use]
    pub fn new(store: impl Store, time: impl Time) -> Self {
        Self {
            store: Arc::new(store),
            time: Box::new(time),
            clock_windows: true,
            permits: true,
            subjects: AtomicU64::new(0),
        }
    }

    /// Leaves out what concerns windows that are anchored to the clock, for stores without them.
    #[must_use]
    pub fn without_clock_windows(mut self) -> Self {
        self.clock_windows = false;
        self
    }

    /// Leaves out what concerns limits of concurrency, for stores without them.
    #[must_use]
    pub fn without_permits(mut self) -> Self {
        self.permits = false;
        self
    }

    /// A subject that no other rule has touched.
    fn subject(&self) -> Tested<'_> {
        let number = self.subjects.fetch_add(1, Ordering::Relaxed);
        Tested {
            suite: self,
            namespace: Namespace::default(),
            subject: Subject::consumer(&format!("conformance-{number}")),
        }
    }
}

/// Checks every rule of the contract.
///
/// # Panics
///
/// Panics if the store breaks a rule, or answers with an error.
pub async fn suite(suite: &Suite) {
    exactly_max_units_pass(suite).await;
    all_limits_are_charged_or_none(suite).await;
    a_denial_opens_and_extends_no_window(suite).await;
    a_limit_in_shadow_denies_nobody(suite).await;
    a_cost_above_the_limit_never_passes(suite).await;
    check_up_to_takes_what_every_limit_grants(suite).await;
    looking_takes_nothing(suite).await;
    a_charge_goes_beyond_the_limit(suite).await;
    a_refund_stays_in_its_window(suite).await;
    a_reset_forgets_one_limit_or_all(suite).await;
    a_new_max_keeps_what_was_used(suite).await;
    limits_that_come_and_go_leave_the_others_alone(suite).await;
    subjects_and_namespaces_are_apart(suite).await;
    a_window_ends_when_it_was_said_to(suite).await;
    concurrent_requests_are_counted_one_by_one(suite).await;
    if suite.clock_windows {
        clock_windows_begin_on_the_clock(suite).await;
    }
    nothing_to_renew_is_renewed(suite).await;
    if suite.permits {
        permits_are_given_back_apart_from_rates(suite).await;
        a_permit_ends_with_its_lease(suite).await;
        a_renewal_takes_the_place_of_the_charge(suite).await;
        a_permit_that_is_lost_under_one_limit_is_not_renewed(suite).await;
        if let Some(clock) = suite.time.manual() {
            a_renewed_lease_ends_to_the_microsecond(suite, clock).await;
        }
    }
    if let Some(clock) = suite.time.manual() {
        a_microsecond_before_the_end_is_too_early(suite, clock).await;
        a_clock_that_steps_back_grants_nothing(suite, clock).await;
    }
}

struct Tested<'a> {
    suite: &'a Suite,
    namespace: Namespace,
    subject: Subject,
}

impl Tested<'_> {
    async fn decide(&self, policy: &Policy, mode: Mode, cost: u64) -> Decision {
        let charge = Charge {
            namespace: &self.namespace,
            subject: &self.subject,
            policy,
            mode,
            cost: Cost::new(cost),
        };
        self.suite.store.decide(charge).await.expect("the store answers")
    }

    async fn check(&self, policy: &Policy, cost: u64) -> Decision {
        self.decide(policy, Mode::Check, cost).await
    }

    async fn used(&self, policy: &Policy) -> Vec<u64> {
        used(&self.decide(policy, Mode::Peek, 0).await)
    }

    async fn refund(&self, decision: &Decision, units: u64) {
        self.refund_of(decision, units, RefundOf::All).await;
    }

    async fn refund_of(&self, decision: &Decision, units: u64, of: RefundOf) {
        let refund = Refund {
            namespace: &self.namespace,
            subject: &self.subject,
            policy: decision.policy().expect("the store decided"),
            charged: decision.at(),
            units,
            of,
            uncharged: decision.uncharged(),
        };
        self.suite.store.refund(refund).await.expect("the store answers");
    }

    async fn renew(&self, policy: &Policy, charged: Timestamp, units: u64) -> Option<Timestamp> {
        let Self { namespace, subject, .. } = self;
        let uncharged = LimitSet::EMPTY;
        let renewal = Renewal { namespace, subject, policy, charged, units, uncharged };
        self.suite.store.renew(renewal).await.expect("the store answers")
    }

    async fn reset(&self, policy: &Policy, limit: Option<usize>) {
        let Self { namespace, subject, .. } = self;
        let reset = Reset { namespace, subject, policy, limit };
        self.suite.store.reset(reset).await.expect("the store answers");
    }
}

fn policy(limits: &[Limit]) -> Policy {
    Policy::new(limits.iter().copied()).expect("a policy")
}

fn used(decision: &Decision) -> Vec<u64> {
    decision.limits().map(|limit| limit.used()).collect()
}

async fn exactly_max_units_pass(suite: &Suite) {
    let (subject, policy) = (suite.subject(), policy(&[Limit::per_hour(5)]));
    for count in 1..=5 {
        let decision = subject.check(&policy, 1).await;
        assert!(decision.is_allowed() && used(&decision) == [count], "{decision:?}");
        assert_eq!(decision.granted(), 1);
        assert_eq!(decision.retry_after(), RetryAfter::Now);
    }
    let denied = subject.check(&policy, 1).await;
    assert!(!denied.is_allowed() && used(&denied) == [5], "{denied:?}");
    assert_eq!(denied.granted(), 0);
    assert!(
        matches!(denied.retry_after(), RetryAfter::In(wait) if wait <= Duration::from_secs(3_600))
    );

    let subject = suite.subject();
    assert!(subject.check(&policy, 3).await.is_allowed());
    assert!(!subject.check(&policy, 3).await.is_allowed());
    assert!(subject.check(&policy, 2).await.is_allowed());
}

async fn all_limits_are_charged_or_none(suite: &Suite) {
    let subject = suite.subject();
    let policy = policy(&[Limit::per_minute(2), Limit::per_hour(100), Limit::per_day(3)]);
    subject.check(&policy, 2).await;
    for _ in 0..5 {
        let denied = subject.check(&policy, 1).await;
        let over: Vec<_> = denied.limits().filter(|l| l.is_over()).map(|l| l.name()).collect();
        assert_eq!(over, ["minute"]);
    }
    assert_eq!(subject.used(&policy).await, [2, 2, 2]);
    let denied = subject.check(&policy, 2).await;
    assert_eq!(denied.limits().filter(|limit| limit.is_over()).count(), 2);
}

async fn a_denial_opens_and_extends_no_window(suite: &Suite) {
    let subject = suite.subject();
    let policy = policy(&[Limit::per_second(1), Limit::per_hour(1)]);
    subject.check(&policy, 1).await;
    suite.time.pass(Duration::from_secs(1)).await;
    let denied = subject.check(&policy, 1).await;
    assert!(!denied.is_allowed());
    let second = denied.limits().next().expect("two limits");
    assert_eq!((second.used(), second.is_active()), (0, false), "the window of the second is over");
}

async fn a_limit_in_shadow_denies_nobody(suite: &Suite) {
    let subject = suite.subject();
    let (minute, hour) = (Limit::per_minute(5), Limit::per_hour(2));
    let (tried, enforced) = (policy(&[minute, hour.in_shadow()]), policy(&[minute, hour]));
    let over = |decision: &Decision| decision.over_in_shadow().count();
    for _ in 0..2 {
        assert_eq!(over(&subject.check(&tried, 1).await), 0);
    }
    let passed = subject.check(&tried, 2).await;
    assert_eq!(
        (passed.is_allowed(), over(&passed), passed.retry_after()),
        (true, 1, RetryAfter::Now)
    );
    assert_eq!(used(&passed), [4, 2], "it counts what it would have let pass");
    subject.refund(&passed, 1).await;
    assert_eq!(subject.used(&tried).await, [3, 2], "what was not charged is not given back");

    let denied = subject.check(&tried, 3).await;
    assert_eq!((denied.is_allowed(), over(&denied)), (false, 1));
    assert_eq!(subject.used(&tried).await, [3, 2], "a denial charges no limit");
    assert!(
        !subject.check(&enforced, 1).await.is_allowed(),
        "the count goes on when it is enforced"
    );
    let charged = subject.decide(&tried, Mode::Charge, 4).await;
    assert_eq!(used(&charged), [7, 6], "what was used already counts everywhere");
}

async fn a_cost_above_the_limit_never_passes(suite: &Suite) {
    let subject = suite.subject();
    let policy = policy(&[Limit::per_minute(2), Limit::per_hour(100)]);
    for cost in [3, u64::MAX] {
        let denied = subject.check(&policy, cost).await;
        assert_eq!((denied.is_allowed(), denied.retry_after()), (false, RetryAfter::Never));
    }
    assert_eq!(subject.used(&policy).await, [0, 0]);

    let blocked = Policy::new([Limit::per_minute(0)]).expect("a policy");
    let denied = suite.subject().check(&blocked, 1).await;
    assert_eq!((denied.is_allowed(), denied.retry_after()), (false, RetryAfter::Never));
}

async fn check_up_to_takes_what_every_limit_grants(suite: &Suite) {
    let subject = suite.subject();
    let policy = policy(&[Limit::per_minute(5), Limit::per_hour(7)]);
    let part = subject.decide(&policy, Mode::CheckUpTo, 3).await;
    assert_eq!((part.is_allowed(), part.granted()), (true, 3));
    let rest = subject.decide(&policy, Mode::CheckUpTo, 3).await;
    assert_eq!((rest.is_allowed(), rest.granted()), (true, 2));
    let none = subject.decide(&policy, Mode::CheckUpTo, 3).await;
    assert_eq!((none.is_allowed(), none.granted()), (false, 0));
    assert_eq!(subject.used(&policy).await, [5, 5]);
}

async fn looking_takes_nothing(suite: &Suite) {
    let (subject, policy) = (suite.subject(), policy(&[Limit::per_hour(2)]));
    for _ in 0..3 {
        assert!(subject.decide(&policy, Mode::Peek, 2).await.is_allowed());
        assert!(!subject.decide(&policy, Mode::Peek, 3).await.is_allowed());
        assert!(subject.check(&policy, 0).await.is_allowed());
    }
    let looked = subject.decide(&policy, Mode::Peek, 1).await;
    assert_eq!((looked.granted(), used(&looked)), (0, vec![0]));
    assert!(looked.limits().all(|limit| !limit.is_active()), "no window was opened");
    subject.check(&policy, 2).await;
    assert!(!subject.decide(&policy, Mode::Peek, 1).await.is_allowed());
    assert!(subject.decide(&policy, Mode::Peek, 0).await.is_allowed());
}

async fn a_charge_goes_beyond_the_limit(suite: &Suite) {
    let (subject, policy) = (suite.subject(), policy(&[Limit::per_hour(5)]));
    let charged = subject.decide(&policy, Mode::Charge, 8).await;
    assert_eq!((charged.is_allowed(), charged.granted(), used(&charged)), (true, 8, vec![8]));
    assert!(charged.limits().all(|limit| limit.remaining() == 0));
    assert!(!subject.check(&policy, 1).await.is_allowed());
    assert_eq!(subject.used(&policy).await, [8]);
}

async fn a_refund_stays_in_its_window(suite: &Suite) {
    let subject = suite.subject();
    let policy = policy(&[Limit::per_second(5), Limit::per_hour(9)]);
    let decision = subject.check(&policy, 3).await;
    subject.refund(&decision, 2).await;
    assert_eq!(subject.used(&policy).await[1], 1);
    subject.refund(&decision, 9).await;
    assert_eq!(subject.used(&policy).await[1], 0, "never below zero");

    suite.time.pass(Duration::from_secs(1)).await;
    subject.check(&policy, 4).await;
    subject.refund(&decision, 2).await;
    assert_eq!(subject.used(&policy).await[1], 2, "the hour is the same");
    let second = subject.check(&policy, 2).await.limits().next().map(|limit| limit.is_over());
    assert_eq!(second, Some(true), "the second is another");

    let stranger = suite.subject();
    stranger.refund(&decision, 1).await;
    assert_eq!(stranger.used(&policy).await, [0, 0]);
}

async fn a_reset_forgets_one_limit_or_all(suite: &Suite) {
    let subject = suite.subject();
    let policy = policy(&[Limit::per_minute(5), Limit::per_hour(9)]);
    subject.check(&policy, 4).await;
    subject.reset(&policy, Some(0)).await;
    assert_eq!(subject.used(&policy).await, [0, 4]);
    subject.check(&policy, 1).await;
    assert_eq!(subject.used(&policy).await, [1, 5]);
    subject.reset(&policy, None).await;
    assert_eq!(subject.used(&policy).await, [0, 0]);
    subject.reset(&policy, None).await;
    subject.reset(&policy, Some(1)).await;
}

async fn a_new_max_keeps_what_was_used(suite: &Suite) {
    let subject = suite.subject();
    let of = |max| policy(&[Limit::per_hour(max)]);
    subject.check(&of(100), 60).await;
    let lowered = subject.check(&of(10), 1).await;
    assert_eq!((lowered.is_allowed(), used(&lowered)), (false, vec![60]));
    assert_eq!(lowered.limits().next().map(|limit| limit.remaining()), Some(0));
    let raised = subject.check(&of(200), 1).await;
    assert_eq!((raised.is_allowed(), used(&raised)), (true, vec![61]));
}

async fn limits_that_come_and_go_leave_the_others_alone(suite: &Suite) {
    let subject = suite.subject();
    let (minute, hour, day) = (Limit::per_minute(50), Limit::per_hour(50), Limit::per_day(50));
    subject.check(&policy(&[minute, hour]), 1).await;
    subject.check(&policy(&[hour, day]), 1).await;
    subject.check(&policy(&[day]), 1).await;
    subject.check(&policy(&[day, hour, minute]), 1).await;
    assert_eq!(subject.used(&policy(&[minute, hour, day])).await, [2, 3, 3]);
}

async fn subjects_and_namespaces_are_apart(suite: &Suite) {
    let (subject, policy) = (suite.subject(), policy(&[Limit::per_hour(1)]));
    let id = subject.subject.id().to_string();
    let user = Tested { subject: Subject::user(&id), ..suite.subject() };
    let elsewhere = Tested {
        namespace: "elsewhere".parse().expect("a namespace"),
        subject: subject.subject.clone(),
        suite,
    };
    for tested in [&subject, &user, &elsewhere, &suite.subject()] {
        assert!(tested.check(&policy, 1).await.is_allowed());
    }
    for tested in [&subject, &user, &elsewhere] {
        assert!(!tested.check(&policy, 1).await.is_allowed());
    }
}

async fn a_window_ends_when_it_was_said_to(suite: &Suite) {
    let subject = suite.subject();
    let policy = policy(&[Limit::per_second(2), Limit::per_hour(100)]);
    subject.check(&policy, 1).await;
    subject.check(&policy, 1).await;
    let RetryAfter::In(wait) = subject.check(&policy, 1).await.retry_after() else {
        panic!("denied for a time")
    };
    assert!(wait <= Duration::from_secs(1));
    // Asking in vain does not move the end.
    assert!(!subject.check(&policy, 1).await.is_allowed());
    suite.time.pass(wait).await;
    let next = subject.check(&policy, 1).await;
    assert_eq!((next.is_allowed(), used(&next)), (true, vec![1, 3]));
}

async fn concurrent_requests_are_counted_one_by_one(suite: &Suite) {
    let (subject, policy) = (suite.subject(), policy(&[Limit::per_hour(20), Limit::per_day(40)]));
    let tasks: Vec<_> = (0..50)
        .map(|_| {
            let decision = suite.store.decide(Charge {
                namespace: &subject.namespace,
                subject: &subject.subject,
                policy: &policy,
                mode: Mode::Check,
                cost: Cost::ONE,
            });
            tokio::spawn(decision)
        })
        .collect();
    let mut allowed = 0;
    for task in tasks {
        let decision = task.await.expect("no panic").expect("the store answers");
        allowed += u32::from(decision.is_allowed());
    }
    assert_eq!(allowed, 20);
    assert_eq!(subject.used(&policy).await, [20, 20]);
}

async fn clock_windows_begin_on_the_clock(suite: &Suite) {
    let subject = suite.subject();
    let first = Limit::per_hour(9);
    let clock = first.anchored(Anchor::Clock);
    let build = Policy::builder().named("first", first).named("clock", clock).build();
    let policy = build.expect("a policy");
    let decision = subject.check(&policy, 1).await;
    let micros_to_hour = 3_600_000_000 - decision.at().as_micros() % 3_600_000_000;
    let resets: Vec<_> = decision.limits().map(|limit| limit.reset_after()).collect();
    assert_eq!(resets, [Duration::from_secs(3_600), Duration::from_micros(micros_to_hour)]);
    subject.check(&policy, 1).await;
    assert_eq!(subject.used(&policy).await, [2, 2], "the anchors count apart");
}

async fn nothing_to_renew_is_renewed(suite: &Suite) {
    let (subject, policy) = (suite.subject(), policy(&[Limit::per_hour(5)]));
    let decision = subject.check(&policy, 1).await;
    assert_eq!(subject.renew(&policy, decision.at(), 1).await, Some(decision.at()));
    assert_eq!(subject.used(&policy).await, [1]);
}

/// At most `max` at the same time, with such a lease.
fn permits(max: u64, lease: Period) -> Limit {
    Limit::concurrency(max).expect("a limit").leased(lease)
}

async fn permits_are_given_back_apart_from_rates(suite: &Suite) {
    let subject = suite.subject();
    let policy = policy(&[Limit::per_hour(9), permits(2, Period::HOUR)]);
    let first = subject.check(&policy, 1).await;
    assert!(first.is_allowed() && subject.check(&policy, 1).await.is_allowed());
    let denied = subject.check(&policy, 1).await;
    let over: Vec<_> = denied.limits().filter(|l| l.is_over()).map(|l| l.name()).collect();
    assert_eq!((over, used(&denied)), (vec!["concurrency"], vec![2, 2]));

    subject.refund_of(&first, 1, RefundOf::Permits).await;
    assert_eq!(subject.used(&policy).await, [2, 1]);
    let third = subject.check(&policy, 1).await;
    assert_eq!((third.is_allowed(), used(&third)), (true, vec![3, 2]));
    subject.refund_of(&third, 1, RefundOf::Rates).await;
    assert_eq!(subject.used(&policy).await, [2, 2]);
    subject.refund_of(&third, 1, RefundOf::All).await;
    assert_eq!(subject.used(&policy).await, [1, 1]);
}

async fn a_permit_ends_with_its_lease(suite: &Suite) {
    let (subject, policy) = (suite.subject(), policy(&[permits(1, Period::SECOND)]));
    let held = subject.check(&policy, 1).await;
    assert!(held.is_allowed());
    suite.time.pass(Duration::from_secs(1)).await;
    assert_eq!(subject.used(&policy).await, [0]);
    assert_eq!(subject.renew(&policy, held.at(), 1).await, None);
    let next = subject.check(&policy, 1).await;
    assert!(next.is_allowed());
    subject.refund(&held, 1).await;
    assert_eq!(subject.used(&policy).await, [1], "whose lease has ended holds nothing");
}

async fn a_renewal_takes_the_place_of_the_charge(suite: &Suite) {
    let (subject, policy) = (suite.subject(), policy(&[permits(3, Period::HOUR)]));
    let held = subject.check(&policy, 2).await;
    suite.time.pass(Duration::from_millis(5)).await;
    let renewed = subject.renew(&policy, held.at(), 2).await.expect("it is held");
    assert!(renewed > held.at());
    assert_eq!(subject.used(&policy).await, [2]);
    assert_eq!(subject.renew(&policy, held.at(), 2).await, None, "it counts from its renewal on");
    subject.refund(&held, 2).await;
    assert_eq!(subject.used(&policy).await, [2]);
    let again = subject.renew(&policy, renewed, 2).await;
    assert!(again >= Some(renewed));
    subject.reset(&policy, None).await;
    assert_eq!(subject.renew(&policy, again.expect("it is held"), 2).await, None);
    assert_eq!(subject.used(&policy).await, [0]);
}

async fn a_permit_that_is_lost_under_one_limit_is_not_renewed(suite: &Suite) {
    let subject = suite.subject();
    let (short, long) = (permits(5, Period::SECOND), permits(5, Period::HOUR));
    let policy = Policy::builder().named("short", short).named("long", long).build();
    let policy = policy.expect("a policy");
    let held = subject.check(&policy, 1).await;
    suite.time.pass(Duration::from_secs(1)).await;
    assert_eq!(subject.renew(&policy, held.at(), 1).await, None);
    assert_eq!(subject.used(&policy).await, [0, 1]);
    // Nothing was changed: what is still held can be given back.
    subject.refund_of(&held, 1, RefundOf::Permits).await;
    assert_eq!(subject.used(&policy).await, [0, 0]);
}

async fn a_renewed_lease_ends_to_the_microsecond(suite: &Suite, clock: &ManualClock) {
    let (subject, policy) = (suite.subject(), policy(&[permits(1, Period::SECOND)]));
    let held = subject.check(&policy, 1).await;
    clock.advance(Duration::from_micros(999_999));
    let renewed = subject.renew(&policy, held.at(), 1).await;
    assert_eq!(renewed, Some(clock.now()));
    let denied = subject.check(&policy, 1).await;
    assert_eq!(denied.retry_after(), RetryAfter::In(Duration::from_secs(1)));
    clock.advance(Duration::from_micros(999_999));
    assert!(!subject.check(&policy, 1).await.is_allowed());
    clock.advance(Duration::from_micros(1));
    assert!(subject.check(&policy, 1).await.is_allowed());
}

async fn a_microsecond_before_the_end_is_too_early(suite: &Suite, clock: &ManualClock) {
    let subject = suite.subject();
    let policy = policy(&[Limit::per_second(1), Limit::per_minute(1)]);
    subject.check(&policy, 1).await;
    clock.advance(Duration::from_micros(1_234_567));
    let RetryAfter::In(wait) = subject.check(&policy, 1).await.retry_after() else {
        panic!("denied for a time")
    };
    assert_eq!(wait, Duration::from_micros(60_000_000 - 1_234_567));
    clock.advance(wait - Duration::from_micros(1));
    assert!(!subject.check(&policy, 1).await.is_allowed());
    clock.advance(Duration::from_micros(1));
    assert!(subject.check(&policy, 1).await.is_allowed());
}

async fn a_clock_that_steps_back_grants_nothing(suite: &Suite, clock: &ManualClock) {
    let subject = suite.subject();
    let anchor = if suite.clock_windows { Anchor::Clock } else { Anchor::FirstRequest };
    let policy = policy(&[Limit::per_second(1).anchored(anchor), Limit::per_hour(2)]);
    let start = clock.now();
    subject.check(&policy, 1).await;
    clock.advance(Duration::from_secs(2));
    let last = subject.check(&policy, 1).await;
    assert!(last.is_allowed());
    for _ in 0..3 {
        clock.set(start);
        let denied = subject.check(&policy, 1).await;
        assert_eq!((denied.is_allowed(), denied.at()), (false, last.at()));
    }
    clock.set(last.at());
}
