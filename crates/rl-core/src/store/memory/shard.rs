//! A part of the store's subjects, under one lock.
//!
//! A shard has at most `capacity` subjects. For each new subject it inspects a few entries, in
//! turn. It drops expired entries, and evicts the entry with the smallest used fraction if the
//! shard is full. A denied subject is never evicted, so that a client cannot end a denial by
//! inventing subjects. If all inspected subjects are denied, new subjects share one entry until
//! there is room again.

use smallvec::SmallVec;

use super::entry::{Entry, ShardContext};
use super::layout::LayoutRegistry;
use super::packed_entry::{FastDecision, PackedEntry, TimeBase};
use super::run::{
    DecideArgs, TooManyStates, check_foreign_states, earliest_after_reset, is_same_moment,
};
use super::table::{MAX_RECORDS, Table};
use crate::algorithm::fixed_window::CompiledWindows;
use crate::algorithm::{PlanStep, SubjectStatesMut};
use crate::decision::{Decision, DecisionList};
use crate::model::Mode;
use crate::policy::Policy;
use crate::store::fingerprint::Fingerprint;
use crate::store::{Refund, Renewal};
use crate::time::Timestamp;

/// The number of entries inspected for each new subject: enough to find expired entries faster than
/// new ones are added.
const INSPECTED: usize = 8;

/// The number of rounds of inspection after which new subjects share an entry.
const ROUNDS: usize = 8;

/// An entry with at most this used fraction, scaled to 0–255, is evicted without an inspection of
/// further entries.
const SMALL_FRACTION: u8 = 127;

/// The largest number of subjects of a shard, without the shared entry.
pub(super) const MAX_SUBJECTS: usize = MAX_RECORDS - 1;

/// Subjects and their entries.
#[derive(Debug)]
pub(super) struct Shard {
    entries: Table<Entry>,
    context: ShardContext,
    capacity: usize,
    /// The position of the next entry to inspect.
    cursor: usize,
    last_eviction: Eviction,
    /// Whether new subjects have ever been counted in the shared entry.
    has_shared: bool,
    /// The number of subjects that were evicted for others.
    evicted: u64,
}

/// The eviction of a subject in the microsecond of its last change.
///
/// The subject may return in the same microsecond. Its next charge must then get a later time, so
/// that a refund of the evicted charge does not find it.
#[derive(Clone, Copy, Debug)]
struct Eviction {
    at: Timestamp,
    /// The earliest time of a decision for a new subject at `at`.
    earliest_decision: Timestamp,
}

/// The room that was found for a new subject.
#[derive(Clone, Copy, Debug)]
enum Vacancy {
    Free,
    /// The entry at this position must be replaced.
    Evict(usize),
}

/// The room of a shard that a request of several parts needs for itself.
#[derive(Clone, Copy, Debug)]
struct Claims<'a> {
    /// The subjects whose entries are neither dropped nor evicted.
    subjects: &'a [Fingerprint],
    /// The number of free entries that the request has already claimed for its new subjects.
    free: usize,
}

impl Claims<'_> {
    const NONE: Self = Self { subjects: &[], free: 0 };
}

/// The judgement about a request of one subject.
#[derive(Clone, Copy, Debug)]
pub(super) struct EntryJudgement {
    /// Whether the subject has an entry.
    pub(super) is_known: bool,
    /// Whether all enforced limits grant the request.
    pub(super) grants: bool,
    /// The time of the decision: that of the request, or the last change of the entry if the clock
    /// has stepped back.
    pub(super) at: Timestamp,
    /// Whether a charge would exceed the number of states that one subject may have.
    pub(super) has_too_many_states: bool,
}

/// The entry that an inspection would evict.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    position: usize,
    used_fraction: u8,
}

impl Shard {
    /// Creates an empty shard for `capacity` subjects.
    pub(super) fn new(capacity: usize, time_base: TimeBase) -> Self {
        Self {
            entries: Table::new(),
            context: ShardContext { layouts: LayoutRegistry::default(), time_base },
            capacity,
            cursor: 0,
            last_eviction: Eviction { at: Timestamp::EPOCH, earliest_decision: Timestamp::EPOCH },
            has_shared: false,
            evicted: 0,
        }
    }

    /// Returns the largest number of subjects, without the shared entry.
    pub(super) const fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns how many subjects were evicted for others.
    pub(super) const fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Returns whether the subject has an entry.
    pub(super) fn contains(&self, subject: Fingerprint) -> bool {
        self.entries.get(subject).is_some()
    }

    /// Returns the number of new subjects that can get an entry without an eviction.
    pub(super) fn vacancies(&self) -> usize {
        self.capacity.saturating_sub(self.entries.len())
    }

