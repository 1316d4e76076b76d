//! The states of the circuit breaker, and all transitions between them. Time and randomness are
//! arguments.
//!
//! | from | to | when |
//! |---|---|---|
//! | closed | failing | a call fails that was sent after the last recovery |
//! | failing | failing | a call succeeds: the failures were not in a row, and the count starts again at zero |
//! | failing | closed | a call succeeds, and none has failed for [`RECOVERY_PERIOD`] |
//! | failing | open | [`FAILURE_THRESHOLD`] calls in a row have failed, each sent after the previous failure |
//! | open | half open | the wait is over, and a request arrives: it becomes the probe |
//! | failing | failing | a call fails while other servers of the store answer: it is not counted |
//! | half open | closed | the probe succeeds |
//! | half open | failing | the probe fails while other servers of the store answer |
//! | half open | half open | the probe has no result after [`PROBE_TIMEOUT`]: the next request becomes a new probe |
//! | half open | open | the probe fails: the wait is doubled; or the probe is abandoned: the next request becomes the probe |
//! | any | misconfigured | the store refuses a call; calls continue, because a refused request is rejected by default |
//! | misconfigured | closed, failing | as from failing, once no call has been refused for [`RECOVERY_PERIOD`] |
//!
//! The whole state is one atomic number. Each transition is one exchange, so exactly one of several
//! concurrent callers makes it.

use std::fmt;

use crate::model::FailureKind;

/// The number of failures in a row that opens the breaker.
///
/// A failure counts only if its call was sent after the previous failure. When a connection breaks,
/// a thousand calls on it fail, but they count as one failure.
pub(super) const FAILURE_THRESHOLD: u64 = 3;

/// The first wait before a probe, in milliseconds. Each failed probe doubles the wait.
pub(super) const FIRST_WAIT: u64 = 100;

/// The longest wait before a probe, in milliseconds. Limits must apply again within a second after
/// the store has recovered. Even if a probe fails just before the recovery, two more probes fit
/// into that second.
pub(super) const LONGEST_WAIT: u64 = 200;

/// The time without a failure that closes the breaker, in milliseconds. If one part of a cluster is
/// down, some calls fail and others succeed, so one success does not end the outage.
pub(super) const RECOVERY_PERIOD: u64 = 500;

/// The time after which a probe without a result is presumed lost, in milliseconds. The task of a
/// probe may never be polled again, so the deadline of the call may never fire.
pub(super) const PROBE_TIMEOUT: u64 = 1_000;

/// An atomic number that threads share. Tests use Loom's version, which tries every order of
/// operations.
pub(super) trait AtomicState: fmt::Debug {
    fn new(value: u64) -> Self;

    fn load(&self) -> u64;

    /// Replaces `current` by `next`. Returns false if the value is not `current`.
    fn exchange(&self, current: u64, next: u64) -> bool;
}

/// The state that the circuit breaker is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Calls are sent, and succeed.
    Closed,
    /// Calls are sent. Some have failed, but not enough to open the breaker.
    Failing,
    /// Calls are sent, and the store refuses them.
    Misconfigured,
    /// No calls are sent until the wait is over.
    Open,
    /// No calls are sent except one probe.
    HalfOpen,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fields {
    phase: Phase,
    // Whether the last failure was a time-out.
    timed_out: bool,
    // The number of failures in a row. In `Open` and `HalfOpen`, the number of times that the wait
    // was doubled.
    count: u64,
    // Incremented by a transition that makes the results of earlier calls irrelevant.
    round: u64,
    // The time of the last failure or refusal; in `Open` and `HalfOpen`, the time at which the next
    // probe is due. In milliseconds.
    time: u64,
}

impl Fields {
    const MAX_DOUBLED: u64 = 8;

    fn unpack(word: u64) -> Self {
        let phase = match word & 7 {
            0 => Phase::Closed,
            1 => Phase::Failing,
            2 => Phase::Misconfigured,
            3 => Phase::Open,
            _ => Phase::HalfOpen,
        };
        let (timed_out, count) = (word >> 3 & 1 == 1, word >> 4 & 0xf);
        Self { phase, timed_out, count, round: word >> 8 & 0xffff, time: word >> 24 }
    }

