//! The limits of a policy, compiled once into a list of steps over one record.
//!
//! ```text
//! policy    10/second    100/minute:gcra              20:concurrency    60/hour:sliding-window:...
//! step      Window       Gcra                         Log               Buckets
//! cells   [ since used | TAT fraction in-use-since 0 |                 | newest first units until b0 b1 … ]
//! logs                                                [ log ]
//! ```
//!
//! A record is an array of integers, the *cells*, and an array of logs. Each step has at least two
//! cells of its own, or its own log. The first four cells of a step are two pairs. In each pair,
//! the first cell is a time and the second a number, so that a store can pack a pair into ten
//! bytes.
//!
//! A decision takes two passes. [`Plan::judge`] reads the record, and computes what can be charged.
//! [`Plan::commit`] charges it to all steps. Between the passes, a caller may judge other records,
//! and commit all or none of them.

use super::fixed_window::{CompiledWindows, LANES};
use super::step::{LimitCounter, PlanStep, SubjectStates, SubjectStatesMut};
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
    fits_lanes: bool,
    /// Whether all limits count units and are enforced.
    is_plain: bool,
    /// Whether there are more limits than lanes, and all of them are fixed windows that count units
    /// and are enforced.
    has_many_windows: bool,
}

impl Plan {
    /// Compiles the limits of a policy.
    pub(crate) fn new(limits: impl ExactSizeIterator<Item = Limit> + Clone) -> Self {
        let (mut cells, mut logs) = (0, 0);
        let step = |limit| PlanStep::new(limit, &mut cells, &mut logs);
        let steps: Box<[PlanStep]> = limits.clone().map(step).collect();
        let has_buckets = steps.iter().any(|step| matches!(step.counter, LimitCounter::Buckets(_)));
        let is_plain = !limits.clone().any(|limit| limit.is_shadow() || limit.counts_requests());
        let is_window = |step: &PlanStep| matches!(step.counter, LimitCounter::Window(_));
        Self {
            has_many_windows: is_plain && steps.len() > LANES && steps.iter().all(is_window),
            is_plain,
            fits_lanes: logs == 0 && cells <= 2 * LANES && !has_buckets,
            windows: CompiledWindows::new(limits),
            steps,
            cells,
            logs,
        }
    }

    /// Returns the step of each limit, in the order of the policy.
    #[inline]
    pub(crate) fn steps(&self) -> &[PlanStep] {
        &self.steps
    }

    /// Returns the only step, if the policy has a single limit that counts units and is enforced.
    #[inline]
    pub(crate) fn sole_step(&self) -> Option<&PlanStep> {
        match &*self.steps {
            [step] if self.is_plain => Some(step),
            _ => None,
        }
    }

    /// Returns the limits in packed form, if they are at most six, and all of them are fixed
    /// windows that count units and are enforced.
    #[inline]
    pub(crate) const fn windows(&self) -> Option<&CompiledWindows> {
        self.windows.as_ref()
    }

    /// Returns the number of cells of a record.
    #[inline]
    pub(crate) const fn cells(&self) -> usize {
        self.cells
    }

    /// Returns the number of logs of a record.
    pub(crate) const fn logs(&self) -> usize {
        self.logs
    }

    /// Returns whether a record fits into six lanes, with a pair of cells in each.
    pub(crate) const fn fits_lanes(&self) -> bool {
        self.fits_lanes
    }

    /// Computes the charge of a request at the time `at`. Changes nothing.
    #[inline(always)]
    pub(crate) fn judge(
        &self,
        states: SubjectStates<'_>,
        at: Timestamp,
        mode: Mode,
        cost: Cost,
    ) -> Judgement {
        if !self.is_plain {
            return self.judge_apart(states, at, mode, cost);
        }
        let mut granted = u64::MAX;
        for step in &self.steps {
            granted = step.available(states, at).min(granted);
        }
        let charged = mode.charged(cost, granted);
        Judgement { at, charged, is_full: charged >= granted, uncharged: 0 }
    }

    /// Computes the charge of a request for a policy in which some limits are in shadow or count
    /// requests.
    #[inline(never)]
    fn judge_apart(
        &self,
        states: SubjectStates<'_>,
        at: Timestamp,
        mode: Mode,
        cost: Cost,
    ) -> Judgement {
        let (mut units, mut requests) = (u64::MAX, u64::MAX);
        for step in self.steps.iter().filter(|step| !step.limit().is_shadow()) {
            let least = if step.limit().counts_requests() { &mut requests } else { &mut units };
            *least = step.available(states, at).min(*least);
        }
        // Limits that count requests grant a request as a whole, or not at all.
        let granted = if requests == 0 { 0 } else { units };
        let charged = mode.charged(cost, granted);
        let is_last_request = requests == u64::from(charged > 0);
        let mut judgement =
            Judgement { at, charged, is_full: charged >= granted || is_last_request, uncharged: 0 };
        if charged > 0 && mode != Mode::Charge {
            judgement.uncharged = self.denying_in_shadow(states, at, charged);
        }
        judgement
    }

    /// Returns the limits in shadow that cannot grant `units`.
    fn denying_in_shadow(&self, states: SubjectStates<'_>, now: Timestamp, units: u64) -> u16 {
        let denies = |step: &PlanStep| {
            step.limit().is_shadow() && step.available(states, now) < step.limit().units(units)
        };
        let steps = self.steps.iter().enumerate();
        steps.filter(|(_, step)| denies(step)).fold(0, |set, (index, _)| set | 1 << index)
    }

    /// Makes the charge that [`judge`](Self::judge) has computed. Calls `outcome` with the index
    /// and the status of each limit.
    #[inline(always)]
    pub(crate) fn commit(
        &self,
        states: &mut SubjectStatesMut<'_>,
        judgement: &Judgement,
        mut outcome: impl FnMut(usize, Outcome),
    ) {
        let Judgement { at, charged, uncharged, .. } = *judgement;
        for (index, step) in self.steps.iter().enumerate() {
            let after = if uncharged >> index & 1 == 0 {
                step.charge(states, at, charged)
            } else {
                step.outcome(states.read(), at, charged)
            };
            outcome(index, after);
        }
    }

    /// Returns whether there are more than six limits, and all of them are fixed windows that count
    /// units and are enforced.
    #[inline]
    pub(crate) const fn has_many_windows(&self) -> bool {
        self.has_many_windows
    }

    /// Returns the time until which the enforced limits deny a request of `units`. Returns the
    /// epoch if they grant it now, or never will.
    #[inline(never)]
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

    /// Returns the time from which the whole record can be removed.
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
