//! The state of one subject in 72 bytes, for policies of up to six fixed windows.
//!
//! ```text
//! bytes  field                unit
//!    24  6 numbers            32 bits each          \  six lanes; `layout.rs` defines
//!    36  6 times              48 bits each, µs      /  the window that each of them holds
//!     6  last change          48 bits, µs
//!     4  end of the denial    ticks of 66 ms, rounded up
//!     1  first window to end  its lane
//!     1  layout               a `LayoutId`
//! ```
//!
//! Times count from the shard's [`TimeBase`], a year before the store was created; 0 means that
//! there is no time. Only the end of the denial is rounded. No decision depends on it: it
//! protects the subject from eviction.
//!
//! The packed form saves memory: with its fingerprint and its share of the index, a subject takes
//! less than 100 bytes. A subject is stored as an [`UnpackedEntry`] in any of these cases:
//!
//! * Its policy has more than six limits, or one that is not a fixed window, counts requests or is
//!   in shadow.
//! * A number is 2^32 or more, or a time is outside the range of nearly nine years.
//! * The subject also has states of another policy.

use super::layout::{LayoutId, StateLayout};
use super::run::{self, DecideArgs};
use super::unpacked_entry::UnpackedEntry;
use crate::algorithm::fixed_window::{
    self, CompiledWindows, FastWindowsDecision, LANES, PackedStates, PackedTime,
};
use crate::algorithm::{PlanStep, SubjectStates, SubjectStatesMut};
use crate::decision::{ClockLag, Decision};
use crate::policy::Policy;
use crate::time::Timestamp;

/// The number of microseconds in a tick. The end of a denial is stored in ticks.
const TICK: u64 = 1 << 16;

/// The time from which a shard counts its relative times.
///
/// A relative time is the number of microseconds since the base, plus one. It takes 48 bits from
/// one year before the store was created to almost eight years after that.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeBase(u64);

impl TimeBase {
    /// Creates the time base of a store that is created at `now`.
    pub(super) const fn new(now: Timestamp) -> Self {
        const YEAR_MICROS: u64 = 366 * 24 * 3_600 * 1_000_000;

        Self(now.as_micros().saturating_sub(YEAR_MICROS))
    }

    /// Returns `time` together with its relative form. A time before the base has the relative time
    /// 0.
    pub(super) const fn moment(self, time: Timestamp) -> PackedTime {
        let absolute = time.as_micros();
        let relative = if absolute < self.0 { 0 } else { self.relative(absolute) };
        PackedTime { absolute, relative }
    }

    /// Returns the relative form of a time in µs. It exceeds 48 bits if the time is too early or
    /// too late.
    const fn relative(self, time: u64) -> u64 {
        time.wrapping_sub(self.0).wrapping_add(1)
    }

    /// Converts a relative time to µs since the epoch. Returns 0 for 0, which means that there is
    /// no time.
    const fn absolute(self, relative: u64) -> u64 {
        if relative == 0 { 0 } else { (relative - 1).wrapping_add(self.0) }
    }

    const fn timestamp(self, relative: u64) -> Timestamp {
        Timestamp::from_micros(self.absolute(relative))
    }
}

/// Returns whether a relative time fits into 48 bits.
const fn fits(relative: u64) -> bool {
    relative >> 48 == 0
}

/// A decision of the fast path: the whole cost was granted, or none of it.
#[derive(Debug)]
pub(super) struct FastDecision<'a> {
    pub(super) at: PackedTime,
    pub(super) is_allowed: bool,
    /// The states after the decision. They are borrowed, so that they are copied only once.
    pub(super) states: &'a PackedStates,
}

/// The states of a subject's limits; see the [module](self) for the layout.
#[derive(Clone, Copy, Debug)]
pub(super) struct PackedEntry {
    states: PackedStates,
    // The relative time of the last change, 0 before the first. As two fields it takes six bytes; a
    // `u64` would take eight.
    last_change_high: u16,
    last_change_low: u32,
    denied_until_ticks: u32,
    // The lane of the window that ends first, or `fixed_window::NO_LANE`.
    first_to_end: u8,
    layout: LayoutId,
}

// A record in the table consists of this entry and a fingerprint of 16 bytes: 88 bytes.
const _: () = assert!(size_of::<PackedEntry>() == 72);

impl PackedEntry {
    /// Creates an entry without any used units.
    pub(super) const fn new(layout: LayoutId) -> Self {
        Self {
            states: PackedStates::EMPTY,
            last_change_high: 0,
            last_change_low: 0,
            denied_until_ticks: 0,
            first_to_end: fixed_window::NO_LANE,
            layout,
        }
    }

    /// Returns an entry of the same layout without any used units. Its decisions never use a time
    /// before `earliest`. Returns `None` if that time does not fit into 48 bits.
    pub(super) fn emptied(&self, earliest: Timestamp, base: TimeBase) -> Option<Self> {
        let mut emptied = Self::new(self.layout);
        let earliest = base.relative(earliest.as_micros());
        emptied.set_last_change(earliest);
        fits(earliest).then_some(emptied)
    }

