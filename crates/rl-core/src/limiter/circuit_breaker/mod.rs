//! The circuit breaker, which stops calls to a store that fails. While it is open, the failure
//! policy decides without waiting, and single requests probe whether the store has recovered.
//!
//! The breaker also reports when an outage begins and ends, so that each outage is logged once.

mod state;
#[cfg(test)]
mod tests;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use state::{AtomicState, BreakerState, CallSnapshot, Phase};
use tokio::time::Instant;

use crate::model::FailureKind;

/// The circuit breaker of a store.
#[derive(Debug)]
pub(super) struct CircuitBreaker {
    state: BreakerState<AtomicU64>,
    origin: Instant,
    random: RandomState,
}

impl Default for CircuitBreaker {
    fn default() -> Self {
        Self { state: BreakerState::default(), origin: Instant::now(), random: RandomState::new() }
    }
}

/// A token for a call to the store, with which the result of the call is recorded. If the token of
/// a probe is dropped without a result, the probe is abandoned, and the next request becomes the
/// probe.
#[derive(Debug)]
pub(super) struct CallToken {
    sent: CallSnapshot,
    probe: Option<Arc<CircuitBreaker>>,
}

impl Drop for CallToken {
    #[inline]
    fn drop(&mut self) {
        if let Some(breaker) = self.probe.take() {
            breaker.state.abandon_probe(self.sent);
        }
    }
}

impl CircuitBreaker {
    /// Returns a token for a call to the store.
    ///
    /// Costs one relaxed load while the store works.
    ///
    /// # Errors
    ///
    /// Returns the store's last failure as an error if the store must not be called.
    #[inline]
    pub(super) fn try_acquire(self: &Arc<Self>) -> Result<CallToken, FailureKind> {
        let sent = self.state.try_acquire(|| self.now())?;
        let probe = sent.is_probe().then(|| Arc::clone(self));
        Ok(CallToken { sent, probe })
    }

    /// Returns a token for a call, such as a refund, that is made even while the breaker is open.
    pub(super) fn observe(&self) -> CallToken {
        CallToken { sent: self.state.snapshot(), probe: None }
    }

    /// Returns whether calls are sent to the store.
    pub(super) fn is_closed(&self) -> bool {
        !matches!(self.state.snapshot().phase(), Phase::Open | Phase::HalfOpen)
    }

    /// Records a reply. Returns whether the reply ends an outage.
    #[inline]
    pub(super) fn succeeded(&self, mut call: CallToken) -> bool {
        call.probe = None;
        self.state.succeeded(call.sent, || self.now())
    }

    /// Records a failure. Returns whether it is to be reported: the store worked before, or failed
    /// in another way (it refused calls, and now cannot be reached, or the reverse).
    ///
    /// A failure that concerns one subject or policy says nothing about the store, and leaves the
    /// breaker unchanged.
    pub(super) fn failed(&self, call: CallToken, kind: FailureKind) -> bool {
        self.record_failure(call, kind, true)
    }

    /// Records a failure of one server, while others answer. It does not open the breaker, because
    /// the others could not decide either. Returns the same as [`failed`](Self::failed).
    pub(super) fn failed_in_part(&self, call: CallToken, kind: FailureKind) -> bool {
        self.record_failure(call, kind, false)
    }

    fn record_failure(&self, mut call: CallToken, kind: FailureKind, may_open: bool) -> bool {
        let now = self.now();
        match kind {
            FailureKind::Corrupt
            | FailureKind::Unsupported
            | FailureKind::Overloaded
            | FailureKind::OutOfMemory => false,
            kind if kind.is_configuration() => {
                call.probe = None;
                self.state.misconfigured(call.sent, now)
            }
            kind => {
                call.probe = None;
                if may_open {
                    self.state.failed(call.sent, kind, now, self.random.hash_one(now))
                } else {
                    self.state.failed_in_part(call.sent, kind, now)
                }
            }
        }
    }

    /// Returns the milliseconds since the breaker was created.
    fn now(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

impl AtomicState for AtomicU64 {
    fn new(value: u64) -> Self {
        Self::new(value)
    }

    fn load(&self) -> u64 {
        // Relaxed is enough, because the state guards no other memory.
        self.load(Ordering::Relaxed)
    }

    fn exchange(&self, current: u64, next: u64) -> bool {
        self.compare_exchange(current, next, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}
