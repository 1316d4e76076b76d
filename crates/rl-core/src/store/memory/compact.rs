//! What is kept of most subjects, in 72 bytes.

use std::num::NonZeroU8;

use super::entry::{Entry, Slot, Unpacked};
use super::shape::{Layout, Second, Shape};
use super::shard::Asked;
use crate::algorithm::{self, State, windows};
use crate::decision::{Decision, Windows};
use crate::model::{Moment, Packed, WindowPlan};
use crate::time::Timestamp;

/// Microseconds of a tick, in which it is kept until when a subject is denied.
const TICK: u64 = 1 << 16;

/// The times before and after the origin that are kept in 48 bits: a year, and almost eight.
const BEFORE: u64 = 366 * 24 * 3_600 * 1_000_000;

/// Where a shard's times begin.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeBase(u64);

impl TimeBase {
    pub(super) const fn around(now: Timestamp) -> Self {
        Self(now.as_micros().saturating_sub(BEFORE))
    }

    /// A time as it is kept: 48 bits above 0, or more if it is too early or too late.
    #[inline]
    const fn keep(self, time: u64) -> u64 {
        // What is before the origin wraps around to far above.
        time.wrapping_sub(self.0).wrapping_add(1)
    }

    /// A time to compare with those that are kept: what is too early is before all of them.
    pub(super) const fn moment(self, time: Timestamp) -> Moment {
        let now = time.as_micros();
        Moment { now, kept: if now < self.0 { 0 } else { self.keep(now) } }
    }

    #[inline]
    const fn restore(self, kept: u64) -> u64 {
        if kept == 0 { 0 } else { (kept - 1).wrapping_add(self.0) }
    }
}

/// A decision under limits that are windows: of all that was asked, or of nothing.
#[derive(Debug)]
pub(super) struct Plain {
    pub(super) at: Timestamp,
    pub(super) is_allowed: bool,
    pub(super) windows: Windows,
}

/// The states of a subject's limits, in the order of a [`Shape`].
///
/// Of each place a number of 32 bits and a time of 48, in microseconds from the [`TimeBase`]: what does not
/// fit is kept as an [`Entry`]. Nothing is rounded but what eviction goes by.
#[derive(Debug)]
pub(super) struct Compact {
    states: Packed,
    // The time of the last change.
    last_upper: u16,
    last_lower: u32,
    // Until when the subject is denied, in ticks from the origin, rounded up.
    denied: u32,
    // Of windows, which one ends first: see `windows::Decided`.
    soonest: u8,
    // The number of its shape, and one.
    shape: NonZeroU8,
}

// With its fingerprint a record takes 88 bytes.
const _: () = assert!(size_of::<Compact>() == 72);

impl Compact {
    /// Of a subject that has used nothing.
    pub(super) const fn new(shape: NonZeroU8) -> Self {
        let (states, soonest) = (Packed::NONE, windows::UNKNOWN);
        Self { states, last_upper: 0, last_lower: 0, denied: 0, soonest, shape }
    }

    /// Returns an entry of the same shape that has used nothing, and decides at `next` at the earliest;
    /// `None` if that time does not fit.
    pub(super) fn emptied(&self, next: Timestamp, origin: TimeBase) -> Option<Self> {
        let mut emptied = Self::new(self.shape);
        let kept = origin.keep(next.as_micros());
        emptied.set_last(kept);
        (kept >> 48 == 0).then_some(emptied)
    }

    /// Returns the time of the last change.
    pub(super) const fn last_change(&self, origin: TimeBase) -> Timestamp {
        Timestamp::from_micros(origin.restore(self.last()))
    }

    pub(super) const fn shape(&self) -> usize {
        self.shape.get() as usize - 1
    }

    pub(super) const fn number(&self) -> NonZeroU8 {
        self.shape
    }

    /// Makes it one of another shape whose states are the same.
    pub(super) const fn set_number(&mut self, shape: NonZeroU8) {
        self.shape = shape;
    }

