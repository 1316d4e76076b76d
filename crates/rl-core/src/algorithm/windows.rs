//! Fixed windows that are decided together: what most policies are, over plain numbers.
//!
//! It says what [`FixedWindow`](super::fixed_window) says of each limit; a test holds it to that. What
//! makes it short: [`WindowPlan`] tells where these windows end, so times can be compared as they are
//! kept; and a charge leaves all windows open behind, so until the first of them ends a decision is one
//! comparison of times, and one of numbers beside each other.

use super::needed;
use crate::model::{Cost, Grid, MAX_UNITS, Mode, Moment, Packed, Pairs, WindowPlan};

/// The most windows that are decided together.
pub(crate) const PLACES: usize = WindowPlan::MOST;

/// What was decided. Times are as they are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decided {
    pub(crate) taken: u64,
    /// The units that are asked of what is left.
    pub(crate) needed: u64,
    pub(crate) is_allowed: bool,
    /// Until when a request of this cost, or if nothing is left, any request, is denied: 0 if none is.
    pub(crate) denied_until: u64,
    /// Which window ends first, if all of them are open.
    pub(crate) soonest: u8,
}

/// [`Decided::soonest`], where none is known.
pub(crate) const UNKNOWN: u8 = u8::MAX;

/// What was decided where it is plain what comes out: all of a cost was granted, or nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plain {
    pub(crate) is_allowed: bool,
    /// The numbers that it leaves.
    pub(crate) left: Pairs,
    /// As in [`Decided`].
    pub(crate) denied_until: u64,
}

impl Plain {
    #[inline(always)]
    pub(crate) fn denied(states: &Packed, denied_until: u64) -> Self {
        Self { is_allowed: false, left: states.pairs(), denied_until }
    }
}

/// Decides `cost` if it is plain what comes out, in few steps: what is asked nearly always. All windows are
/// open and have more than that left; or one is open and has too little. Else the decision is [`decide`]'s.
///
/// `soonest` is what [`decide`] said last.
#[inline(always)]
pub(crate) fn decide_plainly(
    plan: &WindowPlan,
    states: &mut Packed,
    soonest: u8,
    at: Moment,
    mode: Mode,
    cost: Cost,
) -> Option<Plain> {
    let units = if mode == Mode::Peek { 0 } else { cost.units() };
    if units.wrapping_sub(1) >= i32::MAX as u64 {
        return None;
    }
    let sum = states.plus(units as u32, plan);
    if !sum.is_within() {
        let denied_until = deny(plan, states, at, mode, cost)?;
        return Some(Plain::denied(states, denied_until));
    }
    if !is_open(plan, states, soonest, at) {
        return None;
    }
    states.set_numbers(sum.left);
    Some(Plain { is_allowed: true, left: sum.left, denied_until: 0 })
}

/// Whether `cost` is denied because a window has nothing left, if that is plain.
///
/// Until when was told by what has used it up, [`decide`] that is: it need not be told again.
#[inline(never)]
pub(crate) fn is_used_up(
    plan: &WindowPlan,
    states: &Packed,
    at: Moment,
    mode: Mode,
    cost: Cost,
) -> bool {
    mode == Mode::Check
        && cost != Cost::ZERO
        && states.last_used_up(plan).is_some_and(|place| is_open(plan, states, place as u8, at))
}

/// Denies `cost` if a window has too little left. Returns [`Decided::denied_until`].
#[inline(never)]
fn deny(plan: &WindowPlan, states: &Packed, at: Moment, mode: Mode, cost: Cost) -> Option<u64> {
    if mode != Mode::Check || !fits(at.kept) {
        return None;
    }
    let units = cost.units();
    let (mut denies, mut available, mut until_one, mut until_all) = (false, units, 0, 0);
    for place in states.plus(units as u32, plan).places_beyond() {
        let (max, (end, used)) = (plan.max[place], plan.window(states, place, at));
        let left = max.saturating_sub(used);
        if left < units {
            (denies, available) = (true, available.min(left));
            until_one = if left == 0 && max > 0 { end.max(until_one) } else { until_one };
            until_all = if units <= max { end.max(until_all) } else { until_all };
        }
    }
    // Nobody passes whom one unit does not; else, who asks for as much.
    let until = if available == 0 { until_one } else { until_all };
    denies.then_some(until)
}