    /// Checks that a charge under `policy` at `at` would not exceed the number of states that one
    /// subject may have.
    ///
    /// # Errors
    ///
    /// Returns the error that [`decide`](Self::decide) would return.
    pub(super) fn check_states(
        &self,
        subject: Fingerprint,
        policy: &Policy,
        at: Timestamp,
    ) -> Result<(), TooManyStates> {
        self.entries.get(subject).map_or(Ok(()), |entry| entry.check_states(policy, 0, at))
    }

    /// Refunds units to the states in the entry with the fingerprint `holder`: that of the subject,
    /// or that of the shared entry.
    pub(super) fn refund(&mut self, holder: Fingerprint, refund: &Refund<'_>, now: Timestamp) {
        self.amend(holder, refund.policy, now, |index, step, states, now| {
            step.refund(states, now, refund.charged, refund.units_of(index));
        });
    }

    /// Returns the number of entries, expired ones included.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Decides for a known subject under fixed windows if one comparison of lanes suffices. Nearly
    /// all such requests are decided here.
    ///
    /// Returns `None` and changes nothing if [`decide`](Self::decide) has to decide.
    #[inline(always)]
    pub(super) fn try_decide_fast<'a>(
        &'a mut self,
        subject: Fingerprint,
        args: DecideArgs<'a>,
    ) -> Option<FastDecision<'a>> {
        let find = |entries: &'a mut Table<Entry>| entries.get_mut(subject);
        let (packed, windows, time_base) = self.packed_windows(args.policy, find)?;
        packed.try_decide_fast(windows, time_base, args)
    }

    /// Returns the packed entry of a known subject, if its states are the fixed windows of
    /// `policy`. `find` looks up the entry.
    #[inline(always)]
    fn packed_windows<'a>(
        &'a mut self,
        policy: &'a Policy,
        find: impl FnOnce(&'a mut Table<Entry>) -> Option<&'a mut Entry>,
    ) -> Option<(&'a mut PackedEntry, &'a CompiledWindows, TimeBase)> {
        let windows = policy.compiled_windows()?;
        let Entry::Packed(packed) = find(&mut self.entries)? else { return None };
        let layouts = &self.context.layouts;
        let layout = layouts.get(packed.layout());
        // Eviction judges an entry by the limits of its layout. So a charge under other limits must
        // first give the entry another layout.
        let is_its_layout = layout.is_same_handle(policy)
            || layout.has_states_of(windows)
                && (layout.has_maxima_of(windows) || layouts.is_crowded());
        is_its_layout.then_some((packed, windows, self.context.time_base))
    }

    /// Decides for all limits of the policy, and charges all of them or none.
    ///
    /// # Errors
    ///
    /// Fails and changes nothing if a charge would exceed the number of states that one subject may
    /// have.
    #[inline(always)]
    pub(super) fn decide(
        &mut self,
        subject: Fingerprint,
        args: DecideArgs<'_>,
        decision: &mut Decision,
    ) -> Result<(), TooManyStates> {
        match self.entries.get_mut(subject) {
            Some(entry) => entry.decide(&mut self.context, args, decision),
            None => self.decide_newcomer(subject, args, decision),
        }
    }

    /// Resets one limit of a subject. `index` is its index in the policy.
    pub(super) fn reset_limit(
        &mut self,
        subject: Fingerprint,
        policy: &Policy,
        now: Timestamp,
        index: usize,
    ) {
        if let Some(entry) = self.entries.get_mut(subject) {
            entry.reset_limit(&self.context, policy, now, index);
        }
    }

    /// Resets all limits of a subject.
    pub(super) fn reset_all(&mut self, subject: Fingerprint, now: Timestamp) {
        let Some(entry) = self.entries.get_mut(subject) else { return };
        let last_change = entry.last_change(&self.context);
        if is_same_moment(last_change, now) {
            entry.reset_all(&self.context, earliest_after_reset(last_change, now));
        } else {
            self.entries.remove(subject);
        }
    }

    /// Changes the states of a subject's limits. Calls `change` with the index of each limit that
    /// is in use.
    pub(super) fn amend(
        &mut self,
        subject: Fingerprint,
        policy: &Policy,
        now: Timestamp,
        change: impl FnMut(usize, &PlanStep, &mut SubjectStatesMut<'_>, Timestamp),
    ) {
        if let Some(entry) = self.entries.get_mut(subject) {
            entry.amend(&self.context, policy, now, change);
        }
    }

    /// Renews the lease of permits, if every concurrency limit still holds some of them.
    ///
    /// Returns the time at which the renewed lease begins, or `None` if nothing was renewed.
    pub(super) fn renew(
        &mut self,
        subject: Fingerprint,
        renewal: &Renewal<'_>,
        now: Timestamp,
    ) -> Option<Timestamp> {
        self.entries.get_mut(subject)?.renew(renewal, now)
    }

    /// Returns the fingerprint of the entry with the permits that `refund` would release: that of
    /// the subject, or that of the shared entry.
    ///
    /// A subject that was counted in the shared entry may have got an entry of its own since.
    pub(super) fn permit_holder(
        &self,
        subject: Fingerprint,
        refund: &Refund<'_>,
        now: Timestamp,
    ) -> Fingerprint {
        if !self.has_shared {
            return subject;
        }
        let holds = |entry: &Entry| entry.holds(refund, now);
        let is_own = self.entries.get(subject).is_some_and(holds);
        let is_shared = !is_own && self.entries.get(Fingerprint::OVERFLOW).is_some_and(holds);
        if is_shared { Fingerprint::OVERFLOW } else { subject }
    }

    /// Decides for a subject without an entry. Creates an entry if units are charged. If the shard
    /// has no room for it, the entry that new subjects share decides.
    #[cold]
    fn decide_newcomer(
        &mut self,
        subject: Fingerprint,
        args: DecideArgs<'_>,
        decision: &mut Decision,
    ) -> Result<(), TooManyStates> {
        let args = self.after_eviction(args);
        let Some(entry) = Entry::of_newcomer(&mut self.context, args, decision)? else {
            return Ok(());
        };
        match self.find_room(args.now, entry.used_fraction(&self.context), Claims::NONE) {
            Some(Vacancy::Free) => self.entries.add(subject, entry),
            Some(Vacancy::Evict(position)) => {
                self.note_eviction(position, args.now);
                self.entries.replace_at(position, subject, entry);
            }
            None => return self.decide_with_room(Fingerprint::OVERFLOW, args, decision),
        }
        Ok(())
    }

    /// Returns `args` for a decision on a new subject, with a later time if the subject may have
    /// been evicted in the same microsecond.
    fn after_eviction<'a>(&self, mut args: DecideArgs<'a>) -> DecideArgs<'a> {
        if args.now == self.last_eviction.at {
            args.now = args.now.max(self.last_eviction.earliest_decision);
        }
        args
    }

    /// Finds room for a new subject with the used fraction `newcomer`.
    ///
    /// Inspects the next few entries, and drops expired ones. In a full shard, chooses the
    /// inspected entry with the smallest used fraction. Stops early at an entry whose fraction is
    /// small and no larger than that of the new subject. Does not use the room in `claims`. Returns
    /// `None` if no inspected entry may be evicted.
    fn find_room(&mut self, now: Timestamp, newcomer: u8, claims: Claims<'_>) -> Option<Vacancy> {
        let capacity = self.capacity.saturating_sub(claims.free);
        let now = self.context.time_base.moment(now);
        let small = newcomer.min(SMALL_FRACTION);
        for _ in 0..ROUNDS {
            let mut best: Option<Candidate> = None;
            let is_full = self.entries.len() >= capacity;
            for _ in 0..INSPECTED.min(self.entries.len()) {
                if self.cursor >= self.entries.len() {
                    self.cursor = 0;
                }
                let position = self.cursor;
                let Some((subject, entry)) = self.entries.at(position) else { break };
                if claims.subjects.contains(&subject) {
                    self.cursor += 1;
                    continue;
                }
                if entry.is_expired(&self.context, now) {
                    // The last entry moves to this position, and is inspected next. The best
                    // candidate so far may be that entry, so the candidate is dropped.
                    self.entries.remove_at(position);
                    best = None;
                    continue;
                }
                self.cursor += 1;
                if is_full && subject != Fingerprint::OVERFLOW && !entry.is_denied(now) {
                    let used_fraction = entry.used_fraction(&self.context);
                    if best.is_none_or(|best| used_fraction < best.used_fraction) {
                        best = Some(Candidate { position, used_fraction });
                    }
                    if used_fraction <= small {
                        break;
                    }
                }
            }
            if self.entries.len() < capacity {
                return Some(Vacancy::Free);
            }
            if let Some(best) = best {
                return Some(Vacancy::Evict(best.position));
            }
        }
        None
    }

    /// Counts the eviction of the entry at `position`. Remembers it as the last one if the subject
    /// was last changed at `now`, or less than a millisecond later because the clock stepped back.
    fn note_eviction(&mut self, position: usize, now: Timestamp) {
        self.evicted += 1;
        let Some((_, evicted)) = self.entries.at(position) else { return };
        let last_change = evicted.last_change(&self.context);
        if is_same_moment(last_change, now) {
            let earliest_decision = earliest_after_reset(last_change, now);
            self.last_eviction = Eviction { at: now, earliest_decision };
        }
    }

    /// Finds room for `count` new subjects of a request at `now`. Returns for how many of them
    /// there is room, and the subjects to [evict](Self::evict) for them.
    ///
    /// Drops expired entries, and evicts nothing. The entries of the subjects of `request` stay.
    pub(super) fn plan_room(
        &mut self,
        count: usize,
        request: &[Fingerprint],
        now: Timestamp,
    ) -> (usize, SmallVec<[Fingerprint; 4]>) {
        let mut subjects: SmallVec<[Fingerprint; 16]> = SmallVec::from_slice(request);
        let mut free = 0;
        for _ in 0..count {
            match self.find_room(now, 0, Claims { subjects: &subjects, free }) {
                Some(Vacancy::Free) => free += 1,
                Some(Vacancy::Evict(position)) => {
                    subjects.extend(self.entries.at(position).map(|(subject, _)| subject));
                }
                None => break,
            }
        }
        let evicted = &subjects[request.len()..];
        (free + evicted.len(), SmallVec::from_slice(evicted))
    }

    /// Evicts a subject to make room for a new one at `now`.
    pub(super) fn evict(&mut self, subject: Fingerprint, now: Timestamp) {
        if let Some(position) = self.entries.position(subject) {
            self.note_eviction(position, now);
            self.entries.remove_at(position);
        }
    }

    /// Judges a check of `args`, and changes nothing. Before it, the request adds `further` states
    /// of other policies to the entry.
    #[inline(always)]
    pub(super) fn judge(
        &mut self,
        subject: Fingerprint,
        args: DecideArgs<'_>,
        further: usize,
    ) -> EntryJudgement {
        let known = self.entries.get(subject);
        let is_known = known.is_some();
        let checked = match known {
            Some(entry) => entry.check_states(args.policy, further, args.now),
            None => check_foreign_states(further),
        };
        let has_too_many_states = checked.is_err();
        let judged = known.and_then(|entry| entry.try_judge(&self.context, args));
        let (grants, at) = judged.unwrap_or_else(|| {
            let peeked = self.peek(subject, DecideArgs { mode: Mode::Peek, ..args });
            (peeked.is_allowed(), peeked.at())
        });
        EntryJudgement { is_known, grants, at, has_too_many_states }
    }

    /// Returns the decision on a peek. For fixed windows of a known subject, the status of each
    /// limit is computed when it is read.
    pub(super) fn peek(&mut self, subject: Fingerprint, args: DecideArgs<'_>) -> Decision {
        let DecideArgs { policy, cost, .. } = args;
        let find = |entries| Table::get_mut(entries, subject);
        if let Some((packed, windows, time_base)) = self.packed_windows(policy, find)
            && let Some(peeked) = packed.try_peek_fast(windows, time_base, args)
        {
            let FastDecision { at, is_allowed, states } = peeked;
            return Decision::from_windows(policy, cost, at, is_allowed, states);
        }
        let mut decision = Decision::pending(policy, cost);
        let peeked = self.decide(subject, args, &mut decision);
        peeked.expect("only a charge needs further states");
        decision
    }

    /// Decides and charges, and adds the decision to `decisions`: a decision that is moved
    /// afterwards costs a quarter of a request of three parts. A new subject gets an entry without
    /// an eviction, because there is room for it.
    ///
    /// # Errors
    ///
    /// Fails like [`decide`](Self::decide).
    #[inline(always)]
    pub(super) fn charge<'d>(
        &mut self,
        subject: Fingerprint,
        args: DecideArgs<'_>,
        decisions: &'d mut DecisionList,
    ) -> Result<&'d mut Decision, TooManyStates> {
        let DecideArgs { policy, cost, .. } = args;
        if let Some(FastDecision { at, is_allowed, states }) = self.try_decide_fast(subject, args) {
            let decision = Decision::from_windows(policy, cost, at, is_allowed, states);
            return Ok(decisions.push(decision));
        }
        let decision = decisions.push(Decision::pending(policy, cost));
        self.decide_with_room(subject, args, decision)?;
        Ok(decision)
    }

    /// Decides like [`decide`](Self::decide), but without an eviction.
    ///
    /// # Errors
    ///
    /// Fails like [`decide`](Self::decide).
    fn decide_with_room(
        &mut self,
        subject: Fingerprint,
        args: DecideArgs<'_>,
        decision: &mut Decision,
    ) -> Result<(), TooManyStates> {
        self.has_shared |= subject == Fingerprint::OVERFLOW;
        if let Some(entry) = self.entries.get_mut(subject) {
            return entry.decide(&mut self.context, args, decision);
        }
        let args = self.after_eviction(args);
        if let Some(entry) = Entry::of_newcomer(&mut self.context, args, decision)? {
            self.entries.add(subject, entry);
        }
        Ok(())
    }
}
