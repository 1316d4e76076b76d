use std::sync::atomic::Ordering;

use super::clause::Clause;
use super::suite::Suite;
use crate::decision::Decision;
use crate::model::{Cost, FailureKind, Limit, Subject};
use crate::model::{Mode, StoreError};
use crate::policy::{LimitSet, Policy};
use crate::store::{DecideRequest, Lease, Namespace, Part, Refund, RefundOf, Renewal, Reset};
use crate::time::Timestamp;

impl Suite {
    /// Returns a subject that no other check has used.
    pub(super) fn subject(&self) -> Tested<'_> {
        let number = self.subjects.fetch_add(1, Ordering::Relaxed);
        Tested {
            suite: self,
            namespace: Namespace::default(),
            subject: Subject::consumer(&format!("conformance-{number}")),
        }
    }
}

/// A subject of the store under test.
pub(super) struct Tested<'a> {
    pub(super) suite: &'a Suite,
    pub(super) namespace: Namespace,
    pub(super) subject: Subject,
}

impl Tested<'_> {
    pub(super) async fn try_decide(
        &self,
        policy: &Policy,
        mode: Mode,
        cost: u64,
    ) -> Result<Decision, StoreError> {
        let Self { suite, namespace, subject } = self;
        let cost = Cost::new(cost);
        suite
            .store
            .decide(DecideRequest::new(namespace, &[Part::new(subject, policy, cost)], mode))
            .await
    }

    pub(super) async fn decide(&self, policy: &Policy, mode: Mode, cost: u64) -> Decision {
        let decision = self.try_decide(policy, mode, cost).await;
        decision.unwrap_or_else(|error| failed(policy, &error))
    }

    pub(super) async fn check(&self, policy: &Policy, cost: u64) -> Decision {
        self.decide(policy, Mode::Check, cost).await
    }

    /// Returns the units used under each limit.
    pub(super) async fn used(&self, policy: &Policy) -> Vec<u64> {
        used(&self.decide(policy, Mode::Peek, 0).await)
    }

    pub(super) async fn refund(&self, decision: &Decision, units: u64) {
        self.refund_of(decision, units, RefundOf::All).await;
    }

    pub(super) async fn refund_of(&self, decision: &Decision, units: u64, of: RefundOf) {
        let policy = decision.policy().expect("the store decided");
        let refund = Refund {
            namespace: &self.namespace,
            subject: &self.subject,
            policy,
            charged: decision.at(),
            units,
            of,
            uncharged: decision.uncharged(),
        };
        let done = self.suite.store.settle(&[refund.into()]).await;
        done.unwrap_or_else(|error| failed(policy, &error));
    }

    pub(super) async fn renew(
        &self,
        policy: &Policy,
        charged: Timestamp,
        units: u64,
    ) -> Option<Timestamp> {
        let Self { namespace, subject, .. } = self;
        let uncharged = LimitSet::EMPTY;
        let renewal = Renewal {
            namespace,
            subject,
            policy,
            charged,
            units,
            uncharged,
            lease: Lease::Permits,
        };
        let renewed = self.suite.store.renew(renewal).await;
        renewed.unwrap_or_else(|error| failed(policy, &error)).held()
    }

    pub(super) async fn reset(&self, policy: &Policy, limit: Option<usize>) {
        let Self { namespace, subject, .. } = self;
        let done = self.suite.store.reset(&[Reset { namespace, subject, policy, limit }]).await;
        done.unwrap_or_else(|error| failed(policy, &error));
    }
}

/// Panics with the error that the store returned under `policy`.
fn failed(policy: &Policy, error: &StoreError) -> ! {
    match error.kind() {
        FailureKind::Unsupported => panic!(
            "{}: {policy} is refused ({error}), but `Suite::without` does not name its algorithm",
            Clause::Unsupported
        ),
        _ => panic!("{}: {policy} is answered with an error: {error}", Clause::Answer),
    }
}

pub(super) fn policy(limits: &[Limit]) -> Policy {
    Policy::new(limits.iter().copied()).expect("a policy")
}

pub(super) fn used(decision: &Decision) -> Vec<u64> {
    decision.limits().map(|limit| limit.used()).collect()
}

/// Returns the names of the limits that deny.
pub(super) fn over(decision: &Decision) -> Vec<&str> {
    decision.limits().filter(|limit| limit.is_over()).map(|limit| limit.name()).collect()
}
