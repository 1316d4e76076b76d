//! The time after which a denied request is worth another try, and the lag of the store's clock.

use std::time::Duration;

use super::clock_lag::ClockLag;
use super::parts::PartStatus;
use super::{Decision, Origin, RetryAfter};
use crate::time::Timestamp;

impl Decision {
    /// Returns the longest wait of the limits that deny. The wait is exact if no other request uses
    /// these limits. Under a concurrency limit it is a bound: the time until enough leases have
    /// ended.
    ///
    /// If no store could decide ([`Origin::FailedClosed`]), the wait is one second.
    #[must_use]
    pub fn retry_after(&self) -> RetryAfter {
        if let Origin::FailedClosed(_) = self.origin {
            return RetryAfter::In(Duration::from_secs(1));
        }
        if self.decided_parts().is_some() {
            return self.longest_wait();
        }
        self.enforced().map(|limit| limit.retry_after()).max().unwrap_or(RetryAfter::Now)
    }

    /// Returns the time after which a client should retry. `Retry-After`, messages and gRPC clients
    /// get this time.
    ///
    /// It is [`retry_after`](Self::retry_after), but a concurrency limit contributes at most its
    /// [hint](crate::Limit::with_retry_hint), by default a second. Its places are freed when requests
    /// end, long before the leases do.
    #[must_use]
    pub fn retry_hint(&self) -> RetryAfter {
        if let Origin::FailedClosed(_) = self.origin {
            return self.retry_after();
        }
        self.enforced_of_all_parts()
            .map(|limit| limit.retry_hint())
            .max()
            .unwrap_or(RetryAfter::Now)
    }

    /// Returns the longest wait of the enforced parts.
    fn longest_wait(&self) -> RetryAfter {
        let enforced = self.parts().filter(PartStatus::is_enforced);
        enforced.map(|part| part.retry_after()).max().unwrap_or(RetryAfter::Now)
    }

    /// Records that the store's clock showed `clock` when the decision was made. For stores.
    #[inline]
    pub(crate) const fn note_clock(&mut self, clock: Timestamp) {
        self.clock_lag = ClockLag::new(self.statuses.decided_at, clock);
    }

    /// Returns the same decision, made when a server's clock showed `clock`; `None` if the server
    /// has not stated it, because its clock has no lag.
    #[cfg(feature = "redis")]
    #[inline(always)]
    pub(crate) const fn at_server_time(mut self, clock: Option<Timestamp>) -> Self {
        if let Some(clock) = clock {
            self.note_clock(clock);
        }
        self
    }

    /// Returns how far the store's clock was behind the [time of the decision](Self::at).
    ///
    /// It is zero unless the clock has stepped back, by more than a millisecond, to a time before
    /// the last change of the subject. Then no time passes for the subject until the clock reaches
    /// that change again. All waits and resets of the decision include this time.
    #[must_use]
    pub fn clock_lag(&self) -> Duration {
        self.described().clock_lag.duration()
    }
}
