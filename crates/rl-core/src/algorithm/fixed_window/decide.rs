//! Decisions over fixed windows in their packed form.
//!
//! Three functions decide, from the most special to the most general:
//!
//! 1. [`try_open_fast`] grants the first request of a subject.
//! 2. [`try_decide_fast`] grants a request if all windows are open and have enough left, or denies it
//!    if an open window has too little. It returns `None` if neither is certain.
//! 3. [`decide`] handles every other case, window by window.
//!
//! Every charge opens all windows that were closed. So until the first of them ends, a decision needs
//! one comparison of times and one of counts.

use super::alignment::Alignment;
use super::compiled::CompiledWindows;
use super::lanes::{LANES, PackedStates, PackedTime};
use crate::model::{Cost, MAX_UNITS, Mode, Outcome};
use crate::time::Timestamp;

/// The decision of [`decide`]. Times are relative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowsDecision {
    pub(crate) charged: u64,
    /// The units that the outcome of each limit is computed for.
    pub(crate) required: u64,
    pub(crate) is_allowed: bool,
    /// The time until which requests of this cost are denied, or all requests if nothing remains. It is
    /// 0 if none are.
    pub(crate) denied_until: u64,
    /// The lane of the window that ends first, if all windows are open; else [`NO_LANE`].
    pub(crate) first_to_end: u8,
}

/// Stands for a lane that is not known.
pub(crate) const NO_LANE: u8 = u8::MAX;

/// The decision of [`try_decide_fast`]: the whole cost was granted, or nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FastWindowsDecision {
    pub(crate) is_allowed: bool,
    /// As [`WindowsDecision::denied_until`].
    pub(crate) denied_until: u64,
}

/// The windows as a decision left them, from which the outcome of each limit can be computed.
///
/// Most callers look at the verdict only, so the outcomes are computed when they are read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DecidedWindows {
    pub(crate) states: PackedStates,
    /// The time of the decision, relative.
    pub(crate) decided_at: u64,
    /// The units that the outcome of each limit is computed for.
    pub(crate) required: u64,
}

impl DecidedWindows {
    /// Computes the outcome of the limit in `lane`. `now` is the time of the decision.
    #[inline]
    pub(crate) fn outcome(
        &self,
        windows: &CompiledWindows,
        lane: usize,
        now: Timestamp,
    ) -> Outcome {
        let now = PackedTime { absolute: now.as_micros(), relative: self.decided_at };
        let (end, used) = windows.window(&self.states, lane, now);
        let reset = end.saturating_sub(self.decided_at);
        Outcome::of_window(windows.max[lane], used, reset, self.required)
    }
}

/// Decides in few steps if the result is certain: all windows are open and have more than `cost` left,
/// or one is open and has too little. Returns `None` otherwise, and changes nothing.
///
/// `first_to_end` is what [`decide`] or [`try_open_fast`] returned last.
#[inline(always)]
pub(crate) fn try_decide_fast(
    windows: &CompiledWindows,
    states: &mut PackedStates,
    first_to_end: u8,
    now: PackedTime,
    mode: Mode,
    cost: Cost,
) -> Option<FastWindowsDecision> {
    let units = units_of_lane(mode, cost)?;
    let sum = windows.add(states, units);
    if !sum.is_within_limits() {
        let denied_until = try_deny(windows, states, now, mode, cost)?;
        return Some(FastWindowsDecision { is_allowed: false, denied_until });
    }
    if !is_open(windows, states, first_to_end, now) {
        return None;
    }
    states.set_numbers(sum.sums);
    Some(FastWindowsDecision { is_allowed: true, denied_until: 0 })
}

/// Returns the units to add to each lane; `None` if they are 0 or do not fit.
#[inline(always)]
fn units_of_lane(mode: Mode, cost: Cost) -> Option<u32> {
    let units = if mode == Mode::Peek { 0 } else { cost.units() };
    // One comparison: 0 wraps around.
    (units.wrapping_sub(1) < i32::MAX as u64).then_some(units as u32)
}

