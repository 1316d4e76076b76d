//! The limits of a policy, compiled once into a list of steps over one record.
//!
//! ```text
//! policy    10/second    100/minute:gcra              20:concurrency    60/hour:sliding-window:...
//! step      Window       Gcra                         Log               Buckets
//! cells   [ since used | TAT fraction in-use-since 0 |                 | newest first units until b0 b1 … ]
//! logs                                                [ log ]
//! ```
//!
//! A record is an array of integers, the *cells*, and an array of logs. Each step has cells of its
//! own, or its own log.
//!
//! A decision takes two passes. [`Plan::available`] reads the record, and [`Plan::charge`] charges
//! all steps. Between the passes, a store judges the other parts of the request.

use super::fixed_window::WindowArrays;
use super::step::{LimitCounter, PlanStep, SubjectStates, SubjectStatesMut};
use crate::model::{Limit, Outcome};
use crate::time::Timestamp;

/// The units that the enforced limits of a policy can grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Available {
    /// The units that the limits can grant that count units.
    units: u64,
    /// The requests that the limits can grant that count requests.
    requests: u64,
}

impl Available {
    /// The limits can grant at least this number of units.
    pub(crate) const fn at_least(units: u64) -> Self {
        Self { units, requests: u64::MAX }
    }

    /// Returns the units that one request can be granted.
    #[inline]
    pub(crate) const fn units(self) -> u64 {
        // Limits that count requests grant a request as a whole, or not at all.
        if self.requests == 0 { 0 } else { self.units }
    }

    /// Returns whether a limit has no unit or request left after a charge of `units`, which is not
    /// 0.
    #[inline]
    pub(crate) const fn is_used_up_by(self, units: u64) -> bool {
        units >= self.units() || self.requests == 1
    }
}

/// The limits of a policy, compiled.
#[derive(Debug)]
pub(crate) struct Plan {
    steps: Box<[PlanStep]>,
    /// The limits as arrays, if they are at most six, and all of them are fixed windows that count
    /// units and are enforced.
    windows: Option<WindowArrays>,
    cells: usize,
    logs: usize,
}

impl Plan {
    /// Compiles the limits of a policy.
    pub(crate) fn new(limits: impl ExactSizeIterator<Item = Limit> + Clone) -> Self {
        let (mut cells, mut logs) = (0, 0);
        let step = |limit| PlanStep::new(limit, &mut cells, &mut logs);
        let steps = limits.clone().map(step).collect();
        Self { steps, windows: WindowArrays::new(limits), cells, logs }
    }

    /// Returns the step of each limit, in the order of the policy.
    pub(crate) fn steps(&self) -> &[PlanStep] {
        &self.steps
    }

    /// Returns the limits as arrays, if they are at most six, and all of them are fixed windows that
    /// count units and are enforced.
    #[inline]
    pub(crate) const fn windows(&self) -> Option<&WindowArrays> {
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

    /// Returns the units that the enforced limits can grant at the time `at`.
    #[inline]
    pub(crate) fn available(&self, states: SubjectStates<'_>, at: Timestamp) -> Available {
        let mut available = Available { units: u64::MAX, requests: u64::MAX };
        for step in self.steps.iter().filter(|step| !step.limit().is_shadow()) {
            let least = match step.limit().counts_requests() {
                true => &mut available.requests,
                false => &mut available.units,
            };
            *least = step.available(states, at).min(*least);
        }
        available
    }

    /// Charges `units` at the time `at`, even if fewer are available. Calls `status` with the status
    /// of each limit afterwards.
    ///
    /// A limit in shadow that cannot grant the units is not charged, and its status is a denial.
    /// If `is_done`, it is charged, because the units are those of work that was done.
    #[inline]
    pub(crate) fn charge(
        &self,
        states: &mut SubjectStatesMut<'_>,
        at: Timestamp,
        units: u64,
        is_done: bool,
        mut status: impl FnMut(Outcome),
    ) {
        for step in &self.steps {
            let limit = step.limit();
            let is_denying = limit.is_shadow()
                && !is_done
                && step.available(states.read(), at) < limit.units(units);
            status(match is_denying {
                true => step.outcome(states.read(), at, units),
                false => step.charge(states, at, units),
            });
        }
    }

    /// Returns the status of each limit at the time `at`, for a request that requires `required`
    /// units.
    pub(crate) fn outcomes<'a>(
        &'a self,
        states: SubjectStates<'a>,
        at: Timestamp,
        required: u64,
    ) -> impl Iterator<Item = Outcome> + 'a {
        self.steps.iter().map(move |step| step.outcome(states, at, required))
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
