//! The states of the breaker, and all ways between them. Time and chance come from outside.
//!
//! | from | to | when |
//! |---|---|---|
//! | well | failing | a request fails that set out since the store was last found well |
//! | failing | failing | an answer comes: the failures are not in a row, and are counted anew |
//! | failing | well | an answer comes, and nothing has failed for [`CALM`] |
//! | failing | open | [`ROUNDS`] failures in a row, each of a request that set out after the one before |
//! | open | probing | a request comes after the wait: it is the probe |
//! | probing | well | the probe is answered |
//! | probing | probing | the probe has told nothing for [`PATIENCE`]: the next request is another |
//! | probing | open | the probe fails: the wait is doubled; or it is given up: the next request probes |
//! | any | misconfigured | the store refuses to work for us; it is asked on, as its refusals deny |
//! | misconfigured | well, failing | as from failing, when it has not refused for [`CALM`] |
//!
//! All of it is in one word: each step is one exchange, made by exactly one of many that try it.

use std::fmt;

use crate::model::FailureKind;

/// So many failures in a row open the breaker.
///
/// A failure counts only for a request that set out after the one counted before: a thousand requests
/// on a connection that breaks are one failure.
pub(super) const ROUNDS: u64 = 3;

/// The first wait before a probe, in milliseconds. It is doubled with each probe that fails.
pub(super) const FIRST_WAIT: u64 = 100;

/// The longest wait before a probe, in milliseconds. Limits must hold again within a second of the
/// return of the store: there is time for a probe that just missed it, and for two more.
pub(super) const LONGEST_WAIT: u64 = 200;

/// After so many milliseconds without a failure the store is well again. A store of which one part
/// is down answers and fails in turns: that is one outage.
pub(super) const CALM: u64 = 500;

/// How long others wait for what a probe finds out, in milliseconds. It has a deadline, but it may be
/// held up by its own task: what the store answers it would be known to nobody.
pub(super) const PATIENCE: u64 = 1_000;

/// A word that threads share. The tests try one that takes every order.
pub(super) trait Word: fmt::Debug {
    fn new(value: u64) -> Self;

    fn load(&self) -> u64;

    /// Puts `next` in the place of `current`; false if something else is there.
    fn exchange(&self, current: u64, next: u64) -> bool;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Well,
    Failing,
    Misconfigured,
    Open,
    Probing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    phase: Phase,
    // Of the last failure.
    timed_out: bool,
    // Failures in a row; of an open breaker, how often the wait was doubled.
    count: u64,
    // Raised whenever what set out before no longer says anything about now.
    round: u64,
    // In milliseconds: of the last failure, or when a probe, or another, is due.
    time: u64,
}

impl State {
    const MOST_DOUBLED: u64 = 8;

    fn unpack(word: u64) -> Self {
        let phase = match word & 7 {
            0 => Phase::Well,
            1 => Phase::Failing,
            2 => Phase::Misconfigured,
            3 => Phase::Open,
            _ => Phase::Probing,
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

    /// Nothing that set out until now says anything about it.
    fn next(self, phase: Phase) -> Self {
        Self { phase, count: 0, round: (self.round + 1) & 0xffff, ..self }
    }

    /// Whether it is this one that finds out: it may have been given up.
    fn is_probed_by(self, pass: Pass) -> bool {
        pass.is_probe && pass.round == self.round
    }

    fn is_calm(self, now: u64) -> bool {
        now.saturating_sub(self.time) >= CALM
    }

    fn open(self, doubled: u64, now: u64, chance: u64) -> Self {
        let count = doubled.min(Self::MOST_DOUBLED);
        Self { count, time: now + wait(count, chance), ..self.next(Phase::Open) }
    }
}

/// How long to wait before a probe: between half and all of a wait that was doubled so often. The
/// instances of a service must not come back in step.
pub(super) fn wait(doubled: u64, chance: u64) -> u64 {
    let whole = LONGEST_WAIT.min(FIRST_WAIT << doubled.min(State::MOST_DOUBLED));
    whole / 2 + chance % (whole / 2 + 1)
}

/// What a request knew of the store when it set out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pass {
    phase: Phase,
    round: u64,
    is_probe: bool,
}

impl Pass {
    pub(super) const fn is_probe(self) -> bool {
        self.is_probe
    }

    #[cfg(test)]
    pub(super) const fn phase(self) -> Phase {
        self.phase
    }

