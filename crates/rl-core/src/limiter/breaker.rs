//! Whether the store is asked at all. While it fails, requests are answered at once by the failure
//! policy, and one of them now and then finds out whether the store is back.
//!
//! The same states say what is worth a line in the log, so that an outage is one line when it begins
//! and one when it ends.

mod circuit;
#[cfg(test)]
mod tests;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use circuit::{Circuit, Pass, Word};
use tokio::time::Instant;

use crate::model::FailureKind;

#[derive(Debug)]
pub(super) struct Breaker {
    circuit: Circuit<AtomicU64>,
    begun: Instant,
    chance: RandomState,
}

impl Default for Breaker {
    fn default() -> Self {
        Self { circuit: Circuit::default(), begun: Instant::now(), chance: RandomState::new() }
    }
}

/// Taken when a request sets out to the store. A probe that is dropped without having learnt anything
/// leaves the next request to find out.
#[derive(Debug)]
pub(super) struct Ticket {
    pass: Pass,
    probe: Option<Arc<Breaker>>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(breaker) = self.probe.take() {
            breaker.circuit.let_go(self.pass);
        }
    }
}

impl Breaker {
    /// A ticket to the store; or why the store failed last, if it is not to be asked.
    ///
    /// A healthy store costs one relaxed load here, and nothing when it has answered.
    pub(super) fn admit(self: &Arc<Self>) -> Result<Ticket, FailureKind> {
        let pass = self.circuit.admit(|| self.now())?;
        let probe = pass.is_probe().then(|| Arc::clone(self));
        Ok(Ticket { pass, probe })
    }

    /// A ticket for what is asked in any case, such as giving units back.
    pub(super) fn look(&self) -> Ticket {
        Ticket { pass: self.circuit.look(), probe: None }
    }

    /// Notes an answer; true if it ends what a line was logged for.
    pub(super) fn answered(&self, mut ticket: Ticket) -> bool {
        ticket.probe = None;
        self.circuit.answered(ticket.pass, || self.now())
    }

    /// Records a failure of the store. Returns whether to log it: until now the store worked, or failed in
    /// another way.
    ///
    /// A failure that concerns one subject or policy says nothing about the store and does not belong here.
    pub(super) fn failed(&self, mut ticket: Ticket, kind: FailureKind) -> bool {
        let now = self.now();
        match kind {
            FailureKind::Corrupt | FailureKind::Unsupported | FailureKind::Overloaded => false,
            kind if kind.is_configuration() => {
                ticket.probe = None;
                self.circuit.misconfigured(ticket.pass, now)
            }
            kind => {
                ticket.probe = None;
                self.circuit.failed(ticket.pass, kind, now, self.chance.hash_one(now))
            }
        }
    }

    /// Milliseconds since the breaker was made.
    fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

impl Word for AtomicU64 {
    fn new(value: u64) -> Self {
        Self::new(value)
    }

    fn load(&self) -> u64 {
        // The word is all there is: it guards no other memory.
        self.load(Ordering::Relaxed)
    }

    fn exchange(&self, current: u64, next: u64) -> bool {
        self.compare_exchange(current, next, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}
