use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// What all handles on one connection know of it.
pub(crate) struct Life {
    generation: u64,
    current: Arc<AtomicU64>,
    opened: Instant,
    silence: Duration,
    // When the first command was sent that no reply came after, in milliseconds from `opened`.
    owing_since: AtomicU64,
}

impl Life {
    const NOTHING_OWED: u64 = u64::MAX;

    pub(crate) fn new(generation: u64, current: Arc<AtomicU64>, silence: Duration) -> Self {
        let owing_since = AtomicU64::new(Self::NOTHING_OWED);
        Self { generation, current, opened: Instant::now(), silence, owing_since }
    }

    /// Ends the generation: once, even if many tasks fail together.
    pub(crate) fn fail(&self) {
        let (this, next) = (self.generation, self.generation + 1);
        let _ = self.current.compare_exchange(this, next, Ordering::AcqRel, Ordering::Relaxed);
    }

    pub(crate) fn is_stale(&self) -> bool {
        self.generation != self.current.load(Ordering::Acquire)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Ends the generation if an answer has been owed for too long.
    fn judge(&self, owing_since: u64, now: u64) {
        if u128::from(now.saturating_sub(owing_since)) >= self.silence.as_millis() {
            self.fail();
        }
    }

    pub(crate) fn heard(&self) {
        self.owing_since.store(Self::NOTHING_OWED, Ordering::Relaxed);
    }
}

/// A command without a reply yet. The limiter drops it at its deadline.
pub(crate) struct Waiting<'a>(&'a Life);

impl<'a> Waiting<'a> {
    pub(crate) fn begin(life: &'a Life) -> Self {
        let (owing_since, now) = (&life.owing_since, life.now());
        let (relaxed, nothing) = (Ordering::Relaxed, Life::NOTHING_OWED);
        if let Err(since) = owing_since.compare_exchange(nothing, now, relaxed, relaxed) {
            // Not every command is given up at a deadline: those for permits go on waiting.
            life.judge(since, now);
        }
        Self(life)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.judge(self.0.owing_since.load(Ordering::Relaxed), self.0.now());
    }
}
