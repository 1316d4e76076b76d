//! The states of one subject in 80 bytes, for up to six fixed windows.
//!
//! ```text
//! bytes  field                unit
//!     8  policy               the one that was charged last
//!    24  6 numbers            32 bits each: used units          \  one lane for each window
//!    36  6 times              48 bits each, µs: first charge    /
//!     6  last change          48 bits, µs
//!     4  end of the denial    ticks of 66 ms, rounded up
//!     1  first to end         the lane of the window that ends first
//! ```
//!
//! Times count from the store's [`TimeBase`], a year before it was created; 0 means that there is
//! no time. Only the end of the denial is rounded. No decision depends on it: it protects the
//! subject from eviction.
//!
//! Every charge opens all windows that were closed. All windows then stay open until the first one
//! ends. Until that time, one comparison of times and one loop over six numbers decide a request
//! that is granted. The [plan](crate::algorithm::Plan) decides all others.
//!
//! The packed form saves memory: with its fingerprint and its share of the index, a subject takes
//! less than 110 bytes. A subject is stored as a [`PlainEntry`] in any of these cases:
//!
//! * The policy is not of up to six fixed windows that count units and are enforced, or a period is
//!   longer than four years.
//! * A number is 2^32 or more, or a time is outside the range of nearly nine years.
//! * The subject also has states of another policy.

use super::plain_entry::PlainEntry;
use crate::algorithm::fixed_window::WindowArrays;
use crate::algorithm::{PlanStep, SubjectStates, SubjectStatesMut};
use crate::decision::Usages;
use crate::policy::Policy;
use crate::time::Timestamp;

/// The number of lanes.
const LANES: usize = WindowArrays::MAX;

/// Stands for no lane: a window is not open, so it is not known which window ends first.
const NO_LANE: u8 = u8::MAX;

/// The number of microseconds in a tick. The end of a denial is stored in ticks.
const TICK: u64 = 1 << 16;

/// The time from which a store counts its relative times.
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

    /// Returns the relative form of a time in µs. It exceeds 48 bits if the time is too early or
    /// too late.
    #[inline]
    const fn relative(self, time: u64) -> u64 {
        time.wrapping_sub(self.0).wrapping_add(1)
    }

    /// Converts a relative time to µs since the epoch. Returns 0 for 0, which means that there is
    /// no time.
    #[inline]
    const fn absolute(self, relative: u64) -> u64 {
        if relative == 0 { 0 } else { (relative - 1).wrapping_add(self.0) }
    }
}

/// Returns whether a relative time fits into 48 bits.
const fn fits(relative: u64) -> bool {
    relative >> 48 == 0
}

/// The windows of a subject; see the [module](self) for the layout.
#[derive(Clone, Debug)]
pub(super) struct PackedEntry {
    policy: Policy,
    numbers: [u32; LANES],
    times_low: [u32; LANES],
    times_high: [u16; LANES],
    // The relative time of the last change, 0 before the first. As two fields it takes six bytes; a
    // `u64` would take eight.
    last_change_high: u16,
    last_change_low: u32,
    denied_until_ticks: u32,
    first_to_end: u8,
}

// A record in the table consists of this entry and a fingerprint of 16 bytes: 96 bytes.
const _: () = assert!(size_of::<PackedEntry>() == 80);

impl PackedEntry {
    /// Creates an entry without any used units. Returns `None` if the states of `policy` are not
    /// stored in this form.
    pub(super) fn new(policy: &Policy) -> Option<Self> {
        let is_short = |limit: &crate::policy::NamedLimit| limit.limit().period().as_micros() >> 47 == 0;
        policy.plan().windows()?;
        policy.limits().iter().all(is_short).then(|| Self {
            policy: policy.clone(),
            numbers: [0; LANES],
            times_low: [0; LANES],
            times_high: [0; LANES],
            last_change_high: 0,
            last_change_low: 0,
            denied_until_ticks: 0,
            first_to_end: NO_LANE,
        })
    }

    /// Returns the policy that was charged last.
    pub(super) const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns whether the entry has the states of `policy`.
    #[inline]
    pub(super) fn has_states_of(&self, policy: &Policy) -> bool {
        self.policy.is_same_handle(policy)
            || policy.plan().windows().is_some() && self.policy.has_states_of(policy)
    }

    /// Returns the time of the last change.
    #[inline]
    pub(super) const fn last_change(&self, base: TimeBase) -> Timestamp {
        Timestamp::from_micros(base.absolute(self.relative_last_change()))
    }

    /// Returns whether all windows are open at `at`, and have more than `units` left. Nearly all
    /// requests that are granted are judged here.
    #[inline]
    pub(super) fn has_more_than(&self, policy: &Policy, units: u64, at: Timestamp, base: TimeBase) -> bool {
        let Some(windows) = policy.plan().windows() else { return false };
        let (mut is_less, mut large) = (true, units);
        for (number, max) in self.numbers.iter().zip(windows.max) {
            let used = u64::from(*number).wrapping_add(units);
            is_less &= used < max;
            large |= used;
        }
        let at = base.relative(at.as_micros());
        is_less && large >> 32 == 0 && fits(at) && self.is_open(windows, self.first_to_end, at, base)
    }