/// Returns whether a check is certain to be denied because an open window is full.
#[inline(never)]
pub(crate) fn has_full_window(
    windows: &CompiledWindows,
    states: &PackedStates,
    now: PackedTime,
    mode: Mode,
    cost: Cost,
) -> bool {
    let full = || states.numbers().last_exceeding(windows.overflow_bias);
    mode == Mode::Check
        && cost != Cost::ZERO
        && full().is_some_and(|lane| is_open(windows, states, lane as u8, now))
}

/// Denies `cost` if an open window has too little left. Returns the time until which it is denied.
#[inline(never)]
fn try_deny(
    windows: &CompiledWindows,
    states: &PackedStates,
    now: PackedTime,
    mode: Mode,
    cost: Cost,
) -> Option<u64> {
    if mode != Mode::Check || !fits(now.relative) {
        return None;
    }
    let units = cost.units();
    let mut is_denied = false;
    let mut available = units;
    // The last end of the windows that are full, and of those that have too little.
    let mut until_one = 0;
    let mut until_all = 0;
    for lane in windows.add(states, units as u32).exceeding() {
        let max = windows.max[lane];
        let (end, used) = windows.window(states, lane, now);
        let remaining = max.saturating_sub(used);
        if remaining < units {
            is_denied = true;
            available = available.min(remaining);
            if remaining == 0 && max > 0 {
                until_one = end.max(until_one);
            }
            if units <= max {
                until_all = end.max(until_all);
            }
        }
    }
    let until = if available == 0 { until_one } else { until_all };
    is_denied.then_some(until)
}

/// Returns whether a relative time fits 48 bits and is not 0, which stands for no time.
const fn fits(relative: u64) -> bool {
    0 < relative && relative >> 48 == 0
}

/// Returns whether there is a window in `lane` and it is open.
#[inline(always)]
const fn is_open(
    windows: &CompiledWindows,
    states: &PackedStates,
    lane: u8,
    now: PackedTime,
) -> bool {
    let lane = lane as usize;
    if lane >= LANES {
        return false;
    }
    let since = states.time(lane);
    now.relative < since + windows.min_duration[lane]
        || is_aligned_and_open(windows, lane, since, now)
}

/// Returns whether an aligned window is open. Its end takes a division, so this is not inlined.
#[inline(never)]
const fn is_aligned_and_open(
    windows: &CompiledWindows,
    lane: usize,
    since: u64,
    now: PackedTime,
) -> bool {
    match windows.alignment[lane] {
        Alignment::FirstCharge => false,
        Alignment::Multiples { .. } | Alignment::CalendarMonth => {
            0 < since && since <= now.relative && now.relative < windows.end(lane, since, now)
        }
    }
}

/// Grants `cost` to a subject that has used nothing, if no window is aligned and all of them grant it.
/// Returns the lane of the window that ends first, or `None`, and changes nothing.
pub(crate) fn try_open_fast(
    windows: &CompiledWindows,
    states: &mut PackedStates,
    now: PackedTime,
    mode: Mode,
    cost: Cost,
) -> Option<u8> {
    let shortest = windows.shortest?;
    let units = units_of_lane(mode, cost)?;
    let end = now.relative + windows.duration.get(usize::from(shortest))?;
    if !fits(now.relative) || end >> 48 != 0 {
        return None;
    }
    let sum = windows.add(&PackedStates::EMPTY, units);
    if !sum.is_within_limits() {
        return None;
    }
    *states = PackedStates::opened_at(windows.count, now.relative, sum.sums);
    Some(shortest)
}

/// Returns whether no window is open.
#[inline]
pub(crate) fn are_all_closed(
    windows: &CompiledWindows,
    states: &PackedStates,
    now: PackedTime,
) -> bool {
    // Most policies list the longest period last, whose window ends last.
    let last = windows.count.saturating_sub(1) as u8;
    !is_open(windows, states, last, now) && are_all_closed_slow(windows, states, now)
}

