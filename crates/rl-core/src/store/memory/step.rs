//! One request on the locked shards: judges all its parts on one state, then charges all of them or
//! none.
//!
//! ```text
//! find the entries -> one time -> judge each part -> charge all parts, or report why none is charged
//! ```
//!
//! A new subject gets an entry before it is judged, and loses it if it is not charged. A shard may
//! therefore exceed its capacity by the parts of one request. Subjects are evicted only after the
//! request was granted. If all inspected subjects of a full shard are denied, new subjects are
//! counted in an entry that they share.

use arrayvec::ArrayVec;

use super::SHARDS;
use super::entry::{Entry, TooManyStates};
use super::locked_shards::LockedShards;
use super::packed_entry::TimeBase;
use crate::algorithm::Available;
use crate::decision::{Decision, Outcomes};
use crate::model::{Cost, Mode};
use crate::policy::Policy;
use crate::store::Part;
use crate::store::fingerprint::Fingerprint;
use crate::store::part_groups::PartGroup;
use crate::time::Timestamp;

/// A request, while the shards of its subjects are locked.
pub(super) struct Step<'s, 'l, 'a> {
    shards: &'s mut LockedShards<'l>,
    groups: ArrayVec<CountedGroup<'a>, { Part::MAX }>,
    mode: Mode,
    /// The time of the store's clock.
    now: Timestamp,
    /// The time of the decision on all parts: `now`, or the last change of a subject if the clock
    /// has stepped back.
    at: Timestamp,
    has_newcomers: bool,
}

/// The parts of a request that are counted together, and the entry in which they are counted.
struct CountedGroup<'a> {
    subject: Fingerprint,
    policy: &'a Policy,
    cost: Cost,
    is_shadow: bool,
    /// The index of the shard among the locked ones.
    shard: usize,
    /// The position of the entry in the shard.
    position: usize,
    /// Whether the entry was created for this request.
    is_new: bool,
    /// Whether the entry is the one that new subjects share.
    is_shared: bool,
    /// The policy that was charged last, if the entry had other states than this policy needs.
    charged_last: Option<Policy>,
    available: Available,
    /// The units that the group requires to grant the request.
    required: u64,
    grants: bool,
    /// The units that the group can be charged, or any number above its cost.
    granted: u64,
    /// The units that the group is charged.
    units: u64,
}

impl<'s, 'l, 'a> Step<'s, 'l, 'a> {
    /// Begins a request at the time `now` of the store's clock.
    #[inline]
    pub(super) fn new(shards: &'s mut LockedShards<'l>, mode: Mode, now: Timestamp) -> Self {
        let groups = ArrayVec::new();
        Self { shards, groups, mode, now, at: now, has_newcomers: false }
    }