/// Whether the clock is neither at the time where times begin, nor where they end.
const fn fits(kept: u64) -> bool {
    0 < kept && kept >> 48 == 0
}

/// Returns whether there is a window in this place and it is open.
#[inline(always)]
const fn is_open(plan: &WindowPlan, states: &Packed, place: u8, at: Moment) -> bool {
    let place = place as usize;
    if place >= PLACES {
        return false;
    }
    let since = states.time(place);
    at.kept < since + plan.at_least[place] || is_open_on_clock(plan, place, since, at)
}

/// Returns whether a window on the clock is open. Its end takes a division, so this is not inlined.
#[inline(never)]
const fn is_open_on_clock(plan: &WindowPlan, place: usize, since: u64, at: Moment) -> bool {
    match plan.grid[place] {
        Grid::None => false,
        Grid::Shifted(_) | Grid::Month => {
            0 < since && since <= at.kept && at.kept < plan.end(place, since, at)
        }
    }
}

/// Decides `cost` for somebody who has used nothing, if it is plain that all of it is granted: windows of no
/// clock begin with it. Tells which of them ends first.
pub(crate) fn begin_plainly(
    plan: &WindowPlan,
    states: &mut Packed,
    at: Moment,
    mode: Mode,
    cost: Cost,
) -> Option<u8> {
    let soonest = plan.shortest?;
    let units = if mode == Mode::Peek { 0 } else { cost.units() };
    let end = at.kept + plan.micros.get(usize::from(soonest))?;
    if units.wrapping_sub(1) >= i32::MAX as u64 || !fits(at.kept) || end >> 48 != 0 {
        return None;
    }
    let sum = Packed::NONE.plus(units as u32, plan);
    if !sum.is_within() {
        return None;
    }
    *states = Packed::begun(plan.count, at.kept, sum.left);
    Some(soonest)
}

/// Whether no window is open.
#[inline]
pub(crate) fn are_over(plan: &WindowPlan, states: &Packed, at: Moment) -> bool {
    // Those of long periods come last in most policies, and end last.
    let last = plan.count.saturating_sub(1) as u8;
    !is_open(plan, states, last, at) && is_none_open(plan, states, at)
}

#[inline(never)]
fn is_none_open(plan: &WindowPlan, states: &Packed, at: Moment) -> bool {
    (0..plan.count.min(PLACES)).all(|place| plan.window(states, place, at) == (0, 0))
}

/// Decides `cost` for all windows one by one, and charges all of them or none. Tells nothing, and changes
/// nothing, if what is to be kept does not fit.
pub(crate) fn decide(
    plan: &WindowPlan,
    states: &mut Packed,
    at: Moment,
    mode: Mode,
    cost: Cost,
) -> Option<Decided> {
    if !fits(at.kept) {
        return None;
    }
    let count = plan.count.min(PLACES);
    let (mut ends, mut used) = ([0; PLACES], [0; PLACES]);
    let (mut available, mut most_used) = (u64::MAX, 0);
    for place in 0..count {
        (ends[place], used[place]) = plan.window(states, place, at);
        available = available.min(plan.max[place].saturating_sub(used[place]));
        most_used = used[place].max(most_used);
    }
    let taken = mode.taken(cost, available);
    let needed = needed(mode, cost, taken, false);
    if taken == 0 {
        let asked = if available == 0 { 1 } else { cost.units() };
        let denied_until = denied_until(plan, &ends, &used, asked);
        let is_allowed = needed <= available;
        let are_open = ends[..count].iter().all(|end| *end > 0);
        let soonest = if are_open { soonest(plan, &ends) } else { UNKNOWN };
        return Some(Decided { taken, needed, is_allowed, denied_until, soonest });
    }
    if most_used.saturating_add(taken) >> 32 != 0 {
        return None;
    }
    for place in 0..count {
        let since = match ends[place] {
            0 => at.kept,
            _ => states.time(place),
        };
        used[place] += taken;
        states.set(place, since, used[place])?;
        ends[place] = plan.end(place, since, at);
    }
    let denied_until = if taken >= available { denied_until(plan, &ends, &used, 1) } else { 0 };
    let soonest = soonest(plan, &ends);
    Some(Decided { taken, needed, is_allowed: true, denied_until, soonest })
}

