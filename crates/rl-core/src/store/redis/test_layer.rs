//! The lowest layer in tests of the layers above it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use super::encoding::reply::ScriptReply;
use super::layer::{Amendment, Layer, LeaseRequest, PartRequest};
use super::subject_key::{KeyedSubjectRef, SubjectKey};
use crate::decision::Decision;
use crate::maybe_ready::MaybeReady;
use crate::model::{FailureKind, Outcome, StoreError, Subject};
use crate::store::fingerprint::Fingerprinter;
use crate::store::{Namespace, StoreFuture};
use crate::time::Timestamp;

type Decide = dyn Fn(PartRequest<'_>) -> Result<Decision, StoreError> + Send + Sync;

/// Decides requests with a given function, counts the decisions, and leases no units.
#[derive(Clone)]
pub(crate) struct TestLayer {
    decide: Arc<Decide>,
    decisions: Arc<AtomicUsize>,
}

impl TestLayer {
    pub(crate) fn new(
        decide: impl Fn(PartRequest<'_>) -> Result<Decision, StoreError> + Send + Sync + 'static,
    ) -> Self {
        Self { decide: Arc::new(decide), decisions: Arc::default() }
    }

    /// Returns the number of requests that this layer has decided.
    pub(crate) fn decisions(&self) -> usize {
        self.decisions.load(Ordering::Relaxed)
    }
}

impl Layer for TestLayer {
    fn decide(&self, request: PartRequest<'_>) -> StoreFuture<Decision> {
        self.decisions.fetch_add(1, Ordering::Relaxed);
        MaybeReady::ready((self.decide)(request))
    }

    fn lease(&self, _: LeaseRequest<'_>) -> StoreFuture<ScriptReply> {
        MaybeReady::ready(Err(StoreError::new(FailureKind::Unavailable)))
    }

    fn amend(&self, _: Amendment<'_>) -> StoreFuture<Vec<u8>> {
        MaybeReady::ready(Ok(Vec::new()))
    }
}

/// Denies a request, with `wait` as the time to wait.
pub(crate) fn deny(request: PartRequest<'_>, wait: Duration) -> Result<Decision, StoreError> {
    let micros = u64::try_from(wait.as_micros()).unwrap();
    let outcomes = request.policy.limits().iter().map(|_| Outcome::denied(1, micros, micros));
    Ok(Decision::decided(request.policy.clone(), request.cost, 0, Timestamp::EPOCH, outcomes))
}

/// Returns the subject with its key.
pub(crate) fn keyed<'a>(namespace: &'a Namespace, subject: &'a Subject) -> KeyedSubjectRef<'a> {
    static FINGERPRINTER: LazyLock<Fingerprinter> = LazyLock::new(Fingerprinter::random);
    let key = SubjectKey::new(FINGERPRINTER.fingerprint(namespace, subject));
    KeyedSubjectRef { namespace, subject, key }
}