    /// As it is kept; 0 if there was no change.
    #[inline]
    const fn last(&self) -> u64 {
        (self.last_upper as u64) << 32 | self.last_lower as u64
    }

    #[inline]
    const fn set_last(&mut self, kept: u64) {
        (self.last_lower, self.last_upper) = (kept as u32, (kept >> 32) as u16);
    }

    /// Decides under limits that are windows, if it is plain what comes out: what is asked nearly always.
    #[inline(always)]
    pub(super) fn decide_plainly(
        &mut self,
        plan: &WindowPlan,
        origin: TimeBase,
        Asked { clock, mode, cost, .. }: Asked<'_>,
    ) -> Option<Plain> {
        let kept = self.kept(origin, clock);
        let at = Moment { now: origin.restore(kept), kept };
        // A denial that is known adds nothing to what is kept.
        let is_known = kept < u64::from(self.denied) * TICK
            && windows::is_used_up(plan, &self.states, at, mode, cost);
        let plain = match is_known {
            true => windows::Plain::denied(&self.states, 0),
            false => {
                let states = &mut self.states;
                windows::decide_plainly(plan, states, self.soonest, at, mode, cost)?
            }
        };
        if plain.is_allowed {
            self.set_last(kept);
        } else if plain.denied_until > u64::from(self.denied) * TICK {
            self.note_denial(plain.denied_until);
        }
        let needed = if plain.is_allowed { 0 } else { cost.units() };
        let windows = Windows { states: self.states.with(plain.left), kept, needed };
        let at = Timestamp::from_micros(at.now);
        Some(Plain { at, is_allowed: plain.is_allowed, windows })
    }

    /// Decides under limits that are windows, if what is to be kept fits: whether it does.
    pub(super) fn decide_windows(
        &mut self,
        plan: &WindowPlan,
        origin: TimeBase,
        Asked { clock, mode, cost, .. }: Asked<'_>,
        decision: &mut Decision,
    ) -> bool {
        let kept = self.kept(origin, clock);
        let at = Moment { now: origin.restore(kept), kept };
        if self.last() == 0
            && let Some(soonest) = windows::begin_plainly(plan, &mut self.states, at, mode, cost)
        {
            self.soonest = soonest;
            self.set_last(kept);
            decision.leave(Windows { states: self.states, kept, needed: 0 });
            decision.concluded(cost.units(), Timestamp::from_micros(at.now), true);
            return true;
        }
        let Some(decided) = windows::decide(plan, &mut self.states, at, mode, cost) else {
            return false;
        };
        if decided.taken > 0 {
            self.set_last(at.kept);
        }
        self.soonest = decided.soonest;
        if decided.denied_until > at.kept {
            self.note_denial(decided.denied_until);
        }
        decision.leave(Windows { states: self.states, kept, needed: decided.needed });
        let now = Timestamp::from_micros(at.now);
        decision.concluded(decided.taken, now, decided.is_allowed);
        true
    }

    /// The time to decide at, as it is kept: the clock's, but never before the last change. What is too
    /// early to be kept comes out as too late.
    #[inline]
    fn kept(&self, origin: TimeBase, clock: Timestamp) -> u64 {
        origin.keep(clock.as_micros()).max(self.last())
    }

    #[cold]
    fn note_denial(&mut self, until: u64) {
        let ticks = until.div_ceil(TICK);
        self.denied = self.denied.max(u32::try_from(ticks).unwrap_or(u32::MAX));
    }

    /// Whether the subject is in a denied state, as far as is known; up to a tick longer.
    #[inline]
    pub(super) fn is_denied(&self, clock: Moment) -> bool {
        clock.kept.max(self.last()) < u64::from(self.denied) * TICK
    }

