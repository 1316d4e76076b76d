use super::Alignment;
use super::lanes::{LANES, LaneSum, Lanes, PackedStates, PackedTime};
use crate::algorithm::divisor::Divisor;
use crate::model::{Algorithm, Anchor, Limit};

/// The limits of a policy of fixed windows, compiled to one array for each property. A *lane* is an
/// index into these arrays, and stands for one limit.
///
/// Only enforced limits that count units are compiled. A window that begins with its first charge,
/// at `since`, is open while `now < since + duration`. For an aligned window, `since` is the time
/// of the first charge too, and the end of the window is computed from `since`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CompiledWindows {
    pub(super) count: usize,
    /// The maximum number of units in a window; `u64::MAX` in unused lanes.
    pub(crate) max: [u64; LANES],
    /// `i32::MAX - (max - 1)` in each lane. The sum of this and a count sets the lane's top bit if
    /// and only if the count exceeds `max - 1`. Unused lanes hold 0 and never overflow.
    pub(super) overflow_bias: Lanes,
    /// A mask in which all bits of the lanes in use are set.
    pub(super) lane_mask: Lanes,
    /// The length of the period in µs. A calendar month may be longer or shorter.
    pub(super) duration: [Divisor; LANES],
    /// The minimum time in µs for which a window is open after its first charge. It is 0 for
    /// aligned windows, which may end right after the first charge.
    pub(super) min_duration: [u64; LANES],
    /// The identity of the state that each limit uses:
    /// [`StateId::bits`](crate::model::StateId::bits).
    pub(crate) states: [u64; LANES],
    pub(super) alignment: [Alignment; LANES],
}

impl CompiledWindows {
    /// Compiles the limits. Returns `None` if there are more than six, or if one is not a fixed
    /// window, counts requests or is in shadow.
    pub(crate) fn new(limits: impl ExactSizeIterator<Item = Limit>) -> Option<Self> {
        let count = limits.len();
        if count > LANES {
            return None;
        }
        let mut max = [u64::MAX; LANES];
        let mut overflow_bias = [0; LANES];
        let mut lane_mask = [0; LANES];
        let mut duration = [Divisor::new(0); LANES];
        let mut min_duration = [0; LANES];
        let mut states = [0; LANES];
        let mut alignment = [Alignment::FirstCharge; LANES];
        for (lane, limit) in limits.enumerate() {
            alignment[lane] = alignment_of(limit)?;
            max[lane] = limit.max();
            let most_before_full = limit.max().saturating_sub(1).min(i32::MAX as u64);
            overflow_bias[lane] = i32::MAX as u32 - most_before_full as u32;
            lane_mask[lane] = u32::MAX;
            duration[lane] = Divisor::new(limit.period().as_micros());
            if alignment[lane] == Alignment::FirstCharge {
                min_duration[lane] = duration[lane].get();
            }
            states[lane] = limit.state_id().bits();
        }
        Some(Self {
            count,
            max,
            overflow_bias: Lanes::new(overflow_bias),
            lane_mask: Lanes::new(lane_mask),
            duration,
            min_duration,
            states,
            alignment,
        })
    }

    /// Adds `units`, which must be less than 2^31, to every window.
    #[inline(always)]
    pub(super) fn add(&self, states: &PackedStates, units: u32) -> LaneSum {
        states.numbers().add(units, self.lane_mask, self.overflow_bias)
    }

    /// Returns the end of the window in `lane`, as a relative time, and the units used in it. Both
    /// are 0 if no window is open.
    #[inline]
    pub(super) const fn window(
        &self,
        states: &PackedStates,
        lane: usize,
        now: PackedTime,
    ) -> (u64, u64) {
        let since = states.time(lane);
        if since == 0 {
            return (0, 0);
        }
        let end = self.end(lane, since, now);
        if now.relative < end { (end, states.number(lane)) } else { (0, 0) }
    }

    /// Returns the end of the window whose first charge was at `since`. Both times are relative.
    pub(super) const fn end(&self, lane: usize, since: u64, now: PackedTime) -> u64 {
        // The subtraction cannot overflow, because `since` is never after `now`.
        let first_charge = now.absolute - (now.relative - since);
        since + self.alignment[lane].open_for(self.duration[lane], first_charge)
    }
}

/// Returns the alignment of a fixed window that counts units and is enforced, or `None` for any
/// other limit.
fn alignment_of(limit: Limit) -> Option<Alignment> {
    match limit.algorithm() {
        _ if limit.is_shadow() || limit.counts_requests() => None,
        // `StateId::bits` does not contain the offset.
        Algorithm::FixedWindow { anchor: Anchor::ClockOffset(_) } => None,
        Algorithm::FixedWindow { anchor } => Some(Alignment::new(limit.period(), anchor)),
        _ => None,
    }
}
