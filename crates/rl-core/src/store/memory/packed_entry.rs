//! The state of one subject in 72 bytes, for policies whose states fit.
//!
//! ```text
//! bytes  field                unit
//!    24  6 numbers            32 bits each          \  six lanes; `layout.rs` says which
//!    36  6 times              48 bits each, µs      /  state each of them holds
//!     6  last change          48 bits, µs
//!     4  end of the denial    ticks of 66 ms, rounded up
//!     1  first window to end  its lane
//!     1  layout               a `LayoutId`
//! ```
//!
//! Times count from the shard's [`TimeBase`], a year before the store was created; 0 is no time.
//! Nothing that a decision depends on is rounded. A subject is stored as an
//! [`UnpackedEntry`] if it has one of these: a number above 2^32, a time outside of nearly nine years, an algorithm with more
//! than four cells, or states that another policy left.
//!
//! It buys memory: with its fingerprint and its slot in the index, a subject takes two cache lines.

use super::layout::{LayoutId, LimitLanes, SecondLane, StateLayout, used_fraction};
use super::unpacked_entry::{DecideArgs, LimitState, StackEntry, UnpackedEntry};
use crate::algorithm::fixed_window::{
    self, CompiledWindows, DecidedWindows, FastWindowsDecision, PackedStates, PackedTime,
};
use crate::algorithm::{self, State};
use crate::decision::{Decision, Outcomes};
use crate::time::Timestamp;

/// Microseconds of a tick, the unit in which the end of a denial is stored.
const TICK: u64 = 1 << 16;

/// The time from which a shard counts its relative times.
///
/// A relative time is the number of microseconds since then, plus one. It takes 48 bits from one year
/// before the store was created to almost eight years after that.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeBase(u64);

impl TimeBase {
    /// Creates the time base of a store that is created at `now`.
    pub(super) const fn new(now: Timestamp) -> Self {
        const YEAR_MICROS: u64 = 366 * 24 * 3_600 * 1_000_000;

        Self(now.as_micros().saturating_sub(YEAR_MICROS))
    }

    /// Returns `time` with its relative form. A time before the base has the relative time 0.
    pub(super) const fn moment(self, time: Timestamp) -> PackedTime {
        let absolute = time.as_micros();
        let relative = if absolute < self.0 { 0 } else { self.relative(absolute) };
        PackedTime { absolute, relative }
    }

    /// Returns the relative form of a time in µs. It exceeds 48 bits if the time is out of range, also
    /// if it is too early.
    #[inline]
    const fn relative(self, time: u64) -> u64 {
        time.wrapping_sub(self.0).wrapping_add(1)
    }

    /// Returns the time in µs since the epoch; 0 for 0.
    #[inline]
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
    /// The states after the decision. They are read where they are kept, so that they are copied once.
    pub(super) states: &'a PackedStates,
}

/// The states of a subject's limits; see the [module](self) for the layout.
#[derive(Debug)]
pub(super) struct PackedEntry {
    states: PackedStates,
    // The relative time of the last change, 0 before the first. In two parts, so that it takes six bytes.
    last_change_high: u16,
    last_change_low: u32,
    denied_until_ticks: u32,
    // The lane of the window that ends first, or `fixed_window::NO_LANE`.
    first_to_end: u8,
    layout: LayoutId,
}

