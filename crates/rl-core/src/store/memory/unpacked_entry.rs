//! The states of one subject on the heap, for any number of limits and every algorithm.
//!
//! ```text
//! cells -> [ cells of the policy's limits, as its plan lays them out ]
//! extra -> [ logs of the policy's limits | states that other policies left ]
//! ```

use smallvec::SmallVec;

use super::run::{self, DecideArgs, TooManyStates, check_foreign_states};
use crate::algorithm::{Log, PlanStep, SubjectStates, SubjectStatesMut};
use crate::decision::Decision;
use crate::model::StateId;
use crate::policy::Policy;
use crate::store::{Refund, Renewal};
use crate::time::Timestamp;

/// The states of one subject.
#[derive(Clone, Debug)]
pub(super) struct UnpackedEntry {
    /// The policy that was charged last.
    policy: Policy,
    cells: Box<[u64]>,
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

impl UnpackedEntry {
    /// Creates an entry without any used units.
    pub(super) fn new(policy: &Policy) -> Self {
        let mut entry = Self {
            policy: policy.clone(),
            cells: Box::default(),
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
        let (policy, cells) = (policy.clone(), cells.into());
        Self { policy, cells, extra: None, last_change, denied_until }
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

    /// Decides for all limits of the policy, and charges all of them or none.
    ///
    /// # Errors
    ///
    /// Fails and changes nothing if a charge would exceed the number of states that one subject may
    /// have.
    pub(super) fn decide(
        &mut self,
        args: DecideArgs<'_>,
        decision: &mut Decision,
    ) -> Result<(), TooManyStates> {
        if self.has_states_of(args.policy) {
            return self.run_plan(args, decision);
        }
        let charged_last = self.policy.clone();
        self.adopt(args.policy);
        let decided = self.run_plan(args, decision);
        if decided.is_err() || decision.charged() == 0 {
            // Restore the previous policy, because eviction judges an entry by the policy that was
            // charged last.
            self.adopt(&charged_last);
        }
        decided
    }

    fn run_plan(
        &mut self,
        args: DecideArgs<'_>,
        decision: &mut Decision,
    ) -> Result<(), TooManyStates> {
        let at = self.decision_time(args.now);
        let judgement = args.policy.plan().judge(self.states(), at, args.mode, args.cost);
        if judgement.charged > 0 {
            if !self.foreign().is_empty() {
                self.make_room(at)?;
            }
            if !self.policy.is_same_handle(args.policy) {
                self.policy = args.policy.clone();
            }
            self.last_change = at;
        }
        let denied_until = run::conclude(&args, &mut self.states_mut(), &judgement, decision);
        self.denied_until = self.denied_until.max(denied_until);
        Ok(())
    }

    /// Checks that a charge would not leave more states of other policies than an entry may hold,
    /// if `further` such states are added before it.
    pub(super) fn check_states(
        &self,
        policy: &Policy,
        further: usize,
        at: Timestamp,
    ) -> Result<(), TooManyStates> {
        if further == 0 && self.foreign().is_empty() && self.has_states_of(policy) {
            return Ok(());
        }
        let is_foreign = |id| !policy.limits().iter().any(|named| named.state_id() == id);
        let counts = |id, expires| at < expires && is_foreign(id);
        let own = self.policy.limits().iter().zip(self.policy.plan().steps());
        // `expires` returns the epoch for an unused state, so such a state is left out.
        let own = own.filter(|(named, step)| counts(named.state_id(), step.expires(self.states())));
        let left = self.foreign().iter().filter(|state| counts(state.id, state.expires));
        check_foreign_states(own.count() + left.count() + further)
    }

    /// Changes the states of the policy's limits. Calls `change` with the index of each limit that
    /// is in use, and skips unused limits.
    pub(super) fn amend(
        &mut self,
        policy: &Policy,
        now: Timestamp,
        change: impl FnMut(usize, &PlanStep, &mut SubjectStatesMut<'_>, Timestamp),
    ) {
        let at = self.decision_time(now);
        self.last_change = at;
        if !self.has_states_of(policy) {
            self.adopt(policy);
        }
        if !self.foreign().is_empty() {
            // An error is ignored: a change must succeed even if too many states still count.
            let _ = self.make_room(at);
        }
        run::amend(policy, &mut self.states_mut(), at, change);
        // The change may have ended the recorded denial. If there are states of other policies,
        // they may deny too, so the denial is kept.
        if at < self.denied_until && self.foreign().is_empty() {
            self.denied_until = policy.plan().denied_until(self.states(), at, 1);
        }
    }

    /// Resets all limits. Later decisions never use a time before `earliest`.
    pub(super) fn reset_all(&mut self, earliest: Timestamp) {
        *self = Self { last_change: earliest, ..Self::new(&self.policy) };
    }

    /// Makes later decisions use no time before `earliest`.
    pub(super) fn delay_until(&mut self, earliest: Timestamp) {
        self.last_change = self.last_change.max(earliest);
    }

    /// Renews the lease of permits, if every concurrency limit still holds some of them.
    ///
    /// Returns the time at which the renewed lease begins, or `None` if nothing was renewed.
    pub(super) fn renew(&mut self, renewal: &Renewal<'_>, now: Timestamp) -> Option<Timestamp> {
        let (policy, refund) = (renewal.policy, renewal.as_refund());
        let mut limits = 0..policy.limits().len();
        if !limits.all(|index| refund.units_of(index) == 0 || self.held(&refund, index, now) > 0) {
            return None;
        }
        let renewed_at = self.decision_time(now);
        self.amend(policy, now, |index, step, states, now| {
            step.renew(states, now, renewal.charged, refund.units_of(index));
        });
        Some(renewed_at)
    }

    /// Returns how many of the units in `refund` the limit at `index` still counts as permits.
    fn held(&self, refund: &Refund<'_>, index: usize, now: Timestamp) -> u64 {
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
    fn has_states_of(&self, policy: &Policy) -> bool {
        self.policy.is_same_handle(policy) || self.policy.has_states_of(policy)
    }

    fn states(&self) -> SubjectStates<'_> {
        let logs = self.extra.as_ref().map_or(&[][..], |extra| &extra.logs);
        SubjectStates { cells: &self.cells, logs }
    }

    fn states_mut(&mut self) -> SubjectStatesMut<'_> {
        let logs = self.extra.as_mut().map_or(&mut [][..], |extra| &mut extra.logs);
        SubjectStatesMut { cells: &mut self.cells, logs }
    }

    fn foreign(&self) -> &[ForeignState] {
        self.extra.as_ref().map_or(&[], |extra| &extra.foreign)
    }

    /// Drops the states of other policies that have expired.
    ///
    /// # Errors
    ///
    /// Fails and changes nothing if too many of them still count.
    fn make_room(&mut self, now: Timestamp) -> Result<(), TooManyStates> {
        let counting = self.foreign().iter().filter(|state| now < state.expires).count();
        check_foreign_states(counting)?;
        if let Some(extra) = &mut self.extra {
            extra.foreign.retain(|state| now < state.expires);
            if extra.foreign.is_empty() && extra.logs.is_empty() {
                self.extra = None;
            }
        }
        Ok(())
    }

    /// Arranges the states as `policy` needs them. States of limits that `policy` does not contain
    /// become foreign.
    fn adopt(&mut self, policy: &Policy) {
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
        self.policy = policy.clone();
        self.lay_out(policy, states);
    }

    /// Creates the cells and logs of `policy`. Takes the states of its limits out of `states`. The
    /// other states become foreign.
    fn lay_out(&mut self, policy: &Policy, mut states: Vec<ForeignState>) {
        let plan = policy.plan();
        let mut cells = vec![0; plan.cells()];
        let mut logs: SmallVec<[Log; 1]> = (0..plan.logs()).map(|_| Log::default()).collect();
        for (named, step) in policy.limits().iter().zip(plan.steps()) {
            let own = states.iter().position(|state| state.id == named.state_id());
            match own.map(|index| states.swap_remove(index).content) {
                Some(StateContent::Cells(own)) => cells[step.range()].copy_from_slice(&own),
                Some(StateContent::Log(log)) => logs[step.range().start] = log,
                None => {}
            }
        }
        self.cells = cells.into();
        let has_extra = !logs.is_empty() || !states.is_empty();
        self.extra = has_extra.then(|| Box::new(ExtraStates { logs, foreign: states }));
    }

    /// Returns whether a check of `args` would be granted, and the time of this judgement. Returns
    /// `None` if the limits of the policy do not use the states of the entry.
    pub(super) fn try_judge(&self, args: DecideArgs<'_>) -> Option<(bool, Timestamp)> {
        let at = self.decision_time(args.now);
        self.has_states_of(args.policy).then(|| (run::would_grant(&args, self.states(), at), at))
    }

    /// Returns whether the entry contains permits that `refund` would release.
    pub(super) fn holds(&self, refund: &Refund<'_>, now: Timestamp) -> bool {
        (0..refund.policy.limits().len()).any(|index| self.held(refund, index, now) > 0)
    }
}
