//! Fixed windows that are decided together: what most policies are, in one pass over plain numbers.
//!
//! It says what [`FixedWindow`](super::fixed_window) says of each limit; a test holds it to that. What
//! makes it short: the length of these windows does not vary ([`WindowPlan`]), so a window that began at
//! *since* is open while now < *since* + length, and times can be compared as they are kept.

use super::fixed_window::calendar_month;
use super::needed;
use crate::model::{Cost, Grid, MAX_UNITS, Mode, Outcome, Outcomes, WindowPlan};

/// The most windows that are decided in one pass.
pub(crate) const PLACES: usize = WindowPlan::MOST;

/// The states of several limits, each a number of 32 bits and a time of 48: windows, or what else has
/// two cells.
///
/// Times are in µs from some origin; 0 is none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packed {
    numbers: [u32; PLACES],
    lower: [u32; PLACES],
    upper: [u16; PLACES],
}

impl Packed {
    /// Of nobody.
    pub(crate) const NONE: Self =
        Self { numbers: [0; PLACES], lower: [0; PLACES], upper: [0; PLACES] };

    #[inline]
    pub(crate) const fn time(&self, place: usize) -> u64 {
        (self.upper[place] as u64) << 32 | self.lower[place] as u64
    }

    #[inline]
    pub(crate) const fn number(&self, place: usize) -> u64 {
        self.numbers[place] as u64
    }

    /// Keeps both if they fit.
    #[inline]
    pub(crate) const fn set(&mut self, place: usize, time: u64, number: u64) -> Option<()> {
        if time >> 48 | number >> 32 != 0 {
            return None;
        }
        self.set_time(place, time);
        self.numbers[place] = number as u32;
        Some(())
    }

    #[inline]
    const fn set_time(&mut self, place: usize, time: u64) {
        (self.lower[place], self.upper[place]) = (time as u32, (time >> 32) as u16);
    }
}

/// When a decision is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    /// In µs since the epoch.
    pub(crate) now: u64,
    /// The same as it is kept.
    pub(crate) kept: u64,
}

/// What was decided. Times are as they are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decided {
    pub(crate) taken: u64,
    pub(crate) is_allowed: bool,
    /// Of the limit that is used up the most, how many 255ths; meant if something was taken.
    pub(crate) consumed: u8,
    /// Until when a request of this cost, or if nothing is left, any request, is denied: 0 if none is.
    pub(crate) denied_until: u64,
}

/// Decides `cost` for all windows, and charges all of them or none. Tells nothing, and changes
/// nothing, if what is to be kept does not fit.
#[inline]
pub(crate) fn decide(
    plan: &WindowPlan,
    states: &mut Packed,
    at: Moment,
    mode: Mode,
    cost: Cost,
    outcomes: &mut Outcomes,
) -> Option<Decided> {
    if plan.begin == 0 {
        decide_on::<false>(plan, states, at, mode, cost, outcomes)
    } else {
        decide_on::<true>(plan, states, at, mode, cost, outcomes)
    }
}

/// The same, knowing whether there are windows on the clock.
#[inline(always)]
fn decide_on<const CLOCK: bool>(
    plan: &WindowPlan,
    states: &mut Packed,
    at: Moment,
    mode: Mode,
    cost: Cost,
    outcomes: &mut Outcomes,
) -> Option<Decided> {
    let kept = at.kept;
    // The clock may be at the time where times begin, or where they end.
    if kept <= plan.begin || kept >> 48 != 0 {
        return None;
    }
    let count = plan.count.min(PLACES);
    let (mut ends, mut used) = ([0; PLACES], [0; PLACES]);
    let (mut available, mut most_used) = (u64::MAX, 0);
    for place in 0..count {
        let since = states.time(place);
        let end = since + length::<CLOCK>(plan, place, since, at);
        // 0 is no window, and no time is as early.
        if since != 0 && kept < end {
            (ends[place], used[place]) = (end, states.number(place));
        }
        available = available.min(plan.max[place].saturating_sub(used[place]));
        most_used = used[place].max(most_used);
    }
    let taken = mode.taken(cost, available);
    if taken == 0 {
        let needed = needed(mode, cost, 0, false);
        return Some(tell(plan, &ends, &used, kept, needed, available, cost, outcomes));
    }
    if most_used.saturating_add(taken) >> 32 != 0 {
        return None;
    }
    let (mut consumed, mut denied_until) = (0, 0);
    let outcomes = outcomes.few_mut(count);
    for place in 0..count {
        if ends[place] == 0 {
            let since = begin::<CLOCK>(plan, place, at);
            states.set_time(place, since);
            ends[place] = since + length::<CLOCK>(plan, place, since, at);
        }
        let used = used[place] + taken;
        states.numbers[place] = used as u32;
        consumed = share(used, plan.unit[place]).max(consumed);
        outcomes[place] = Outcome::granted(used, ends[place] - kept);
    }
    if taken >= available {
        for place in 0..count {
            let is_full = used[place] + taken >= plan.max[place] && plan.max[place] > 0;
            denied_until = if is_full { ends[place].max(denied_until) } else { denied_until };
        }
    }
    let consumed = consumed.min(u8::MAX.into()) as u8;
    Some(Decided { taken, is_allowed: true, consumed, denied_until })
}

