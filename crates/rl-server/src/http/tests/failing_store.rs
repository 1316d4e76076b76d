//! A store that is never reached.

use rl_core::store::{DecideRequest, LeaseStatus, Renewal, Reset, Settlement, Store, StoreFuture};
use rl_core::time::Timestamp;
use rl_core::{Decision, FailureKind, MaybeReady, StoreError};

#[derive(Debug)]
pub(super) struct FailingStore;

fn unavailable<T>() -> StoreFuture<T> {
    MaybeReady::ready(Err(StoreError::new(FailureKind::Unavailable)))
}

impl Store for FailingStore {
    fn decide(&self, _: DecideRequest<'_>) -> StoreFuture<Decision> {
        unavailable()
    }

    fn settle(&self, _: &[Settlement<'_>]) -> StoreFuture<LeaseStatus> {
        unavailable()
    }

    fn renew(&self, _: Renewal<'_>) -> StoreFuture<LeaseStatus<Timestamp>> {
        unavailable()
    }

    fn reset(&self, _: &[Reset<'_>]) -> StoreFuture<()> {
        unavailable()
    }
}