    /// Returns the layout of the states.
    pub(super) const fn layout(&self) -> LayoutId {
        self.layout
    }

    /// Sets another layout of the same states.
    pub(super) const fn set_layout(&mut self, layout: LayoutId) {
        self.layout = layout;
    }

    /// Returns the time of the last change.
    pub(super) const fn last_change(&self, base: TimeBase) -> Timestamp {
        base.timestamp(self.relative_last_change())
    }

    /// Decides under fixed windows if one comparison suffices.
    ///
    /// Returns `None` and changes nothing if [`decide`](Self::decide) has to decide.
    #[inline(always)]
    pub(super) fn try_decide_fast(
        &mut self,
        windows: &CompiledWindows,
        base: TimeBase,
        args: DecideArgs<'_>,
    ) -> Option<FastDecision<'_>> {
        let DecideArgs { mode, cost, .. } = args;
        let at = self.decision_time(base, args.now);
        if at.absolute.wrapping_sub(args.now.as_micros()) > ClockLag::TOLERANCE_MICROS {
            return None;
        }
        let states = &mut self.states;
        let FastWindowsDecision { is_allowed, denied_until, .. } =
            fixed_window::try_decide_fast(windows, states, self.first_to_end, at, mode, cost)?;
        if is_allowed {
            self.set_last_change(at.relative);
        } else if denied_until > self.denied_until() {
            self.note_denial(denied_until);
        }
        Some(FastDecision { at, is_allowed, states: &self.states })
    }

    /// Decides by the plan of a policy whose limits use the states of this entry.
    ///
    /// Returns the entry in its unpacked form if a number or a time no longer fits.
    pub(super) fn decide(
        &mut self,
        base: TimeBase,
        args: DecideArgs<'_>,
        decision: &mut Decision,
    ) -> Option<UnpackedEntry> {
        let (policy, plan) = (args.policy, args.policy.plan());
        let mut cells = self.cells(plan.cells(), base);
        let mut states = SubjectStatesMut { cells: &mut cells[..plan.cells()], logs: &mut [] };
        let at = args.now.max(self.last_change(base));
        let judgement = plan.judge(states.read(), at, args.mode, args.cost);
        let denied_until = run::conclude(&args, &mut states, &judgement, decision);
        let fits = decision.charged() == 0 || self.set_cells(policy, states.cells, at, base);
        if !fits {
            let denied_until = denied_until.max(base.timestamp(self.denied_until()));
            return Some(UnpackedEntry::of_cells(policy, states.cells, at, denied_until));
        }
        self.note_denial_until(denied_until, base);
        None
    }

    /// Changes the states of the entry, as [`UnpackedEntry::amend`] does. The limits of `policy`
    /// use these states.
    ///
    /// Returns the entry in its unpacked form if a number or a time no longer fits.
    pub(super) fn amend(
        &mut self,
        base: TimeBase,
        policy: &Policy,
        now: Timestamp,
        change: impl FnMut(usize, &PlanStep, &mut SubjectStatesMut<'_>, Timestamp),
    ) -> Option<UnpackedEntry> {
        let mut cells = self.cells(policy.plan().cells(), base);
        let mut states =
            SubjectStatesMut { cells: &mut cells[..policy.plan().cells()], logs: &mut [] };
        let at = now.max(self.last_change(base));
        run::amend(policy, &mut states, at, change);
        let denied_until = match self.denied_until() {
            0 => Timestamp::EPOCH,
            _ => policy.plan().denied_until(states.read(), at, 1),
        };
        if !self.set_cells(policy, states.cells, at, base) {
            return Some(UnpackedEntry::of_cells(policy, states.cells, at, denied_until));
        }
        self.denied_until_ticks = 0;
        self.note_denial_until(denied_until, base);
        None
    }

    /// Makes later decisions use no time before `earliest`. Ignores a time that does not fit into
    /// 48 bits.
    pub(super) fn delay_until(&mut self, earliest: Timestamp, base: TimeBase) {
        let earliest = base.relative(earliest.as_micros());
        if fits(earliest) {
            self.set_last_change(earliest.max(self.relative_last_change()));
        }
    }

    /// Returns whether a recorded denial still applies at `now`. Its end was rounded up to a tick.
    pub(super) fn is_denied(&self, now: PackedTime) -> bool {
        now.relative.max(self.relative_last_change()) < self.denied_until()
    }

    /// Returns whether all states are expired at `now`.
    pub(super) fn is_expired(&self, layout: &StateLayout, base: TimeBase, now: PackedTime) -> bool {
        let relative = now.relative.max(self.relative_last_change());
        let at = PackedTime { absolute: base.absolute(relative), relative };
        fixed_window::are_all_closed(layout.windows(), &self.states, at)
    }

    /// Returns the used fraction of the fullest limit at the last change, scaled to 0–255.
    pub(super) fn used_fraction(&self, layout: &StateLayout) -> u8 {
        // All windows were open at the last change, so the states contain only current counts.
        layout.used_fraction(&self.states)
    }

    /// Converts the entry to its unpacked form. `policy` must have the windows that the entry
    /// contains.
    pub(super) fn unpack(&self, policy: &Policy, base: TimeBase) -> UnpackedEntry {
        let cells = self.cells(policy.plan().cells(), base);
        let cells = &cells[..policy.plan().cells()];
        let denied_until = base.timestamp(self.denied_until());
        UnpackedEntry::of_cells(policy, cells, self.last_change(base), denied_until)
    }

    /// Converts an entry that has only the cells of `policy` to this form. Returns `None` if the
    /// cells do not fit.
    pub(super) fn pack(
        entry: &UnpackedEntry,
        policy: &Policy,
        layout: LayoutId,
        base: TimeBase,
    ) -> Option<Self> {
        let mut packed = Self::new(layout);
        let fits = packed.set_cells(policy, entry.only_cells()?, entry.last_change(), base);
        packed.note_denial_until(entry.denied_until(), base);
        fits.then_some(packed)
    }

    /// Returns the first `count` cells; the others are 0.
    fn cells(&self, count: usize, base: TimeBase) -> [u64; 2 * LANES] {
        let mut cells = [0; 2 * LANES];
        for (lane, cells) in cells.as_chunks_mut().0.iter_mut().enumerate().take(count / 2) {
            *cells = [base.absolute(self.states.time(lane)), self.states.number(lane)];
        }
        cells
    }

    /// Replaces the cells, after a change at `at`. Returns `false` and changes nothing if a time or
    /// a number does not fit.
    fn set_cells(&mut self, policy: &Policy, cells: &[u64], at: Timestamp, base: TimeBase) -> bool {
        let at = base.moment(at);
        let before = self.states;
        let mut misfits = at.relative >> 48 | u64::from(at.relative == 0);
        for (lane, [time, number]) in cells.as_chunks().0.iter().copied().enumerate().take(LANES) {
            let time = if time | number == 0 { 0 } else { base.relative(time) };
            misfits |= self.states.set(lane, time, number);
        }
        if misfits != 0 {
            self.states = before;
            return false;
        }
        self.set_last_change(at.relative);
        if let Some(windows) = policy.compiled_windows() {
            self.first_to_end = fixed_window::first_to_end(windows, &self.states, at);
        }
        true
    }

    /// Returns the time of a decision at `now`: never before the last change.
    ///
    /// A time out of range has a relative time above 48 bits, which the callees reject.
    #[inline]
    fn decision_time(&self, base: TimeBase, now: Timestamp) -> PackedTime {
        let relative = base.relative(now.as_micros()).max(self.relative_last_change());
        PackedTime { absolute: base.absolute(relative), relative }
    }

    const fn relative_last_change(&self) -> u64 {
        (self.last_change_high as u64) << 32 | self.last_change_low as u64
    }

    const fn set_last_change(&mut self, relative: u64) {
        self.last_change_low = relative as u32;
        self.last_change_high = (relative >> 32) as u16;
    }

    /// Returns the relative time at which the recorded denial ends, or 0 if none is recorded.
    const fn denied_until(&self) -> u64 {
        self.denied_until_ticks as u64 * TICK
    }

    /// Records that requests are denied until `until`, unless a later time is recorded.
    fn note_denial_until(&mut self, until: Timestamp, base: TimeBase) {
        if until > Timestamp::EPOCH {
            self.note_denial(base.relative(until.as_micros()));
        }
    }

    #[cold]
    fn note_denial(&mut self, until: u64) {
        let ticks = u32::try_from(until.div_ceil(TICK)).unwrap_or(u32::MAX);
        self.denied_until_ticks = self.denied_until_ticks.max(ticks);
    }

    /// Decides for a peek. Returns `None` if [`decide`](Self::decide) has to.
    pub(super) fn try_peek_fast(
        &self,
        windows: &CompiledWindows,
        base: TimeBase,
        args: DecideArgs<'_>,
    ) -> Option<FastDecision<'_>> {
        let at = self.decision_time(base, args.now);
        let is_allowed = fixed_window::try_judge(windows, &self.states, at, args.cost)?;
        Some(FastDecision { at, is_allowed, states: &self.states })
    }

    /// Returns whether a check of `args` would be granted, and the time of this judgement. The
    /// limits of the policy use the states of this entry.
    #[inline(always)]
    pub(super) fn judge(&self, base: TimeBase, args: DecideArgs<'_>) -> (bool, Timestamp) {
        let windows = args.policy.compiled_windows();
        match windows.and_then(|windows| self.try_peek_fast(windows, base, args)) {
            Some(peeked) => (peeked.is_allowed, Timestamp::from_micros(peeked.at.absolute)),
            None => self.judge_by_plan(base, args),
        }
    }

    fn judge_by_plan(&self, base: TimeBase, args: DecideArgs<'_>) -> (bool, Timestamp) {
        let plan = args.policy.plan();
        let cells = self.cells(plan.cells(), base);
        let states = SubjectStates { cells: &cells[..plan.cells()], logs: &[] };
        let at = args.now.max(self.last_change(base));
        (run::would_grant(&args, states, at), at)
    }
}
