//! Decisions over fixed windows in their packed form.
//!
//! [`try_decide_fast`] grants a request if all windows are open and have more left than it costs,
//! or denies it if an open window has less. It returns `None` if neither is certain. The
//! [plan](crate::algorithm::Plan) of the policy handles every other case, limit by limit.
//!
//! Every charge opens all windows that were closed. All windows then stay open until the first one
//! ends. Until that time, a decision needs only one comparison of times and one of counts.

use super::Alignment;
use super::compiled::CompiledWindows;
use super::lanes::{LANES, LaneSum, PackedStates, PackedTime};
use crate::model::{Cost, Mode, Outcome};
use crate::time::Timestamp;

/// Stands for no lane: a window is not open, so it is not known which window ends first.
pub(crate) const NO_LANE: u8 = u8::MAX;

/// The decision of [`try_decide_fast`]: the whole cost was granted, or none of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FastWindowsDecision {
    pub(crate) is_allowed: bool,
    /// The relative time until which requests of this cost are denied. If a limit has no units
    /// left, it is the time until which all requests are denied. It is 0 if none are denied.
    pub(crate) denied_until: u64,
}

/// The windows after a decision. The outcome of each limit is computed from them when it is read,
/// because most callers read the verdict only.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DecidedWindows<'a> {
    pub(crate) states: &'a PackedStates,
    /// The time of the decision, in the relative form of [`PackedTime`].
    pub(crate) decided_at: u64,
    /// The number of units for which the outcomes are computed.
    pub(crate) required: u64,
}

impl DecidedWindows<'_> {
    /// Computes the outcome of the limit in `lane`. `now` is the time of the decision.
    #[inline]
    pub(crate) fn outcome(
        &self,
        windows: &CompiledWindows,
        lane: usize,
        now: Timestamp,
    ) -> Outcome {
        let now = PackedTime { absolute: now.as_micros(), relative: self.decided_at };
        let (end, used) = windows.window(self.states, lane, now);
        let reset = end.saturating_sub(self.decided_at);
        Outcome::of_window(windows.max[lane], used, reset, self.required)
    }
}

/// Decides in few steps if the result is certain: all windows are open and have more than `cost`
/// left, or an open window has too little. Otherwise returns `None` and changes nothing.
///
/// The result is certain only if the time fits into 48 bits, and the cost into 31 bits.
///
/// `first_to_end` is the lane that [`first_to_end`] returned after the last charge.
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
    if !is_open(windows, states, first_to_end, now) || now.relative >> 48 != 0 {
        return None;
    }
    states.set_numbers(sum.sums);
    Some(FastWindowsDecision { is_allowed: true, denied_until: 0 })
}

/// Returns whether the windows grant `cost`. Charges nothing. Returns `None` if the cost is 0, or
/// if the cost, a sum or the time does not fit the packed form. The plan then has to judge the
/// request.
#[inline(always)]
pub(crate) fn try_judge(
    windows: &CompiledWindows,
    states: &PackedStates,
    now: PackedTime,
    cost: Cost,
) -> Option<bool> {
    let sum = windows.add(states, units_of_lane(Mode::Check, cost)?);
    if !sum.fits() || !is_valid_time(now.relative) {
        return None;
    }
    Some(sum.is_within_limits() || grants(windows, states, sum, now, cost))
}

/// Returns whether the windows grant `cost`. `sum` is the result of adding it.
fn grants(
    windows: &CompiledWindows,
    states: &PackedStates,
    sum: LaneSum,
    now: PackedTime,
    cost: Cost,
) -> bool {
    // `exceeding` also contains windows that the cost just fills, and windows that have ended. The
    // units of the latter no longer count.
    sum.exceeding().all(|lane| {
        let (_, used) = windows.window(states, lane, now);
        cost.units() <= windows.max[lane].saturating_sub(used)
    })
}

/// Returns the number to add to each lane, or `None` if it is 0 or does not fit into 31 bits.
fn units_of_lane(mode: Mode, cost: Cost) -> Option<u32> {
    let units = if mode == Mode::Peek { 0 } else { cost.units() };
    // The subtraction wraps 0 around to the largest number, so one comparison excludes both 0 and
    // numbers that do not fit into 31 bits.
    (units.wrapping_sub(1) < i32::MAX as u64).then_some(units as u32)
}

/// Denies `cost` if an open window has too little left. Returns the time until which it is denied,
/// or `None` if it is not certain that a window denies it.
fn try_deny(
    windows: &CompiledWindows,
    states: &PackedStates,
    now: PackedTime,
    mode: Mode,
    cost: Cost,
) -> Option<u64> {
    if mode != Mode::Check || !is_valid_time(now.relative) {
        return None;
    }
    let units = cost.units();
    let mut is_denied = false;
    let mut available = units;
    // `until_one` is the latest end of the windows that deny one unit, and `until_all` that of the
    // windows that deny the whole cost.
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

/// Returns whether a relative time fits into 48 bits and is not 0, the value for "no time".
const fn is_valid_time(relative: u64) -> bool {
    0 < relative && relative >> 48 == 0
}

/// Returns whether `lane` contains a window that is open.
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
    is_surely_open(windows, lane, since, now) || is_aligned_and_open(windows, lane, since, now)
}

/// Returns whether the window in `lane` is certainly open: its minimum length has not passed yet
/// since its first charge, at `since`.
const fn is_surely_open(
    windows: &CompiledWindows,
    lane: usize,
    since: u64,
    now: PackedTime,
) -> bool {
    now.relative < since + windows.min_duration[lane]
}