    /// Charges `units` at `at`, if [`has_more_than`](Self::has_more_than) has returned true for them.
    /// Returns the usages afterwards.
    #[inline]
    pub(super) fn charge_open(&mut self, policy: &Policy, units: u64, at: Timestamp, base: TimeBase) -> Usages {
        for number in &mut self.numbers {
            *number = number.wrapping_add(units as u32);
        }
        self.set_policy(policy);
        let at = base.relative(at.as_micros());
        self.set_last_change(at);
        let mut usages = Usages::UNUSED;
        usages.set_used(self.numbers);
        match policy.plan().windows() {
            Some(windows) if windows.has_aligned => {
                for lane in 0..windows.count {
                    usages.set_reset(lane, self.end(windows, lane, base) - at);
                }
            }
            Some(windows) => {
                // The loop has a fixed length, although the lanes behind the last one are never read.
                for lane in 0..LANES {
                    let end = self.time(lane) + windows.open_for[lane];
                    usages.set_reset(lane, end.wrapping_sub(at));
                }
            }
            None => {}
        }
        usages
    }

    /// Calls `read` with the states.
    pub(super) fn read<T>(
        &self,
        base: TimeBase,
        read: impl FnOnce(SubjectStates<'_>) -> T,
    ) -> T {
        let cells = self.cells(base);
        read(SubjectStates { cells: &cells[..self.policy.plan().cells()], logs: &[] })
    }

    /// Changes the states at the time `at`, under a policy that has the same states.
    ///
    /// Returns the entry in its plain form if a number or a time no longer fits.
    pub(super) fn change<T>(
        &mut self,
        policy: &Policy,
        at: Timestamp,
        base: TimeBase,
        change: impl FnOnce(&mut SubjectStatesMut<'_>) -> T,
    ) -> (T, Option<PlainEntry>) {
        let mut cells = self.cells(base);
        let cells = &mut cells[..policy.plan().cells()];
        let changed = change(&mut SubjectStatesMut { cells, logs: &mut [] });
        self.set_policy(policy);
        let fits = self.set_cells(cells, at, base);
        let denied_until = Timestamp::from_micros(base.absolute(self.denied_until()));
        let plain = (!fits).then(|| PlainEntry::of_cells(policy, cells, at, denied_until));
        (changed, plain)
    }

    /// Converts an entry that has only the cells of its policy to this form. Returns `None` if they
    /// do not fit.
    pub(super) fn of_plain(entry: &PlainEntry, base: TimeBase) -> Option<Self> {
        let mut packed = Self::new(entry.policy())?;
        let fits = packed.set_cells(entry.only_cells()?, entry.last_change(), base);
        packed.note_denial(entry.denied_until(), base);
        fits.then_some(packed)
    }

    /// Converts the entry to its plain form.
    pub(super) fn to_plain(&self, base: TimeBase) -> PlainEntry {
        let cells = self.cells(base);
        let cells = &cells[..self.policy.plan().cells()];
        let denied_until = Timestamp::from_micros(base.absolute(self.denied_until()));
        PlainEntry::of_cells(&self.policy, cells, self.last_change(base), denied_until)
    }

    /// Makes later decisions use no time before `earliest`. Returns false if that time does not fit
    /// into 48 bits.
    pub(super) fn delay_until(&mut self, earliest: Timestamp, base: TimeBase) -> bool {
        let earliest = base.relative(earliest.as_micros());
        if fits(earliest) {
            self.set_last_change(earliest.max(self.relative_last_change()));
        }
        fits(earliest)
    }

    /// Returns whether a recorded denial still applies at `now`. Its end was rounded up to a tick.
    #[inline]
    pub(super) fn is_denied(&self, now: Timestamp, base: TimeBase) -> bool {
        self.decision_time(now, base) < self.denied_until()
    }

    /// Returns whether all windows are closed at `now`.
    #[inline]
    pub(super) fn is_expired(&self, now: Timestamp, base: TimeBase) -> bool {
        let Some(windows) = self.policy.plan().windows() else { return true };
        let now = self.decision_time(now, base);
        // In most policies, the last limit has the longest period, so its window ends last.
        (0..windows.count).rev().all(|lane| !self.is_open(windows, lane as u8, now, base))
    }

    /// Returns the used fraction of the fullest window at the last change, scaled to 0–255.
    #[inline]
    pub(super) fn used_fraction(&self) -> u8 {
        // All windows were open at the last change, so the numbers are current counts.
        let fractions = self.policy.plan().windows().map_or([0; LANES], |one| one.unit_fraction);
        let used = self.numbers.iter().zip(fractions);
        let used = used.map(|(number, one)| u64::from(*number).saturating_mul(one) >> 32);
        used.max().map_or(0, |fullest| u8::try_from(fullest).unwrap_or(u8::MAX))
    }

    /// Records that requests are denied until `until`, unless a later time is recorded.
    #[cold]
    pub(super) fn note_denial(&mut self, until: Timestamp, base: TimeBase) {
        if until > Timestamp::EPOCH {
            let until = base.relative(until.as_micros()).div_ceil(TICK);
            let ticks = u32::try_from(until).unwrap_or(u32::MAX);
            self.denied_until_ticks = self.denied_until_ticks.max(ticks);
        }
    }

    /// Forgets the recorded denial. Returns whether there was one.
    pub(super) const fn forget_denial(&mut self) -> bool {
        let had_denial = self.denied_until_ticks > 0;
        self.denied_until_ticks = 0;
        had_denial
    }

    /// Returns the cells of all lanes.
    fn cells(&self, base: TimeBase) -> [u64; 2 * LANES] {
        let mut cells = [0; 2 * LANES];
        for (lane, cells) in cells.as_chunks_mut().0.iter_mut().enumerate() {
            *cells = [base.absolute(self.time(lane)), self.numbers[lane].into()];
        }
        cells
    }

    /// Replaces the cells, after a change at `at`. Returns `false` and changes nothing if a time or
    /// a number does not fit.
    fn set_cells(&mut self, cells: &[u64], at: Timestamp, base: TimeBase) -> bool {
        let at = base.relative(at.as_micros());
        let mut changed = self.clone();
        let mut misfits = at >> 48 | u64::from(at == 0);
        for lane in 0..LANES {
            let [time, number] = *cells.as_chunks().0.get(lane).unwrap_or(&[0; 2]);
            let time = if time | number == 0 { 0 } else { base.relative(time) };
            misfits |= time >> 48 | number >> 32;
            changed.times_low[lane] = time as u32;
            changed.times_high[lane] = (time >> 32) as u16;
            changed.numbers[lane] = number as u32;
        }
        if misfits == 0 {
            changed.set_last_change(at);
            changed.first_to_end = changed.find_first_to_end(at, base);
            *self = changed;
        }
        misfits == 0
    }

    /// Returns the lane of the window that ends first, or [`NO_LANE`] if a window is not open at
    /// `now`. If several windows end together, it prefers one that is not on the clock: computing
    /// the end of such a window takes no division.
    fn find_first_to_end(&self, now: u64, base: TimeBase) -> u8 {
        let Some(windows) = self.policy.plan().windows() else { return NO_LANE };
        if !(0..windows.count).all(|lane| self.is_open(windows, lane as u8, now, base)) {
            return NO_LANE;
        }
        let end = |lane: &usize| (self.end(windows, *lane, base), windows.open_for[*lane] == 0);
        (0..windows.count).min_by_key(end).map_or(NO_LANE, |lane| lane as u8)
    }

    /// Returns whether `lane` contains a window that is open.
    #[inline]
    fn is_open(&self, windows: &WindowArrays, lane: u8, now: u64, base: TimeBase) -> bool {
        let lane = usize::from(lane);
        if lane >= LANES || self.time(lane) == 0 {
            return false;
        }
        match windows.open_for[lane] {
            0 => now < self.end(windows, lane, base),
            micros => now < self.time(lane) + micros,
        }
    }

    /// Returns the end of the window in `lane`, as a relative time.
    fn end(&self, windows: &WindowArrays, lane: usize, base: TimeBase) -> u64 {
        base.relative(windows.end(lane, base.absolute(self.time(lane))))
    }

    /// Returns the relative time of a decision at `now`: never before the last change. A time out
    /// of range exceeds 48 bits.
    #[inline]
    fn decision_time(&self, now: Timestamp, base: TimeBase) -> u64 {
        let last_change = base.absolute(self.relative_last_change());
        base.relative(now.as_micros().max(last_change))
    }

    #[inline]
    fn set_policy(&mut self, policy: &Policy) {
        if !self.policy.is_same_handle(policy) {
            self.policy = policy.clone();
        }
    }

    #[inline]
    const fn time(&self, lane: usize) -> u64 {
        (self.times_high[lane] as u64) << 32 | self.times_low[lane] as u64
    }

    #[inline]
    const fn relative_last_change(&self) -> u64 {
        (self.last_change_high as u64) << 32 | self.last_change_low as u64
    }

    #[inline]
    const fn set_last_change(&mut self, relative: u64) {
        self.last_change_low = relative as u32;
        self.last_change_high = (relative >> 32) as u16;
    }

    /// Returns the relative time at which the recorded denial ends, or 0 if none is recorded.
    #[inline]
    const fn denied_until(&self) -> u64 {
        self.denied_until_ticks as u64 * TICK
    }
}