    fn pack(self) -> u64 {
        let Self { phase, timed_out, count, round, time } = self;
        // 40 bits of milliseconds are 34 years.
        phase as u64 | u64::from(timed_out) << 3 | count << 4 | (round & 0xffff) << 8 | time << 24
    }

    const fn failure(self) -> FailureKind {
        if self.timed_out { FailureKind::TimedOut } else { FailureKind::Unavailable }
    }

    /// Returns the state after a transition to `phase`. Results of calls that were sent earlier are
    /// ignored from then on.
    fn next(self, phase: Phase) -> Self {
        Self { phase, count: 0, round: (self.round + 1) & 0xffff, ..self }
    }

    /// Returns whether `call` is the current probe, and not an earlier one that was presumed lost.
    fn is_probed_by(self, call: CallSnapshot) -> bool {
        call.is_probe && call.round == self.round
    }

    fn has_recovered(self, now: u64) -> bool {
        now.saturating_sub(self.time) >= RECOVERY_PERIOD
    }

    fn open(self, doubled: u64, now: u64, random: u64) -> Self {
        let count = doubled.min(Self::MAX_DOUBLED);
        Self { count, time: now + wait(count, random), ..self.next(Phase::Open) }
    }
}

/// Returns the wait before a probe, in milliseconds. It is at most `FIRST_WAIT`, doubled `doubled`
/// times, or `LONGEST_WAIT` if that is less. `random` selects a time between half of this maximum
/// and the maximum, because otherwise all instances of a service would probe at the same time.
pub(super) fn wait(doubled: u64, random: u64) -> u64 {
    let whole = LONGEST_WAIT.min(FIRST_WAIT << doubled.min(Fields::MAX_DOUBLED));
    whole / 2 + random % (whole / 2 + 1)
}

/// The state of the breaker when a call was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallSnapshot {
    phase: Phase,
    round: u64,
    is_probe: bool,
}

impl CallSnapshot {
    pub(super) const fn is_probe(self) -> bool {
        self.is_probe
    }

    pub(super) const fn phase(self) -> Phase {
        self.phase
    }

    fn new(state: Fields) -> Self {
        Self { phase: state.phase, round: state.round, is_probe: false }
    }
}

/// The atomic state of a circuit breaker.
#[derive(Debug)]
pub(super) struct BreakerState<W>(W);

impl<W: AtomicState> Default for BreakerState<W> {
    fn default() -> Self {
        let (phase, timed_out) = (Phase::Closed, false);
        Self(W::new(Fields { phase, timed_out, count: 0, round: 0, time: 0 }.pack()))
    }
}

impl<W: AtomicState> BreakerState<W> {
    /// Permits a call, and returns the state of the breaker for it. If the breaker is open and the
    /// wait is over, the call becomes the probe.
    ///
    /// # Errors
    ///
    /// Returns the last failure as an error if no call may be made.
    pub(super) fn try_acquire(
        &self,
        now: impl FnOnce() -> u64,
    ) -> Result<CallSnapshot, FailureKind> {
        let word = self.0.load();
        let state = Fields::unpack(word);
        let now = match state.phase {
            Phase::Closed | Phase::Failing | Phase::Misconfigured => {
                return Ok(CallSnapshot::new(state));
            }
            Phase::Open | Phase::HalfOpen => now(),
        };
        let count = state.count;
        let probing = Fields { count, time: now + PROBE_TIMEOUT, ..state.next(Phase::HalfOpen) };
        if now >= state.time && self.0.exchange(word, probing.pack()) {
            Ok(CallSnapshot { is_probe: true, ..CallSnapshot::new(probing) })
        } else {
            Err(state.failure())
        }
    }

    /// Returns the state of the breaker for a call that is sent even while the breaker is open.
    pub(super) fn snapshot(&self) -> CallSnapshot {
        CallSnapshot::new(Fields::unpack(self.0.load()))
    }

    /// Records a reply. Returns whether it closes the breaker.
    pub(super) fn succeeded(&self, call: CallSnapshot, now: impl FnOnce() -> u64) -> bool {
        if call.phase == Phase::Closed {
            return false;
        }
        let now = now();
        let made = self.transition(|state| match state.phase {
            Phase::HalfOpen if state.is_probed_by(call) => Some(state.next(Phase::Closed)),
            // A reply counts only if its call was sent after the last failure. Replies to earlier
            // calls may still arrive although the store has failed since.
            Phase::Failing | Phase::Misconfigured if state.round == call.round => {
                if state.has_recovered(now) {
                    Some(state.next(Phase::Closed))
                } else {
                    (state.count > 0).then(|| state.next(state.phase))
                }
            }
            _ => None,
        });
        made.is_some_and(|(_, state)| state.phase == Phase::Closed)
    }

