//! The limits of a policy, compiled once into a list of steps over the states of one subject.
//!
//! ```text
//! policy    10/second    100/minute:gcra              20:concurrency    60/hour:sliding-window:...
//! step      Window       Gcra                         Log               Buckets
//! cells   [ since used | TAT fraction in-use-since 0 |                 | newest first units until b0 b1 … ]
//! logs                                                [ log ]
//! ```
//!
//! The states are an array of integers, the *cells*, and an array of logs. Each step has at least
//! two cells of its own, or its own log. The cells of a fixed window are a time and a number, which
//! the store in memory packs into ten bytes.
//!
//! A decision takes two passes. [`Plan::judge`] reads the states, and computes what can be charged.
//! [`Plan::commit`] charges it to all steps. Between the passes, a caller may judge other subjects,
//! and commit all or none of them.

use super::fixed_window::CompiledWindows;
use super::step::{PlanStep, SubjectStates, SubjectStatesMut};
use crate::model::{Cost, Limit, Mode, Outcome};
use crate::time::Timestamp;

/// The result of [`Plan::judge`]: the charge that [`Plan::commit`] will make.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Judgement {
    /// The time of the decision.
    pub(crate) at: Timestamp,
    /// The units to charge; 0 if the request is denied or only peeks.
    pub(crate) charged: u64,
    /// Whether an enforced limit has no unit or request left after the charge.
    pub(crate) is_full: bool,
    /// The limits in shadow that cannot grant the units, one bit for each. They are not charged.
    pub(crate) uncharged: u16,
}

/// The limits of a policy, compiled.
#[derive(Debug)]
pub(crate) struct Plan {
    steps: Box<[PlanStep]>,
    /// The limits in packed form, if they are at most six, and all of them are fixed windows that
    /// count units and are enforced.
    windows: Option<CompiledWindows>,
    cells: usize,
    logs: usize,
}

impl Plan {
    /// Compiles the limits of a policy.
    pub(crate) fn new(limits: impl ExactSizeIterator<Item = Limit> + Clone) -> Self {
        let (mut cells, mut logs) = (0, 0);
        let step = |limit| PlanStep::new(limit, &mut cells, &mut logs);
        let steps: Box<[PlanStep]> = limits.clone().map(step).collect();
        Self { windows: CompiledWindows::new(limits), steps, cells, logs }
    }

    /// Returns the step of each limit, in the order of the policy.
    pub(crate) fn steps(&self) -> &[PlanStep] {
        &self.steps
    }

    /// Returns the limits in packed form, if they are at most six, and all of them are fixed
    /// windows that count units and are enforced.
    pub(crate) const fn windows(&self) -> Option<&CompiledWindows> {
        self.windows.as_ref()
    }

    /// Returns the number of cells of the states of a subject.
    pub(crate) const fn cells(&self) -> usize {
        self.cells
    }

    /// Returns the number of logs of the states of a subject.
    pub(crate) const fn logs(&self) -> usize {
        self.logs
    }

    /// Computes the charge of a request at the time `at`. Changes nothing.
    pub(crate) fn judge(
        &self,
        states: SubjectStates<'_>,
        at: Timestamp,
        mode: Mode,
        cost: Cost,
    ) -> Judgement {
        let (mut units, mut requests, mut has_shadow) = (u64::MAX, u64::MAX, false);
        for step in &self.steps {
            if step.limit().is_shadow() {
                has_shadow = true;
                continue;
            }
            let least = if step.limit().counts_requests() { &mut requests } else { &mut units };
            *least = step.available(states, at).min(*least);
        }
        // Limits that count requests grant a request as a whole, or not at all.
        let granted = if requests == 0 { 0 } else { units };
        let charged = mode.charged(cost, granted);
        let is_last_request = requests == u64::from(charged > 0);
        let is_judged_in_shadow = has_shadow && charged > 0 && mode != Mode::Charge;
        let uncharged =
            if is_judged_in_shadow { self.denying_in_shadow(states, at, charged) } else { 0 };
        Judgement { at, charged, is_full: charged >= granted || is_last_request, uncharged }
    }

    /// Returns the limits in shadow that cannot grant `units`.
    #[cold]
    fn denying_in_shadow(&self, states: SubjectStates<'_>, now: Timestamp, units: u64) -> u16 {
        let denies = |step: &PlanStep| {
            step.limit().is_shadow() && step.available(states, now) < step.limit().units(units)
        };
        let steps = self.steps.iter().enumerate();
        steps.filter(|(_, step)| denies(step)).fold(0, |set, (index, _)| set | 1 << index)
    }

    /// Makes the charge that [`judge`](Self::judge) has computed. Sets the outcome of each limit.
    pub(crate) fn commit(
        &self,
        states: &mut SubjectStatesMut<'_>,
        judgement: &Judgement,
        outcomes: &mut [Outcome],
    ) {
        let Judgement { at, charged, uncharged, .. } = *judgement;
        for (index, (step, outcome)) in self.steps.iter().zip(outcomes).enumerate() {
            *outcome = if uncharged >> index & 1 == 0 {
                step.charge(states, at, charged)
            } else {
                step.outcome(states.read(), at, charged)
            };
        }
    }

    /// Returns the time until which the enforced limits deny a request of `units`. Returns the
    /// epoch if they grant it now, or never will.
    pub(crate) fn denied_until(
        &self,
        states: SubjectStates<'_>,
        now: Timestamp,
        units: u64,
    ) -> Timestamp {
        let enforced = self.steps.iter().filter(|step| !step.limit().is_shadow());
        let waits = enforced.filter_map(|step| step.outcome(states, now, units).wait_micros());
        waits.max().map_or(Timestamp::EPOCH, |wait| now.plus_micros(wait))
    }

    /// Returns the time from which all states of a subject can be removed.
    pub(crate) fn expires(&self, states: SubjectStates<'_>) -> Timestamp {
        self.steps.iter().map(|step| step.expires(states)).max().unwrap_or_default()
    }

    /// Returns the used fraction of the fullest enforced limit at `now`, scaled to 0–255 and
    /// rounded down.
    ///
    /// Eviction compares fractions, because units of different limits are not comparable.
    pub(crate) fn used_fraction(&self, states: SubjectStates<'_>, now: Timestamp) -> u8 {
        let enforced = self.steps.iter().filter(|step| !step.limit().is_shadow());
        let fractions = enforced.map(|step| {
            let used = step.outcome(states, now, 0).used();
            used.saturating_mul(256) / step.limit().capacity().max(1)
        });
        fractions.max().map_or(0, |fullest| u8::try_from(fullest).unwrap_or(u8::MAX))
    }
}