#[inline(never)]
fn are_all_closed_slow(windows: &CompiledWindows, states: &PackedStates, now: PackedTime) -> bool {
    (0..windows.count.min(LANES)).all(|lane| windows.window(states, lane, now) == (0, 0))
}

/// Decides `cost` window by window, and charges all windows or none. Returns `None`, and changes
/// nothing, if a time or a number does not fit the packed form.
pub(crate) fn decide(
    windows: &CompiledWindows,
    states: &mut PackedStates,
    now: PackedTime,
    mode: Mode,
    cost: Cost,
) -> Option<WindowsDecision> {
    if !fits(now.relative) {
        return None;
    }
    let count = windows.count.min(LANES);
    let mut ends = [0; LANES];
    let mut used = [0; LANES];
    let mut available = u64::MAX;
    let mut most_used = 0;
    for lane in 0..count {
        (ends[lane], used[lane]) = windows.window(states, lane, now);
        available = available.min(windows.max[lane].saturating_sub(used[lane]));
        most_used = used[lane].max(most_used);
    }
    let charged = mode.charged(cost, available);
    let required = mode.required_after(cost, charged, false);
    if charged == 0 {
        let requested = if available == 0 { 1 } else { cost.units() };
        let are_open = ends[..count].iter().all(|end| *end > 0);
        return Some(WindowsDecision {
            charged,
            required,
            is_allowed: required <= available,
            denied_until: denied_until(windows, &ends, &used, requested),
            first_to_end: if are_open { first_to_end(windows, &ends) } else { NO_LANE },
        });
    }
    if most_used.saturating_add(charged) >> 32 != 0 {
        return None;
    }
    for lane in 0..count {
        let since = if ends[lane] == 0 { now.relative } else { states.time(lane) };
        used[lane] += charged;
        states.set(lane, since, used[lane])?;
        ends[lane] = windows.end(lane, since, now);
    }
    let is_full = charged >= available;
    Some(WindowsDecision {
        charged,
        required,
        is_allowed: true,
        denied_until: if is_full { denied_until(windows, &ends, &used, 1) } else { 0 },
        first_to_end: first_to_end(windows, &ends),
    })
}

/// Returns the lane of the window that ends first, of windows that are all open. If several end
/// together, it prefers one that is not aligned, because its end takes no division.
fn first_to_end(windows: &CompiledWindows, ends: &[u64; LANES]) -> u8 {
    let mut first = NO_LANE;
    let mut earliest = (1 << 48, true);
    for (lane, end) in ends.iter().enumerate().take(windows.count.min(LANES)) {
        let end = (*end, windows.alignment[lane] != Alignment::FirstCharge);
        if end < earliest {
            first = lane as u8;
            earliest = end;
        }
    }
    first
}

/// Returns the last end of the windows that deny `requested` units now but would grant them when new.
fn denied_until(
    windows: &CompiledWindows,
    ends: &[u64; LANES],
    used: &[u64; LANES],
    requested: u64,
) -> u64 {
    let denies = |lane: &usize| {
        let max = windows.max[*lane];
        max.saturating_sub(used[*lane]) < requested && requested <= max
    };
    let lanes = 0..windows.count.min(LANES);
    lanes.filter(denies).map(|lane| ends[lane]).max().unwrap_or(0)
}

