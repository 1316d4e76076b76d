use rl_core::store::{
    DecideRequest, LeaseStatus, Renewal, Reset, Settlement, Store, StoreFuture, StoreReport,
};
use rl_core::time::Timestamp;
use rl_core::{Decision, FailureKind, MaybeReady, StoreError};

/// The store of a server without Redis, which reaches no counters of services. Each operation
/// fails.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NoCounters;

fn no_counters<T>() -> StoreFuture<T> {
    let error = StoreError::new(FailureKind::Unsupported);
    MaybeReady::ready(Err(error.with_detail("this server has no counters without RL_REDIS_URL")))
}

impl Store for NoCounters {
    fn decide(&self, _: DecideRequest<'_>) -> StoreFuture<Decision> {
        no_counters()
    }

    fn report(&self) -> StoreReport<'_> {
        StoreReport { label: "none", ..StoreReport::default() }
    }

    fn settle(&self, _: &[Settlement<'_>]) -> StoreFuture<LeaseStatus> {
        no_counters()
    }

    fn renew(&self, _: Renewal<'_>) -> StoreFuture<LeaseStatus<Timestamp>> {
        no_counters()
    }

    fn reset(&self, _: &[Reset<'_>]) -> StoreFuture<()> {
        no_counters()
    }
}