    /// Whether nothing of it counts any more.
    #[inline]
    pub(super) fn is_expired(&self, shape: &Shape, clock: Moment, origin: TimeBase) -> bool {
        let kept = clock.kept.max(self.last());
        let now = origin.restore(kept);
        if let Some(plan) = shape.windows() {
            return windows::are_over(plan, &self.states, Moment { now, kept });
        }
        // Those of long periods come last in most policies, and expire last.
        let mut layouts = shape.layouts().iter().rev();
        layouts.all(|layout| {
            let expires = algorithm::expires(layout.limit.limit(), &self.state(layout, origin));
            Timestamp::from_micros(now) >= expires
        })
    }

    /// How much of its limits was used up when it was last charged, in 255ths: of the one of which it was
    /// the most.
    pub(super) fn consumed(&self, shape: &Shape, origin: TimeBase) -> u8 {
        // All windows were open then.
        let windows = shape.consumed(&self.states);
        if !shape.has_others() {
            return windows;
        }
        let last = Timestamp::from_micros(origin.restore(self.last()));
        let enforced = shape.others().filter(|layout| !layout.limit.limit().is_shadow());
        let others = enforced.map(|layout| {
            let (limit, state) = (layout.limit.limit(), self.state(layout, origin));
            layout.limit.consumed(algorithm::outcome(limit, &state, last, 0).used())
        });
        others.fold(windows, u8::max)
    }

    fn state(&self, layout: &Layout, origin: TimeBase) -> State {
        let time = |place| origin.restore(self.states.time(place));
        let Layout { place, second, .. } = *layout;
        let (third, fourth) = match second {
            Second::None => (0, 0),
            Second::Time => (time(place + 1), 0),
            Second::TimeAndNumber => (time(place + 1), self.states.number(place + 1)),
            Second::NumberAndTime => (self.states.number(place + 1), time(place + 1)),
        };
        State::of_few([time(place), self.states.number(place), third, fourth])
    }

    /// The same as an entry.
    pub(super) fn unpack(&self, shape: &Shape, origin: TimeBase) -> Unpacked {
        let slots = shape.layouts().iter().map(|layout| {
            let state = self.state(layout, origin);
            Slot {
                id: layout.limit.state(),
                expires: algorithm::expires(layout.limit.limit(), &state),
                state,
            }
        });
        let denied_until = match self.denied {
            0 => Timestamp::EPOCH,
            ticks => Timestamp::from_micros(origin.restore(u64::from(ticks) * TICK)),
        };
        let last = Timestamp::from_micros(origin.restore(self.last()));
        Entry::of(slots, last, denied_until)
    }

    /// The entry, if it is of this shape and fits.
    pub(super) fn pack<A: smallvec::Array<Item = Slot>>(
        entry: &Entry<A>,
        number: NonZeroU8,
        shape: &Shape,
        origin: TimeBase,
    ) -> Option<Self> {
        let slots = entry.slots();
        let layouts = shape.layouts();
        if slots.len() != layouts.len() {
            return None;
        }
        let mut compact = Self::new(number);
        for (slot, layout) in slots.iter().zip(layouts) {
            if slot.id != layout.limit.state() {
                return None;
            }
            let ([time, number, third, fourth], states) = (slot.state.few(), &mut compact.states);
            if slot.state.is_empty() {
                continue;
            }
            states.set(layout.place, origin.keep(time), number)?;
            let place = layout.place + 1;
            match layout.second {
                Second::None => {}
                Second::Time => states.set(place, origin.keep(third), 0)?,
                Second::TimeAndNumber => states.set(place, origin.keep(third), fourth)?,
                Second::NumberAndTime => states.set(place, origin.keep(fourth), third)?,
            }
        }
        let last = origin.keep(entry.last().as_micros());
        if last >> 48 != 0 {
            return None;
        }
        compact.set_last(last);
        if entry.denied_until() > Timestamp::EPOCH {
            compact.note_denial(origin.keep(entry.denied_until().as_micros()));
        }
        Some(compact)
    }
}