const _: () = assert!(MAX_UNITS > u32::MAX as u64, "no number that fits has to be cut to it");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{self, State};
    use crate::model::Limit;
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
        #[test]
        fn packed_windows_decide_as_the_algorithm_decides_each_of_them(
            chosen in prop::sample::subsequence(LIMITS.to_vec(), 1..=6),
            steps in prop::collection::vec((0..90_000_000_u64, 0..5_u64, 0..4_usize), 1..60),
        ) {
            let limits: Vec<Limit> = chosen.iter().map(|limit| limit.parse().unwrap()).collect();
            let windows = &CompiledWindows::new(limits.iter().copied()).unwrap();
            let mut packed = PackedStates::EMPTY;
            let (mut first_to_end, mut known) = (NO_LANE, 0);
            let mut states = vec![State::empty(); limits.len()];
            let (mut now, base) = (Timestamp::from_secs(1_767_225_500), 1_700_000_000_000_000);
            let relative = |time: Timestamp| time.as_micros() - base + 1;
            for (advance, cost, mode) in steps {
                now = now.plus_micros(advance);
                let (mode, cost) = (MODES[mode], Cost::new(cost));
                let remaining = limits.iter().zip(&states);
                let remaining =
                    remaining.map(|(limit, state)| algorithm::available(*limit, state, now));
                let available = remaining.min().unwrap();
                let charged = mode.charged(cost, available);

                let time = PackedTime { absolute: now.as_micros(), relative: relative(now) };
                let (mut opened, mut new) = (PackedStates::EMPTY, PackedStates::EMPTY);
                if let Some(first_to_end) = try_open_fast(windows, &mut opened, time, mode, cost) {
                    let all = WindowsDecision {
                        charged: cost.units(),
                        required: 0,
                        is_allowed: true,
                        denied_until: 0,
                        first_to_end,
                    };
                    prop_assert_eq!(decide(windows, &mut new, time, mode, cost), Some(all));
                    prop_assert_eq!(opened, new);
                }
                let is_known = time.relative < known
                    && has_full_window(windows, &packed, time, mode, cost);
                let fast =
                    try_decide_fast(windows, &mut packed, first_to_end, time, mode, cost);
                let decided = match fast {
                    Some(FastWindowsDecision { is_allowed, denied_until }) => {
                        let (charged, required) =
                            if is_allowed { (cost.units(), 0) } else { (0, cost.units()) };
                        WindowsDecision { charged, required, is_allowed, denied_until, first_to_end }
                    }
                    None => decide(windows, &mut packed, time, mode, cost).unwrap(),
                };
                prop_assert!(!is_known || !decided.is_allowed && decided.denied_until <= known);
                let left = DecidedWindows {
                    states: packed,
                    decided_at: time.relative,
                    required: decided.required,
                };
                let outcome = |lane| left.outcome(windows, lane, now);
                (first_to_end, known) = (decided.first_to_end, known.max(decided.denied_until));
                prop_assert_eq!(decided.charged, charged);
                let requested = match charged {
                    charged if charged >= available => 1,
                    0 => cost.units(),
                    _ => 0,
                };
                let mut denied_until = 0;
                for (lane, limit) in limits.iter().enumerate() {
                    let (limit, state) = (*limit, &mut states[lane]);
                    if charged > 0 {
                        algorithm::charge(limit, state, now, charged);
                    }
                    let [since, used, ..] = state.few();
                    if !state.is_empty() {
                        prop_assert_eq!(packed.time(lane) - 1 + base, since);
                    }
                    prop_assert_eq!(packed.number(lane), used);
                    let required = mode.required_after(cost, charged, false);
                    let expected = algorithm::outcome(limit, state, now, required);
                    prop_assert_eq!(outcome(lane), expected);
                    prop_assert!(!decided.is_allowed || !outcome(lane).is_over());
                    let wait = algorithm::outcome(limit, state, now, requested).wait_micros();
                    if let Some(wait) = wait {
                        denied_until = relative(now.plus_micros(wait)).max(denied_until);
                    }
                }
                prop_assert_eq!(decided.denied_until, denied_until);
                let is_denied = (0..limits.len()).any(|lane| outcome(lane).is_over());
                prop_assert_eq!(decided.is_allowed, !is_denied);
            }
        }
    }
}