/// Where windows stand that were not charged.
#[cold]
#[expect(clippy::too_many_arguments, reason = "what `decide` knows by then")]
fn tell(
    plan: &WindowPlan,
    ends: &[u64; PLACES],
    used: &[u64; PLACES],
    kept: u64,
    needed: u64,
    available: u64,
    cost: Cost,
    outcomes: &mut Outcomes,
) -> Decided {
    // Nobody passes whom one unit does not; else, who asks for as much.
    let asked = if available == 0 { 1 } else { cost.units() };
    let (mut is_allowed, mut denied_until) = (true, 0);
    let count = plan.count.min(PLACES);
    let outcomes = outcomes.few_mut(count);
    for place in 0..count {
        let (max, used) = (plan.max[place], used[place]);
        let (left, reset) = (max.saturating_sub(used), ends[place].saturating_sub(kept));
        if asked > left && asked <= max {
            denied_until = ends[place].max(denied_until);
        }
        is_allowed &= needed <= left;
        outcomes[place] = if needed <= left {
            Outcome::granted(used, reset)
        } else if needed > max {
            Outcome::never(used, reset)
        } else {
            Outcome::denied(used, reset, reset)
        };
    }
    Decided { taken: 0, is_allowed, consumed: 0, denied_until }
}

/// How many 255ths of a limit `used` units are, rounded down, or more than 255.
#[inline]
const fn share(used: u64, unit: u64) -> u64 {
    ((used as u128 * unit as u128) >> 55) as u64
}

/// How long the window lasts that begins at `since`, as it is kept.
#[inline]
const fn length<const CLOCK: bool>(plan: &WindowPlan, place: usize, since: u64, at: Moment) -> u64 {
    match plan.grid[place] {
        Grid::Month if CLOCK && since != 0 => {
            let (_, length) = calendar_month(at.now - (at.kept - since));
            length
        }
        _ => plan.micros[place],
    }
}

/// Where a window that is charged first now begins, as it is kept.
#[inline]
const fn begin<const CLOCK: bool>(
    plan: &WindowPlan,
    place: usize,
    Moment { now, kept }: Moment,
) -> u64 {
    match plan.grid[place] {
        _ if !CLOCK => kept,
        Grid::None => kept,
        Grid::Shifted(shift) => kept - (now + shift) % plan.micros[place],
        Grid::Month => {
            let (begin, _) = calendar_month(now);
            kept - (now - begin)
        }
    }
}

const _: () = assert!(MAX_UNITS > u32::MAX as u64, "no number that fits has to be cut to it");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{self, State};
    use crate::model::{Limit, Policy};
    use crate::time::Timestamp;
    use proptest::prelude::*;

    const LIMITS: [&str; 8] = [
        "3/second",
        "7/minute",
        "9/hour:clock",
        "0/2days",
        "5/day:clock",
        "9/week:clock",
        "8/2weeks:clock",
        "20/month:clock",
    ];

    const MODES: [Mode; 4] = [Mode::Check, Mode::CheckUpTo, Mode::Peek, Mode::Charge];

    proptest! {
        /// In one pass comes out what the algorithm says of each limit by itself.
        #[test]
        fn one_pass_says_what_each_limit_says(
            chosen in prop::sample::subsequence(LIMITS.to_vec(), 1..=6),
            steps in prop::collection::vec((0..90_000_000_u64, 0..5_u64, 0..4_usize), 1..60),
        ) {
            let policy = Policy::new(chosen.iter().map(|limit| limit.parse::<Limit>().unwrap()));
            let policy = policy.unwrap();
            let (limits, plan) = (policy.limits(), policy.windows().unwrap());
            let mut packed = Packed::NONE;
            let mut states = vec![State::empty(); limits.len()];
            let (mut now, origin) = (Timestamp::from_secs(1_767_225_500), 1_700_000_000_000_000);
            let keep = |time: Timestamp| time.as_micros() - origin + 1;
            for (advance, cost, mode) in steps {
                now = now.plus_micros(advance);
                let (mode, cost) = (MODES[mode], Cost::new(cost));
                let left = limits.iter().zip(&states);
                let left = left.map(|(limit, state)| algorithm::available(limit.limit(), state, now));
                let available = left.min().unwrap();
                let taken = mode.taken(cost, available);

                let moment = Moment { now: now.as_micros(), kept: keep(now) };
                let mut outcomes = Outcomes::new();
                let decided = decide(plan, &mut packed, moment, mode, cost, &mut outcomes).unwrap();
                prop_assert_eq!(decided.taken, taken);
                let asked = match taken {
                    taken if taken >= available => 1,
                    0 => cost.units(),
                    _ => 0,
                };
                let (mut denied_until, mut consumed) = (0, 0);
                for (i, named) in limits.iter().enumerate() {
                    let (limit, state) = (named.limit(), &mut states[i]);
                    if taken > 0 {
                        algorithm::charge(limit, state, now, taken);
                    }
                    let [since, used, _] = state.few();
                    if !state.is_empty() {
                        prop_assert_eq!(packed.time(i) - 1 + origin, since);
                    }
                    prop_assert_eq!(packed.number(i), used);
                    consumed = named.consumed(used).max(consumed);
                    let needed = needed(mode, cost, taken, false);
                    prop_assert_eq!(outcomes[i], algorithm::outcome(limit, state, now, needed));
                    prop_assert!(!decided.is_allowed || !outcomes[i].is_over());
                    if let Some(wait) = algorithm::outcome(limit, state, now, asked).wait_micros() {
                        denied_until = keep(now.plus_micros(wait)).max(denied_until);
                    }
                }
                prop_assert_eq!(decided.denied_until, denied_until);
                prop_assert_eq!(decided.is_allowed, !outcomes.iter().any(|outcome| outcome.is_over()));
                if taken > 0 {
                    prop_assert_eq!(decided.consumed, consumed);
                }
            }
        }
    }
}