    /// Judges the groups of the request, and computes what each of them is charged.
    ///
    /// # Errors
    ///
    /// Fails and changes nothing if a charge would exceed the number of states that one subject may
    /// have.
    #[inline]
    pub(super) fn judge(
        &mut self,
        groups: &[PartGroup<'a, Fingerprint>],
    ) -> Result<(), TooManyStates> {
        for PartGroup { key, policy, cost, is_shadow, .. } in groups {
            let shard = self.shards.index(key.spread(SHARDS));
            let position = self.shards.at(shard).position(*key);
            self.has_newcomers |= position.is_none();
            self.groups.push(CountedGroup {
                subject: *key,
                policy,
                cost: *cost,
                is_shadow: *is_shadow,
                shard,
                position: position.unwrap_or(0),
                is_new: position.is_none(),
                is_shared: false,
                charged_last: None,
                available: Available::at_least(0),
                required: 0,
                grants: false,
                granted: 0,
                units: 0,
            });
        }
        if self.has_newcomers {
            self.add_newcomers();
        }
        for index in 0..self.groups.len() {
            let (group, entry, base) = self.group(index);
            group.charged_last = entry.arrange(group.policy, base);
            self.at = entry.last_change(base).max(self.at);
        }
        for index in 0..self.groups.len() {
            self.judge_group(index);
        }
        self.compute_charges();
        self.check_states()
    }

    /// Judges the group at `index`: whether it grants the request, and what it can be charged.
    #[inline]
    fn judge_group(&mut self, index: usize) {
        if self.groups[index].is_shared {
            return self.judge_shared(index);
        }
        let (mode, at) = (self.mode, self.at);
        let (group, entry, base) = self.group(index);
        group.available = entry.available(group.policy, group.cost.units(), at, base);
        group.required = mode.required(group.cost);
        group.granted = group.available.units();
        group.grants = group.required <= group.granted;
    }

    /// Judges a group in the entry that new subjects share. All groups of the request that are
    /// counted there are judged by the sum of their costs, even if they use different limits.
    #[cold]
    fn judge_shared(&mut self, index: usize) {
        let (mode, at, shard) = (self.mode, self.at, self.groups[index].shard);
        let same = self.groups.iter().filter(|group| group.is_shared && group.shard == shard);
        let costs = same.map(|group| group.cost.units()).filter(|cost| *cost > 0);
        let (sum, count) =
            costs.fold((0_u64, 0), |(sum, count), cost| (sum.saturating_add(cost), count + 1));
        let (group, entry, base) = self.group(index);
        group.available = entry.available(group.policy, u64::MAX, at, base);
        let available = group.available.units();
        (group.required, group.granted) = match mode {
            Mode::CheckUpTo => (count, available.checked_div(count).unwrap_or(available)),
            _ => (mode.required(Cost::new(sum)), available),
        };
        group.grants = group.required <= available;
    }

    /// Computes the units that each group is charged. They are 0 if a group denies the request.
    #[inline]
    fn compute_charges(&mut self) {
        let enforced = || self.groups.iter().filter(|group| !group.is_shadow);
        let is_granted = enforced().all(|group| group.grants);
        let scarce = || enforced().filter(|group| group.granted < group.cost.units());
        let most = match self.mode {
            Mode::Peek => 0,
            Mode::Charge => u64::MAX,
            Mode::Check | Mode::CheckUpTo if !is_granted => 0,
            Mode::Check => u64::MAX,
            Mode::CheckUpTo => scarce().map(|group| group.granted).min().unwrap_or(u64::MAX),
        };
        for group in &mut self.groups {
            group.units = group.cost.units().min(most);
            if group.units > group.granted && self.mode != Mode::Charge {
                // The group is in shadow, and cannot grant what the others are charged.
                (group.units, group.grants, group.required) = (0, false, group.cost.units());
            }
        }
    }

    /// Cancels the request if a charge would exceed the number of states that one subject may have.
    #[inline]
    fn check_states(&mut self) -> Result<(), TooManyStates> {
        let at = self.at;
        for index in 0..self.groups.len() {
            let (group, entry, _) = self.group(index);
            if group.units > 0 && entry.check_states(at).is_err() {
                self.cancel();
                return Err(TooManyStates);
            }
        }
        Ok(())
    }

    /// Ends the request without a charge.
    #[cold]
    pub(super) fn cancel(&mut self) {
        for index in 0..self.groups.len() {
            self.groups[index].units = 0;
            self.restore(index);
        }
        self.finish();
    }

    /// Charges the group at `index`, or finds out why it is not charged. Returns the decision on the
    /// group.
    #[inline]
    pub(super) fn conclude(&mut self, index: usize) -> Decision {
        let (at, is_done) = (self.at, self.mode == Mode::Charge);
        let CountedGroup { policy, cost, units, grants, .. } = self.groups[index];
        let outcomes = if units > 0 {
            let (group, entry, base) = self.group(index);
            entry.charge(policy, (units, group.available), is_done, at, base)
        } else {
            self.report(index)
        };
        let mut decision = Decision::new(policy, cost, units, at, grants || units > 0, outcomes);
        decision.note_clock(self.now);
        decision
    }

    /// Returns the status of each limit of a group that is not charged. Records the denial if the
    /// group denies the request.
    #[inline(never)]
    fn report(&mut self, index: usize) -> Outcomes {
        let (at, mode) = (self.at, self.mode);
        let (group, entry, base) = self.group(index);
        let (outcomes, denied_until) = entry.status(group.policy, group.required, at, base);
        if !group.grants && mode != Mode::Peek {
            entry.note_denial(denied_until, base);
        }
        self.restore(index);
        outcomes
    }

    /// Arranges the states of a group that is not charged for the policy that was charged last.
    fn restore(&mut self, index: usize) {
        let (group, entry, base) = self.group(index);
        if let Some(policy) = group.charged_last.take() {
            entry.arrange(&policy, base);
        }
    }

    /// Ends the request after each group was concluded: removes new entries without a charge, and
    /// evicts subjects for those with a charge.
    #[inline]
    pub(super) fn finish(&mut self) {
        if self.has_newcomers {
            self.make_room();
        }
    }

    /// Returns the group at `index`, and its entry. If groups share the entry, its states are
    /// arranged for this group.
    #[inline]
    fn group(&mut self, index: usize) -> (&mut CountedGroup<'a>, &mut Entry, TimeBase) {
        let group = &mut self.groups[index];
        let shard = self.shards.at(group.shard);
        let base = shard.base();
        let entry = shard.entry(group.position);
        if group.is_shared {
            entry.arrange(group.policy, base);
        }
        (group, entry, base)
    }

    fn subjects(&self) -> ArrayVec<Fingerprint, { Part::MAX }> {
        self.groups.iter().map(|group| group.subject).collect()
    }

    /// Adds entries for new subjects.
    #[cold]
    fn add_newcomers(&mut self) {
        let (now, subjects) = (self.now, self.subjects());
        for group in self.groups.iter_mut().filter(|group| group.is_new) {
            let shard = self.shards.at(group.shard);
            let fraction = group.policy.used_fraction_of(group.cost.units());
            let is_charged = self.mode != Mode::Peek && group.cost > Cost::ZERO;
            group.is_shared = is_charged && !shard.has_room(now, fraction, &subjects);
            if !group.is_shared {
                self.at = shard.after_eviction(now).max(self.at);
            }
        }
        // The search for room may have dropped expired entries, and so have moved others.
        for group in &mut self.groups {
            let shard = self.shards.at(group.shard);
            let key = group.key();
            let position = shard.position(key);
            group.is_new = position.is_none();
            group.position = position.unwrap_or_else(|| shard.add(key, group.policy));
        }
    }

    /// Removes new entries without a charge, and evicts subjects for those with a charge.
    #[cold]
    fn make_room(&mut self) {
        let subjects = self.subjects();
        for index in 0..self.groups.len() {
            let CountedGroup { shard, is_new, is_shared, .. } = self.groups[index];
            let key = self.groups[index].key();
            let is_same = |other: &CountedGroup<'_>| other.shard == shard && other.key() == key;
            let is_charged =
                self.groups.iter().any(|other| other.units > 0 && is_same(other));
            match (is_new, is_charged) {
                (true, false) => self.shards.at(shard).remove(key),
                (true, true) if !is_shared => self.shards.at(shard).make_room(self.now, &subjects),
                _ => {}
            }
        }
    }
}

impl CountedGroup<'_> {
    /// Returns the key of the entry.
    fn key(&self) -> Fingerprint {
        if self.is_shared { Fingerprint::OVERFLOW } else { self.subject }
    }
}
