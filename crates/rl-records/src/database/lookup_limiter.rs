use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rl_core::FailureKind;
use rl_core::time::Timestamp;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The pause between two attempts after a failed look-up.
pub(crate) const PAUSE_MICROS: u64 = 1_000_000;

/// The maximum number of waiting look-ups for values that are not cached.
///
/// Clients can invent names, but they can fill only this queue.
const MAX_UNKNOWN: usize = 256;

/// The maximum number of waiting look-ups for cached values that may have changed.
const MAX_KNOWN: usize = 4_096;

/// Limits the look-ups of all caches: how many run at the same time, and how many wait. While the
/// database is down, it also limits how often a look-up is tried.
#[derive(Debug)]
pub(crate) struct LookupLimiter {
    running: Arc<Semaphore>,
    state: Mutex<QueueState>,
}

#[derive(Debug, Default)]
struct QueueState {
    // The numbers of look-ups that wait: for unknown values, and for cached values.
    waiting: [usize; 2],
    outage: Option<Outage>,
}

/// The state from a failed look-up until one succeeds. In this state only one look-up at a time
/// probes the database.
#[derive(Debug)]
struct Outage {
    pause_until: Timestamp,
    is_probing: bool,
}

impl LookupLimiter {
    pub(crate) fn new(max_running: usize) -> Arc<Self> {
        let running = Arc::new(Semaphore::new(max_running.max(1)));
        Arc::new(Self { running, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a look-up to a queue: to the one for cached values if `is_known` is true, else to the
    /// one for unknown values.
    ///
    /// # Errors
    ///
    /// Returns an error without waiting if the database is down or the queue is full.
    pub(crate) fn enqueue(
        self: &Arc<Self>,
        is_known: bool,
        now: Timestamp,
    ) -> Result<LookupPermit, FailureKind> {
        let mut state = self.state();
        let is_closed = |outage: &Outage| outage.is_probing || is_paused(now, outage.pause_until);
        if state.outage.as_ref().is_some_and(is_closed) {
            return Err(FailureKind::Unavailable);
        }
        let (queue, max) = if is_known { (1, MAX_KNOWN) } else { (0, MAX_UNKNOWN) };
        if state.waiting[queue] >= max {
            return Err(FailureKind::Overloaded);
        }
        state.waiting[queue] += 1;
        let is_probe = state.outage.is_some();
        if let Some(outage) = &mut state.outage {
            outage.is_probing = true;
        }
        Ok(LookupPermit { limiter: self.clone(), queue: Some(queue), is_probe, running: None })
    }
}

/// Permits one look-up to wait in a queue and then to run. Dropping the permit makes room for
/// another look-up.
#[derive(Debug)]
pub(crate) struct LookupPermit {
    limiter: Arc<LookupLimiter>,
    queue: Option<usize>,
    is_probe: bool,
    running: Option<OwnedSemaphorePermit>,
}

impl LookupPermit {
    /// Waits until the look-up may run.
    ///
    /// # Errors
    ///
    /// Returns an error if another look-up has meanwhile found that the database is down.
    pub(crate) async fn acquire(&mut self) -> Result<(), FailureKind> {
        let running = self.limiter.running.clone().acquire_owned().await;
        self.running = Some(running.map_err(|_| FailureKind::Unavailable)?);
        let limiter = self.limiter.clone();
        let mut state = limiter.state();
        self.leave_queue(&mut state);
        let is_closed = state.outage.is_some() && !self.is_probe;
        if is_closed { Err(FailureKind::Unavailable) } else { Ok(()) }
    }

    fn leave_queue(&mut self, state: &mut QueueState) {
        if let Some(queue) = self.queue.take() {
            state.waiting[queue] -= 1;
        }
    }

    /// Ends the look-up, and records its result.
    pub(crate) fn finish(mut self, failure: Option<FailureKind>, now: Timestamp) {
        let limiter = self.limiter.clone();
        let mut state = limiter.state();
        match failure {
            Some(kind) if !kind.is_configuration() => {
                let is_probing =
                    !self.is_probe && state.outage.as_ref().is_some_and(|outage| outage.is_probing);
                let pause_until = now.plus_micros(PAUSE_MICROS);
                state.outage = Some(Outage { pause_until, is_probing });
            }
            // This failure, for example a damaged record, begins no outage, because the database
            // has replied. As the result of a probe, it ends the outage.
            Some(_) if !self.is_probe => {}
            _ => state.outage = None,
        }
        self.is_probe = false;
    }
}

impl Drop for LookupPermit {
    fn drop(&mut self) {
        let limiter = self.limiter.clone();
        let mut state = limiter.state();
        self.leave_queue(&mut state);
        if let Some(outage) = &mut state.outage
            && self.is_probe
        {
            outage.is_probing = false;
        }
    }
}

/// Returns whether the pause that ends at `until` is still in effect. If the clock was set back,
/// the pause has ended.
pub(crate) const fn is_paused(now: Timestamp, until: Timestamp) -> bool {
    let left = until.micros_since(now);
    0 < left && left <= PAUSE_MICROS
}
