//! The lowest layer in tests of the layers above it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use super::encoding::reply::ScriptReply;
use super::layer::{Amendments, Layer, LeaseRequest, Request, RequestPart};
use super::subject_key::{KeyedSubject, SubjectKey};
use crate::decision::Decision;
use crate::maybe_ready::MaybeReady;
use crate::model::{Cost, FailureKind, Mode, Outcome, StoreError, Subject};
use crate::policy::Policy;
use crate::store::fingerprint::Fingerprinter;
use crate::store::part_groups::GroupDecisions;
use crate::store::{Namespace, Reservations, StoreFuture};
use crate::time::Timestamp;

type Decide = dyn Fn(&RequestPart) -> Result<Decision, StoreError> + Send + Sync;

/// Decides parts with a given function, counts the requests, and leases no units.
#[derive(Clone)]
pub(crate) struct TestLayer {
    decide: Arc<Decide>,
    decisions: Arc<AtomicUsize>,
}

impl TestLayer {
    pub(crate) fn new(
        decide: impl Fn(&RequestPart) -> Result<Decision, StoreError> + Send + Sync + 'static,
    ) -> Self {
        Self { decide: Arc::new(decide), decisions: Arc::default() }
    }

    /// Returns the number of requests that this layer has decided.
    pub(crate) fn decisions(&self) -> usize {
        self.decisions.load(Ordering::Relaxed)
    }
}

impl Layer for TestLayer {
    fn decide(&self, request: Arc<Request>) -> StoreFuture<GroupDecisions> {
        self.decisions.fetch_add(1, Ordering::Relaxed);
        MaybeReady::ready(request.parts.iter().map(|part| (self.decide)(part)).collect())
    }

    fn lease(&self, _: LeaseRequest) -> StoreFuture<ScriptReply> {
        MaybeReady::ready(Err(StoreError::new(FailureKind::Unavailable)))
    }

    fn amend(&self, _: Amendments) -> StoreFuture<Vec<u8>> {
        MaybeReady::ready(Ok(Vec::new()))
    }
}

/// Denies a part, with `wait` as the time to wait.
pub(crate) fn deny(part: &RequestPart, wait: Duration) -> Result<Decision, StoreError> {
    let micros = u64::try_from(wait.as_micros()).unwrap();
    let outcomes = part.policy.limits().iter().map(|_| Outcome::denied(1, micros, micros));
    Ok(Decision::decided(part.policy.clone(), part.cost, 0, Timestamp::EPOCH, outcomes))
}

/// Returns the subject with its key.
pub(crate) fn keyed(namespace: &Namespace, subject: &Subject) -> KeyedSubject {
    static FINGERPRINTER: LazyLock<Fingerprinter> = LazyLock::new(Fingerprinter::random);
    let key = SubjectKey::new(FINGERPRINTER.fingerprint(namespace, subject));
    KeyedSubject { namespace: namespace.clone(), subject: subject.clone(), key }
}

/// Returns a check of one subject.
pub(crate) fn check(subject: &KeyedSubject, policy: &Policy, cost: u64) -> Arc<Request> {
    check_all(std::slice::from_ref(subject), policy, cost)
}

/// Returns a check of these subjects, all under one policy.
pub(crate) fn check_all(subjects: &[KeyedSubject], policy: &Policy, cost: u64) -> Arc<Request> {
    let part = |subject: &KeyedSubject| RequestPart {
        subject: subject.clone(),
        policy: policy.clone(),
        cost: Cost::new(cost),
        is_shadow: false,
    };
    let parts = subjects.iter().map(part).collect();
    Arc::new(Request { parts, mode: Mode::Check, reservations: Reservations::Ignore })
}