    fn of(state: State) -> Self {
        Self { phase: state.phase, round: state.round, is_probe: false }
    }
}

#[derive(Debug)]
pub(super) struct Circuit<W>(W);

impl<W: Word> Default for Circuit<W> {
    fn default() -> Self {
        let (phase, timed_out) = (Phase::Well, false);
        Self(W::new(State { phase, timed_out, count: 0, round: 0, time: 0 }.pack()))
    }
}

impl<W: Word> Circuit<W> {
    /// A pass to the store, or why it failed last.
    pub(super) fn admit(&self, now: impl FnOnce() -> u64) -> Result<Pass, FailureKind> {
        let word = self.0.load();
        let state = State::unpack(word);
        let now = match state.phase {
            Phase::Well | Phase::Failing | Phase::Misconfigured => return Ok(Pass::of(state)),
            Phase::Open | Phase::Probing => now(),
        };
        let count = state.count;
        let probing = State { count, time: now + PATIENCE, ..state.next(Phase::Probing) };
        if now >= state.time && self.0.exchange(word, probing.pack()) {
            Ok(Pass { is_probe: true, ..Pass::of(probing) })
        } else {
            Err(state.failure())
        }
    }

    pub(super) fn look(&self) -> Pass {
        Pass::of(State::unpack(self.0.load()))
    }

    /// Notes an answer; true if the store is well from now on, and was not.
    pub(super) fn answered(&self, pass: Pass, now: impl FnOnce() -> u64) -> bool {
        if pass.phase == Phase::Well {
            return false;
        }
        let now = now();
        let step = self.step(|state| match state.phase {
            Phase::Probing if state.is_probed_by(pass) => Some(state.next(Phase::Well)),
            // The last answers of a dying store set out before it failed.
            Phase::Failing | Phase::Misconfigured if state.round == pass.round => {
                if state.is_calm(now) {
                    Some(state.next(Phase::Well))
                } else {
                    (state.count > 0).then(|| state.next(state.phase))
                }
            }
            _ => None,
        });
        step.is_some_and(|(_, state)| state.phase == Phase::Well)
    }

    /// Notes that the infrastructure failed; true if that is another state than before.
    pub(super) fn failed(&self, pass: Pass, kind: FailureKind, now: u64, chance: u64) -> bool {
        let step = self.step(|state| {
            let counts = state.round == pass.round;
            let timed_out = kind == FailureKind::TimedOut;
            let failed = State { timed_out, time: now, ..state };
            match state.phase {
                Phase::Probing if state.is_probed_by(pass) => {
                    Some(failed.open(state.count + 1, now, chance))
                }
                // The probe will tell.
                Phase::Open | Phase::Probing => None,
                Phase::Well if counts => Some(State { count: 1, ..failed.next(Phase::Failing) }),
                Phase::Misconfigured if counts && state.is_calm(now) => {
                    Some(State { count: 1, ..failed.next(Phase::Failing) })
                }
                // It set out before the store was found to be well, or refuses otherwise.
                Phase::Well | Phase::Misconfigured => None,
                Phase::Failing if !counts => Some(failed),
                Phase::Failing if state.count + 1 >= ROUNDS => Some(failed.open(0, now, chance)),
                Phase::Failing => {
                    Some(State { count: state.count + 1, ..failed.next(Phase::Failing) })
                }
            }
        });
        step.is_some_and(|(before, _)| matches!(before.phase, Phase::Well | Phase::Misconfigured))
    }

    /// Notes that the store refused to work for us; true if it did not before.
    pub(super) fn misconfigured(&self, pass: Pass, now: u64) -> bool {
        let step = self.step(|state| {
            let counts = state.round == pass.round;
            let refused = State { time: now, ..state };
            match state.phase {
                Phase::Probing if state.is_probed_by(pass) => {
                    Some(refused.next(Phase::Misconfigured))
                }
                Phase::Misconfigured => Some(refused),
                Phase::Well | Phase::Failing if counts => Some(refused.next(Phase::Misconfigured)),
                _ => None,
            }
        });
        step.is_some_and(|(before, _)| before.phase != Phase::Misconfigured)
    }

    /// Gives the probe up: the next request is one.
    pub(super) fn let_go(&self, probe: Pass) {
        self.step(|state| {
            let is_held = state.phase == Phase::Probing && state.is_probed_by(probe);
            is_held.then_some(State { phase: Phase::Open, time: 0, ..state })
        });
    }

    /// One step on, by whoever is first; what was before, and after.
    fn step(&self, next: impl Fn(State) -> Option<State>) -> Option<(State, State)> {
        loop {
            let word = self.0.load();
            let before = State::unpack(word);
            let after = next(before)?;
            if self.0.exchange(word, after.pack()) {
                return Some((before, after));
            }
        }
    }
}
