//! The states of one subject, for any number of limits and every algorithm.
//!
//! ```text
//! cells    [ cells of the policy's limits, as its plan lays them out ]; more than four are on the heap
//! extra -> [ logs of the policy's limits | states that other policies left ]
//! ```

use smallvec::SmallVec;

use super::entry::TooManyStates;
use crate::algorithm::{Log, SubjectStates, SubjectStatesMut};
use crate::model::{MAX_FOREIGN_STATES, StateId};
use crate::policy::Policy;
use crate::store::Refund;
use crate::time::Timestamp;

/// The states of one subject.
#[derive(Clone, Debug)]
pub(super) struct PlainEntry {
    /// The policy that was charged last.
    policy: Policy,
    cells: SmallVec<[u64; 4]>,
    extra: Option<Box<ExtraStates>>,
    /// The time of the last change. No decision is made at an earlier time.
    last_change: Timestamp,
    /// The time at which the recorded denial ends.
    denied_until: Timestamp,
}

/// The µs for which an entry with an empty log is kept, so that the next permit needs no new entry.
const EMPTY_IS_KEPT: u64 = 1_000_000;

/// The states that are not cells of the policy.
#[derive(Clone, Debug, Default)]
struct ExtraStates {
    logs: SmallVec<[Log; 1]>,
    foreign: Vec<ForeignState>,
}

/// The state of a limit that the policy does not contain.
#[derive(Clone, Debug)]
struct ForeignState {
    id: StateId,
    content: StateContent,
    /// The time from which the state equals that of an unused limit.
    expires: Timestamp,
}

#[derive(Clone, Debug)]
enum StateContent {
    Cells(Box<[u64]>),
    Log(Log),
}

impl PlainEntry {
    /// Creates an entry without any used units.
    pub(super) fn new(policy: &Policy) -> Self {
        let mut entry = Self {
            policy: policy.clone(),
            cells: SmallVec::new(),
            extra: None,
            last_change: Timestamp::EPOCH,
            denied_until: Timestamp::EPOCH,
        };
        entry.lay_out(policy, Vec::new());
        entry
    }

    /// Creates an entry from the cells of a policy without logs.
    pub(super) fn of_cells(
        policy: &Policy,
        cells: &[u64],
        last_change: Timestamp,
        denied_until: Timestamp,
    ) -> Self {
        let (policy, cells) = (policy.clone(), SmallVec::from_slice(cells));
        Self { policy, cells, extra: None, last_change, denied_until }
    }

    /// Returns the policy that was charged last.
    pub(super) const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns the cells if the entry has no other states.
    pub(super) fn only_cells(&self) -> Option<&[u64]> {
        self.extra.is_none().then_some(&*self.cells)
    }

    /// Returns the time of the last change.
    pub(super) const fn last_change(&self) -> Timestamp {
        self.last_change
    }

    /// Returns the time at which the recorded denial ends.
    pub(super) const fn denied_until(&self) -> Timestamp {
        self.denied_until
    }

    /// Returns the used fraction of the fullest limit at the last change, scaled to 0–255.
    pub(super) fn used_fraction(&self) -> u8 {
        self.policy.plan().used_fraction(self.states(), self.last_change)
    }

    /// Returns whether all states are expired at `now`.
    pub(super) fn is_expired(&self, now: Timestamp) -> bool {
        let now = self.decision_time(now);
        let kept = if self.extra.is_some() { EMPTY_IS_KEPT } else { 0 };
        now >= self.policy.plan().expires(self.states()).max(self.last_change.plus_micros(kept))
            && self.foreign().iter().all(|state| now >= state.expires)
    }

    /// Returns whether a recorded denial still applies at `now`.
    pub(super) fn is_denied(&self, now: Timestamp) -> bool {
        self.decision_time(now) < self.denied_until
    }

    /// Records that requests are denied until `until`, unless a later time is recorded.
    pub(super) fn note_denial(&mut self, until: Timestamp) {
        self.denied_until = self.denied_until.max(until);
    }

    /// Forgets a recorded denial that still applies at `at`, unless there are states of other
    /// policies. Returns whether there was one.
    pub(super) fn forget_denial(&mut self, at: Timestamp) -> bool {
        let had_denial = at < self.denied_until && self.foreign().is_empty();
        if had_denial {
            self.denied_until = Timestamp::EPOCH;
        }
        had_denial
    }