/// Returns whether an aligned window is open. Not inlined, because computing its end takes a
/// division.
#[inline(never)]
const fn is_aligned_and_open(
    windows: &CompiledWindows,
    lane: usize,
    since: u64,
    now: PackedTime,
) -> bool {
    match windows.alignment[lane] {
        Alignment::FirstCharge => false,
        Alignment::Multiples { .. } | Alignment::CalendarMonth { .. } => {
            0 < since && since <= now.relative && now.relative < windows.end(lane, since, now)
        }
    }
}

/// Returns whether no window is open.
pub(crate) fn are_all_closed(
    windows: &CompiledWindows,
    states: &PackedStates,
    now: PackedTime,
) -> bool {
    // In most policies, the last limit has the longest period, so its window ends last and is
    // checked first.
    let last = windows.count.saturating_sub(1) as u8;
    !is_open(windows, states, last, now) && are_all_closed_slow(windows, states, now)
}

fn are_all_closed_slow(windows: &CompiledWindows, states: &PackedStates, now: PackedTime) -> bool {
    (0..windows.count.min(LANES)).all(|lane| windows.window(states, lane, now) == (0, 0))
}

/// Returns the lane of the window that ends first, or [`NO_LANE`] if a window is not open at `now`.
/// If several windows end together, it prefers one that is not aligned: computing the end of such a
/// window takes no division.
pub(crate) fn first_to_end(
    windows: &CompiledWindows,
    states: &PackedStates,
    now: PackedTime,
) -> u8 {
    let mut first = NO_LANE;
    let mut earliest = 1 << 49;
    for lane in 0..windows.count.min(LANES) {
        let since = states.time(lane);
        let end = if since == 0 { 0 } else { windows.end(lane, since, now) };
        if end <= now.relative {
            return NO_LANE;
        }
        // Twice the end, and one more if the window is aligned, so that one comparison orders both.
        let rank = end << 1 | u64::from(windows.min_duration[lane] == 0);
        if rank < earliest {
            first = lane as u8;
            earliest = rank;
        }
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Plan, SubjectStates, SubjectStatesMut};
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
        /// Checks that the lanes decide and report as the plan does.
        #[test]
        fn packed_windows_decide_as_the_plan_decides_each_of_them(
            chosen in prop::sample::subsequence(LIMITS.to_vec(), 1..=6),
            steps in prop::collection::vec((0..90_000_000_u64, 0..5_u64, 0..4_usize), 1..60),
        ) {
            let limits: Vec<Limit> = chosen.iter().map(|limit| limit.parse().unwrap()).collect();
            let plan = Plan::new(limits.iter().copied());
            let windows = plan.windows().unwrap();
            let mut cells = vec![0; plan.cells()];
            let mut first = NO_LANE;
            let (mut now, base) = (Timestamp::from_secs(1_767_225_500), 1_700_000_000_000_000);
            let relative = |time: u64| if time == 0 { 0 } else { time - base + 1 };
            let pack = |cells: &[u64]| {
                let mut packed = PackedStates::EMPTY;
                for (lane, cells) in cells.chunks(2).enumerate() {
                    assert_eq!(packed.set(lane, relative(cells[0]), cells[1]), 0);
                }
                packed
            };
            for (advance, cost, mode) in steps {
                now = now.plus_micros(advance);
                let (mode, cost) = (MODES[mode], Cost::new(cost));
                let time = PackedTime { absolute: now.as_micros(), relative: relative(now.as_micros()) };
                let before = pack(&cells);
                let cells_before = cells.clone();
                let mut states = SubjectStatesMut { cells: &mut cells, logs: &mut [] };
                let judgement = plan.judge(states.read(), now, mode, cost);
                let granted = judgement.charged == cost.units();
                let denied_until = |states: &SubjectStatesMut<'_>, units| {
                    relative(plan.denied_until(states.read(), now, units).as_micros())
                };
                let units = if judgement.is_full { 1 } else { cost.units() };
                let until_before = denied_until(&states, units);
                if judgement.charged > 0 {
                    plan.commit(&mut states, &judgement, &mut [Outcome::granted(0, 0); LANES]);
                }
                let after = pack(states.cells);

                let mut packed = before;
                if let Some(decided) = try_decide_fast(windows, &mut packed, first, time, mode, cost) {
                    prop_assert_eq!(packed, after);
                    prop_assert_eq!(decided.is_allowed, judgement.charged > 0 && granted);
                    if !decided.is_allowed {
                        prop_assert_eq!(decided.denied_until, until_before);
                    }
                }
                if let Some(is_granted) = try_judge(windows, &before, time, cost) {
                    let states = SubjectStates { cells: &cells_before, logs: &[] };
                    let expected = plan.judge(states, now, Mode::Check, cost).charged > 0;
                    prop_assert_eq!(is_granted, expected);
                }
                let required = mode.required_after(cost, judgement.charged, false);
                let left = DecidedWindows { states: &after, decided_at: time.relative, required };
                for (lane, step) in plan.steps().iter().enumerate() {
                    let expected = step.outcome(states.read(), now, required);
                    prop_assert_eq!(left.outcome(windows, lane, now), expected);
                }
                if judgement.charged > 0 {
                    first = first_to_end(windows, &after, time);
                }
            }
        }
    }
}