/// Returns which of windows that are all open ends first. If several end together, it is one without a
/// clock, whose end takes no division.
fn soonest(plan: &WindowPlan, ends: &[u64; PLACES]) -> u8 {
    let (mut soonest, mut earliest) = (UNKNOWN, (1 << 48, true));
    for (place, end) in ends.iter().enumerate().take(plan.count.min(PLACES)) {
        let end = (*end, plan.grid[place] != Grid::None);
        if end < earliest {
            (soonest, earliest) = (place as u8, end);
        }
    }
    soonest
}

/// Where the last window ends that denies `asked` units, and grants as many when it is new.
fn denied_until(plan: &WindowPlan, ends: &[u64; PLACES], used: &[u64; PLACES], asked: u64) -> u64 {
    let places = 0..plan.count.min(PLACES);
    let denies = |place: &usize| {
        let (max, used) = (plan.max[*place], used[*place]);
        max.saturating_sub(used) < asked && asked <= max
    };
    places.filter(denies).map(|place| ends[place]).max().unwrap_or(0)
}

const _: () = assert!(MAX_UNITS > u32::MAX as u64, "no number that fits has to be cut to it");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{self, State};
    use crate::decision::{Outcomes, Windows};
    use crate::model::Limit;
    use crate::policy::Policy;
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
            let (mut soonest, mut known) = (UNKNOWN, 0);
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
                let (mut begun, mut new) = (Packed::NONE, Packed::NONE);
                if let Some(soonest) = begin_plainly(plan, &mut begun, moment, mode, cost) {
                    let (taken, needed) = (cost.units(), 0);
                    let all = Decided { taken, needed, is_allowed: true, denied_until: 0, soonest };
                    prop_assert_eq!(decide(plan, &mut new, moment, mode, cost), Some(all));
                    prop_assert_eq!(begun, new);
                }
                let kept = moment.kept;
                let is_known = kept < known && is_used_up(plan, &packed, moment, mode, cost);
                let plain = decide_plainly(plan, &mut packed, soonest, moment, mode, cost);
                let decided = match plain {
                    Some(Plain { is_allowed, left, denied_until }) => {
                        prop_assert_eq!(left, packed.pairs());
                        let (taken, needed) =
                            if is_allowed { (cost.units(), 0) } else { (0, cost.units()) };
                        Decided { taken, needed, is_allowed, denied_until, soonest }
                    }
                    None => decide(plan, &mut packed, moment, mode, cost).unwrap(),
                };
                prop_assert!(!is_known || !decided.is_allowed && decided.denied_until <= known);
                let left = Windows { states: packed, kept, needed: decided.needed };
                let outcomes = Outcomes::Windows(left);
                let told = |i| outcomes.outcome(i, Some(plan), now);
                (soonest, known) = (decided.soonest, known.max(decided.denied_until));
                prop_assert_eq!(decided.taken, taken);
                let asked = match taken {
                    taken if taken >= available => 1,
                    0 => cost.units(),
                    _ => 0,
                };
                let mut denied_until = 0;
                for (i, named) in limits.iter().enumerate() {
                    let (limit, state) = (named.limit(), &mut states[i]);
                    if taken > 0 {
                        algorithm::charge(limit, state, now, taken);
                    }
                    let [since, used, ..] = state.few();
                    if !state.is_empty() {
                        prop_assert_eq!(packed.time(i) - 1 + origin, since);
                    }
                    prop_assert_eq!(packed.number(i), used);
                    let needed = needed(mode, cost, taken, false);
                    prop_assert_eq!(told(i), algorithm::outcome(limit, state, now, needed));
                    prop_assert!(!decided.is_allowed || !told(i).is_over());
                    if let Some(wait) = algorithm::outcome(limit, state, now, asked).wait_micros() {
                        denied_until = keep(now.plus_micros(wait)).max(denied_until);
                    }
                }
                prop_assert_eq!(decided.denied_until, denied_until);
                prop_assert_eq!(decided.is_allowed, !(0..limits.len()).any(|i| told(i).is_over()));
            }
        }
    }
}