    /// Changes the states at the time `at`. Drops the states of other policies that have expired.
    #[inline]
    pub(super) fn change<T>(
        &mut self,
        policy: &Policy,
        at: Timestamp,
        change: impl FnOnce(&mut SubjectStatesMut<'_>) -> T,
    ) -> T {
        if !self.policy.is_same_handle(policy) {
            self.policy = policy.clone();
        }
        if !self.foreign().is_empty() {
            self.drop_expired(at);
        }
        self.last_change = at;
        let logs = self.extra.as_mut().map_or(&mut [][..], |extra| &mut extra.logs);
        change(&mut SubjectStatesMut { cells: &mut self.cells, logs })
    }

    /// Checks that no more states of other policies count at `at` than an entry may hold.
    ///
    /// # Errors
    ///
    /// Fails if more of them count.
    pub(super) fn check_states(&self, at: Timestamp) -> Result<(), TooManyStates> {
        let counting = self.foreign().iter().filter(|state| at < state.expires);
        if counting.count() > MAX_FOREIGN_STATES { Err(TooManyStates) } else { Ok(()) }
    }

    /// Makes later decisions use no time before `earliest`.
    pub(super) fn delay_until(&mut self, earliest: Timestamp) {
        self.last_change = self.last_change.max(earliest);
    }

    /// Returns how many of the units in `refund` the limit at `index` still counts as permits.
    pub(super) fn held(&self, refund: &Refund<'_>, index: usize, now: Timestamp) -> u64 {
        let policy = refund.policy;
        let log = self.log(policy.limits()[index].state_id());
        let (now, units) = (self.decision_time(now), refund.units_of(index));
        let step = &policy.plan().steps()[index];
        log.map_or(0, |log| step.held(log, now, refund.charged, units))
    }

    /// Returns the log of a state, if there is one.
    fn log(&self, id: StateId) -> Option<&Log> {
        let own = self.policy.limits().iter().position(|named| named.state_id() == id);
        if let Some(index) = own {
            let step = &self.policy.plan().steps()[index];
            return step.is_log().then(|| &self.states().logs[step.range().start]);
        }
        self.foreign().iter().find(|state| state.id == id).and_then(|state| match &state.content {
            StateContent::Log(log) => Some(log),
            StateContent::Cells(_) => None,
        })
    }

    /// Returns `now`, or the time of the last change if the clock has stepped back.
    fn decision_time(&self, now: Timestamp) -> Timestamp {
        now.max(self.last_change)
    }

    /// Returns whether the limits of `policy` use the states of the entry, in this order.
    #[inline]
    pub(super) fn has_states_of(&self, policy: &Policy) -> bool {
        self.policy.is_same_handle(policy) || self.policy.has_states_of(policy)
    }

    #[inline]
    pub(super) fn states(&self) -> SubjectStates<'_> {
        let logs = self.extra.as_ref().map_or(&[][..], |extra| &extra.logs);
        SubjectStates { cells: &self.cells, logs }
    }

    fn foreign(&self) -> &[ForeignState] {
        self.extra.as_ref().map_or(&[], |extra| &extra.foreign)
    }

    /// Drops the states of other policies that have expired.
    #[cold]
    fn drop_expired(&mut self, now: Timestamp) {
        if let Some(extra) = &mut self.extra {
            extra.foreign.retain(|state| now < state.expires);
            if extra.foreign.is_empty() && extra.logs.is_empty() {
                self.extra = None;
            }
        }
    }

    /// Arranges the states as `policy` needs them. States of limits that `policy` does not contain
    /// become foreign. Returns the policy that was charged last.
    pub(super) fn adopt(&mut self, policy: &Policy) -> Policy {
        let extra = self.extra.take().unwrap_or_default();
        let (mut states, mut logs) = (extra.foreign, extra.logs);
        for (named, step) in self.policy.limits().iter().zip(self.policy.plan().steps()) {
            let all = SubjectStates { cells: &self.cells, logs: &logs };
            if step.is_unused(all) {
                continue;
            }
            let (id, expires) = (named.state_id(), step.expires(all));
            let content = if step.is_log() {
                StateContent::Log(std::mem::take(&mut logs[step.range().start]))
            } else {
                StateContent::Cells(self.cells[step.range()].into())
            };
            states.push(ForeignState { id, content, expires });
        }
        self.lay_out(policy, states);
        std::mem::replace(&mut self.policy, policy.clone())
    }

    /// Creates the cells and logs of `policy`. Takes the states of its limits out of `states`. The
    /// other states become foreign.
    fn lay_out(&mut self, policy: &Policy, mut states: Vec<ForeignState>) {
        let plan = policy.plan();
        let mut cells: SmallVec<[u64; 4]> = SmallVec::from_elem(0, plan.cells());
        let mut logs: SmallVec<[Log; 1]> = (0..plan.logs()).map(|_| Log::default()).collect();
        for (named, step) in policy.limits().iter().zip(plan.steps()) {
            let own = states.iter().position(|state| state.id == named.state_id());
            match own.map(|index| states.swap_remove(index).content) {
                Some(StateContent::Cells(own)) => cells[step.range()].copy_from_slice(&own),
                Some(StateContent::Log(log)) => logs[step.range().start] = log,
                None => {}
            }
        }
        self.cells = cells;
        let has_extra = !logs.is_empty() || !states.is_empty();
        self.extra = has_extra.then(|| Box::new(ExtraStates { logs, foreign: states }));
    }
}