    /// Records a call that failed because the store was not reached or did not answer in time.
    /// Returns whether the failure begins an outage.
    pub(super) fn failed(
        &self,
        call: CallSnapshot,
        kind: FailureKind,
        now: u64,
        random: u64,
    ) -> bool {
        self.record_failure(call, kind, now, Some(random))
    }

    /// Records a call that failed because one of several servers was not reached or did not answer
    /// in time. It does not open the breaker. Returns whether the failure begins an outage.
    pub(super) fn failed_in_part(&self, call: CallSnapshot, kind: FailureKind, now: u64) -> bool {
        self.record_failure(call, kind, now, None)
    }

    /// Records a failure. `random` selects the wait if the breaker opens; without it, the breaker
    /// does not open.
    fn record_failure(
        &self,
        call: CallSnapshot,
        kind: FailureKind,
        now: u64,
        random: Option<u64>,
    ) -> bool {
        let made = self.transition(|state| {
            let counts = state.round == call.round;
            let timed_out = kind == FailureKind::TimedOut;
            let count = u64::from(random.is_some());
            let failed = Fields { timed_out, time: now, ..state };
            match state.phase {
                Phase::HalfOpen if state.is_probed_by(call) => Some(match random {
                    Some(random) => failed.open(state.count + 1, now, random),
                    None => failed.next(Phase::Failing),
                }),
                // Only the probe counts. Other calls were sent before the breaker opened, or
                // regardless of it.
                Phase::Open | Phase::HalfOpen => None,
                Phase::Closed if counts => Some(Fields { count, ..failed.next(Phase::Failing) }),
                Phase::Misconfigured if counts && state.has_recovered(now) => {
                    Some(Fields { count, ..failed.next(Phase::Failing) })
                }
                // This failure begins no outage: the call was sent before the store recovered or
                // refused another call, or it failed soon after such a refusal.
                Phase::Closed | Phase::Misconfigured => None,
                Phase::Failing if !counts => Some(failed),
                Phase::Failing => Some(match random {
                    Some(random) if state.count + 1 >= FAILURE_THRESHOLD => {
                        failed.open(0, now, random)
                    }
                    Some(_) => Fields { count: state.count + 1, ..failed.next(Phase::Failing) },
                    None => Fields { count: state.count, ..failed.next(Phase::Failing) },
                }),
            }
        });
        made.is_some_and(|(before, _)| matches!(before.phase, Phase::Closed | Phase::Misconfigured))
    }

    /// Records that the store refused a call. Returns whether the refusal is to be reported,
    /// because the store did not refuse calls before.
    pub(super) fn misconfigured(&self, call: CallSnapshot, now: u64) -> bool {
        let made = self.transition(|state| {
            let counts = state.round == call.round;
            let refused = Fields { time: now, ..state };
            match state.phase {
                Phase::HalfOpen if state.is_probed_by(call) => {
                    Some(refused.next(Phase::Misconfigured))
                }
                Phase::Misconfigured => Some(refused),
                Phase::Closed | Phase::Failing if counts => {
                    Some(refused.next(Phase::Misconfigured))
                }
                _ => None,
            }
        });
        made.is_some_and(|(before, _)| before.phase != Phase::Misconfigured)
    }

    /// Abandons a probe without a result. The next request becomes the probe.
    pub(super) fn abandon_probe(&self, probe: CallSnapshot) {
        self.transition(|state| {
            let is_current = state.phase == Phase::HalfOpen && state.is_probed_by(probe);
            is_current.then_some(Fields { phase: Phase::Open, time: 0, ..state })
        });
    }

    /// Makes the transition that `next` returns. Returns the state before and after it, or `None`
    /// if `next` returns no transition.
    fn transition(&self, next: impl Fn(Fields) -> Option<Fields>) -> Option<(Fields, Fields)> {
        loop {
            let word = self.0.load();
            let before = Fields::unpack(word);
            let after = next(before)?;
            if self.0.exchange(word, after.pack()) {
                return Some((before, after));
            }
        }
    }
}