// With its fingerprint, a record takes 88 bytes.
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

    /// Returns an entry of the same layout without any used units, whose next decision is made at
    /// `earliest` or later. Returns `None` if that time does not fit.
    pub(super) fn emptied(&self, earliest: Timestamp, base: TimeBase) -> Option<Self> {
        let mut emptied = Self::new(self.layout);
        let earliest = base.relative(earliest.as_micros());
        emptied.set_last_change(earliest);
        fits(earliest).then_some(emptied)
    }

    /// Returns the layout of the states.
    #[inline]
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

    /// Decides under fixed windows if one comparison suffices, which is nearly always.
    ///
    /// Returns `None` and changes nothing if [`decide_windows`](Self::decide_windows) has to decide.
    #[inline(always)]
    pub(super) fn try_decide_fast(
        &mut self,
        windows: &CompiledWindows,
        base: TimeBase,
        args: DecideArgs<'_>,
    ) -> Option<FastDecision<'_>> {
        let DecideArgs { mode, cost, .. } = args;
        let at = self.decision_time(base, args.now);
        // While a denial is known, a window without remaining units decides alone.
        let is_denied = at.relative < self.denied_until()
            && fixed_window::has_full_window(windows, &self.states, at, mode, cost);
        let decided = if is_denied {
            FastWindowsDecision { is_allowed: false, denied_until: 0 }
        } else {
            let states = &mut self.states;
            fixed_window::try_decide_fast(windows, states, self.first_to_end, at, mode, cost)?
        };
        if decided.is_allowed {
            self.set_last_change(at.relative);
        } else if decided.denied_until > self.denied_until() {
            self.note_denial(decided.denied_until);
        }
        Some(FastDecision { at, is_allowed: decided.is_allowed, states: &self.states })
    }

    /// Decides under fixed windows.
    ///
    /// Returns `false` and changes nothing if a number or a time would not fit.
    pub(super) fn decide_windows(
        &mut self,
        windows: &CompiledWindows,
        base: TimeBase,
        args: DecideArgs<'_>,
        decision: &mut Decision,
    ) -> bool {
        let DecideArgs { mode, cost, .. } = args;
        let at = self.decision_time(base, args.now);
        let now = Timestamp::from_micros(at.absolute);
        if self.relative_last_change() == 0
            && let Some(first_to_end) =
                fixed_window::try_open_fast(windows, &mut self.states, at, mode, cost)
        {
            self.first_to_end = first_to_end;
            self.set_last_change(at.relative);
            let (states, decided_at) = (self.states, at.relative);
            *decision.outcomes_mut() =
                Outcomes::Lazy(DecidedWindows { states, decided_at, required: 0 });
            decision.finish(cost.units(), now, true);
            return true;
        }
        let Some(decided) = fixed_window::decide(windows, &mut self.states, at, mode, cost) else {
            return false;
        };
        if decided.charged > 0 {
            self.set_last_change(at.relative);
        }
        self.first_to_end = decided.first_to_end;
        if decided.denied_until > at.relative {
            self.note_denial(decided.denied_until);
        }
        *decision.outcomes_mut() = Outcomes::Lazy(DecidedWindows {
            states: self.states,
            decided_at: at.relative,
            required: decided.required,
        });
        decision.finish(decided.charged, now, decided.is_allowed);
        true
    }

    /// Returns whether a denial is known to hold at `now`. The end of a denial is rounded up to a tick.
    #[inline]
    pub(super) fn is_denied(&self, now: PackedTime) -> bool {
        now.relative.max(self.relative_last_change()) < self.denied_until()
    }

    /// Returns whether all states are expired at `now`.
    #[inline]
    pub(super) fn is_expired(&self, layout: &StateLayout, base: TimeBase, now: PackedTime) -> bool {
        let relative = now.relative.max(self.relative_last_change());
        let at = PackedTime { absolute: base.absolute(relative), relative };
        if let Some(windows) = layout.windows() {
            return fixed_window::are_all_closed(windows, &self.states, at);
        }
        // In most policies the longest period, which expires last, comes last.
        let mut limits = layout.limits().iter().rev();
        limits.all(|lanes| {
            let expires = algorithm::expires(lanes.limit.limit(), &self.state(lanes, base));
            Timestamp::from_micros(at.absolute) >= expires
        })
    }

    /// Returns the used fraction of the fullest limit at the last change, scaled to 0–255.
    pub(super) fn used_fraction(&self, layout: &StateLayout, base: TimeBase) -> u8 {
        // All windows were open at the last change.
        let windows = layout.used_fraction_of_windows(&self.states);
        let last_change = self.last_change(base);
        let enforced = layout.other_limits().filter(|lanes| !lanes.limit.limit().is_shadow());
        let others = enforced.map(|lanes| {
            let limit = lanes.limit.limit();
            let outcome = algorithm::outcome(limit, &self.state(lanes, base), last_change, 0);
            used_fraction(limit, outcome.used())
        });
        others.fold(windows, u8::max)
    }

    /// Converts the entry to its general form.
    pub(super) fn unpack(&self, layout: &StateLayout, base: TimeBase) -> StackEntry {
        let states = layout.limits().iter().map(|lanes| {
            let state = self.state(lanes, base);
            let expires = algorithm::expires(lanes.limit.limit(), &state);
            LimitState { id: lanes.limit.state_id(), state, expires }
        });
        UnpackedEntry::new(states, self.last_change(base), base.timestamp(self.denied_until()))
    }

    /// Converts an entry to this form. Returns `None` if it has other states, or does not fit.
    pub(super) fn pack<A: smallvec::Array<Item = LimitState>>(
        entry: &UnpackedEntry<A>,
        id: LayoutId,
        layout: &StateLayout,
        base: TimeBase,
    ) -> Option<Self> {
        if entry.states().len() != layout.limits().len() {
            return None;
        }
        let mut packed = Self::new(id);
        for (unpacked, lanes) in entry.states().iter().zip(layout.limits()) {
            if unpacked.id != lanes.limit.state_id() {
                return None;
            }
            if unpacked.state.is_empty() {
                continue;
            }
            let [first, second, third, fourth] = unpacked.state.few();
            let states = &mut packed.states;
            states.set(lanes.lane, base.relative(first), second)?;
            let next = lanes.lane + 1;
            match lanes.second {
                SecondLane::Unused => {}
                SecondLane::Time => states.set(next, base.relative(third), 0)?,
                SecondLane::TimeAndNumber => states.set(next, base.relative(third), fourth)?,
                SecondLane::NumberAndTime => states.set(next, base.relative(fourth), third)?,
            }
        }
        let last_change = base.relative(entry.last_change().as_micros());
        if !fits(last_change) {
            return None;
        }
        packed.set_last_change(last_change);
        if entry.denied_until() > Timestamp::EPOCH {
            packed.note_denial(base.relative(entry.denied_until().as_micros()));
        }
        Some(packed)
    }

    /// Returns the state of one limit.
    fn state(&self, lanes: &LimitLanes, base: TimeBase) -> State {
        let time = |lane| base.absolute(self.states.time(lane));
        let number = |lane| self.states.number(lane);
        let first = lanes.lane;
        let next = first + 1;
        let [third, fourth] = match lanes.second {
            SecondLane::Unused => [0, 0],
            SecondLane::Time => [time(next), 0],
            SecondLane::TimeAndNumber => [time(next), number(next)],
            SecondLane::NumberAndTime => [number(next), time(next)],
        };
        State::of_few([time(first), number(first), third, fourth])
    }

    /// Returns the time of a decision at `now`: never before the last change.
    ///
    /// A time out of range has a relative time above 48 bits, which the callees refuse.
    #[inline]
    fn decision_time(&self, base: TimeBase, now: Timestamp) -> PackedTime {
        let relative = base.relative(now.as_micros()).max(self.relative_last_change());
        PackedTime { absolute: base.absolute(relative), relative }
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

    /// Returns the relative time at which the last known denial ends; 0 if none is known.
    #[inline]
    const fn denied_until(&self) -> u64 {
        self.denied_until_ticks as u64 * TICK
    }

    #[cold]
    fn note_denial(&mut self, until: u64) {
        let ticks = u32::try_from(until.div_ceil(TICK)).unwrap_or(u32::MAX);
        self.denied_until_ticks = self.denied_until_ticks.max(ticks);
    }
}
