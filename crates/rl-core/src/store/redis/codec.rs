//! Between policies and bytes: what a script is told. No I/O. What it replies: `reply.rs`.

use std::fmt::Write;

use smallvec::SmallVec;

use crate::algorithm;
use crate::model::{Algorithm, Anchor, LimitSet, Mode, Refill};
use crate::store::{Refund, Renewal, StoreError};
use crate::time::Timestamp;
use crate::{Cost, FailureKind, Limit, Period, Policy};

/// The version of the packed state, its first byte.
pub(super) const VERSION: u8 = 2;

/// Which states a policy counts in, and in how many bytes: what `slots.lua` calls the shape.
pub(super) fn shape(policy: &Policy) -> Vec<u8> {
    let mut shape = Vec::with_capacity(3 + 13 * policy.limits().len());
    shape.extend([VERSION, width(policy)]);
    match named_set(policy) {
        Some(set) => shape.push(set),
        None => {
            let count = u8::try_from(policy.limits().len());
            shape.push(0x80 | count.expect("a policy has at most 16 limits"));
            policy.limits().iter().for_each(|limit| push_tag(&mut shape, limit.limit()));
        }
    }
    shape
}

/// The bytes of a count in a state that has short ones: as many as hold what passes.
fn width(policy: &Policy) -> u8 {
    let is_short = |limit: &Limit| is_window(*limit) || is_counter(*limit);
    let limits = policy.limits().iter().map(|named| named.limit()).filter(is_short);
    bytes_of(limits.map(Limit::max).max().unwrap_or_default())
}

/// How many bytes hold the number.
fn bytes_of(number: u64) -> u8 {
    let bits = u64::BITS - number.leading_zeros();
    u8::try_from(bits.div_ceil(8).max(1)).expect("a number has at most 8 bytes")
}

const fn is_window(limit: Limit) -> bool {
    matches!(limit.algorithm(), Algorithm::FixedWindow { anchor: Anchor::FirstRequest })
}

const fn is_counter(limit: Limit) -> bool {
    matches!(limit.algorithm(), Algorithm::SlidingWindowCounter)
}

/// All limits in a byte, if they are of named periods, and all such windows or all such counters.
fn named_set(policy: &Policy) -> Option<u8> {
    let limits = || policy.limits().iter().map(|named| named.limit());
    let kind = match limits().all(is_window) {
        true => 0,
        false if limits().all(is_counter) => 0x40,
        false => return None,
    };
    limits().try_fold(kind, |set, limit| Some(set | 1 << limit.period().named_index()?))
}

/// The places of a policy's limits, in the order in which scripts know them: their own, but where the
/// shape has no tags that of their periods.
pub(super) fn places(policy: &Policy) -> SmallVec<[usize; 6]> {
    let mut places: SmallVec<[usize; 6]> = (0..policy.limits().len()).collect();
    let periods = policy.limits().iter().map(|named| named.limit().period());
    if !periods.is_sorted() && named_set(policy).is_some() {
        places.sort_unstable_by_key(|place| policy.limits()[*place].limit().period());
    }
    places
}

/// The limits in that order.
pub(super) fn in_order(policy: &Policy) -> impl Iterator<Item = Limit> {
    places(policy).into_iter().map(|place| policy.limits()[place].limit())
}

/// How long the shape of a policy is.
pub(super) fn shape_len(policy: &Policy) -> usize {
    shape(policy).len()
}

/// The bytes of what is left of a fixed window in a stored state.
pub(super) fn window_bytes(limit: Limit) -> usize {
    bytes_of(limit.period().as_micros()).into()
}

/// The bytes of the age of a sliding window counter in a stored state.
fn counter_bytes(limit: Limit) -> u8 {
    bytes_of(2 * limit.period().as_micros())
}

/// How `struct` reads and writes a state of the policy: its shape, the time, and the cells.
pub(super) fn format(policy: &Policy) -> Vec<u8> {
    let (head, width) = (shape_len(policy), width(policy));
    let mut format = format!(">c{head}I7");
    for limit in in_order(policy) {
        let _ = match limit.algorithm() {
            _ if is_window(limit) => write!(format, "I{}I{width}", window_bytes(limit)),
            Algorithm::SlidingWindowCounter => {
                write!(format, "I{}I{width}I{width}", counter_bytes(limit))
            }
            _ => write!(format, "{}", "I7".repeat(algorithm::stored_cells(limit))),
        };
    }
    format.into_bytes()
}

/// How long a state of a policy is that [is all fixed windows](is_all_fixed).
fn state_len(policy: &Policy) -> usize {
    let width = usize::from(width(policy));
    let windows = policy.limits().iter().map(|named| window_bytes(named.limit()) + width);
    shape_len(policy) + 7 + windows.sum::<usize>()
}

/// Which state a limit counts in.
fn push_tag(shape: &mut Vec<u8>, limit: Limit) {
    let algorithm = match limit.algorithm() {
        Algorithm::FixedWindow { anchor: Anchor::FirstRequest } => 0x00,
        Algorithm::FixedWindow { anchor: Anchor::Clock } => 0x10,
        Algorithm::SlidingWindowCounter => 0x20,
        Algorithm::SlidingWindow { .. } => 0x30,
        Algorithm::Gcra { .. } => 0x40,
        Algorithm::TokenBucket { refill: Refill::Greedy, .. } => 0x50,
        Algorithm::TokenBucket { refill: Refill::Interval, .. } => 0x60,
        Algorithm::SlidingLog | Algorithm::Concurrency => 0x70,
    };
    let place = (1..).zip(Period::NAMED).find(|(_, named)| *named == limit.period());
    match place {
        Some((place, _)) => shape.push(algorithm | place),
        None => {
            shape.push(0x80 | algorithm);
            push_u48(shape, limit.period().as_millis());
        }
    }
    match limit.algorithm() {
        Algorithm::SlidingWindow { precision } => push_u48(shape, precision.as_millis()),
        Algorithm::SlidingLog => shape.push(0),
        Algorithm::Concurrency => shape.push(1),
        _ => {}
    }
}

/// Whether all limits are fixed windows that begin with the first request: what decide_fixed.lua
/// decides, for many subjects at once.
pub(super) fn is_all_fixed(policy: &Policy) -> bool {
    let mut limits = policy.limits().iter().map(|named| named.limit());
    limits.all(|limit| is_window(limit) && !has_mark(limit))
}

/// The argument of `decide.lua`, for so many calls that came one after the other.
pub(super) fn decide_plan(policy: &Policy, mode: Mode, cost: Cost, calls: u16) -> Vec<u8> {
    let all_fixed = is_all_fixed(policy);
    let count = u8::try_from(policy.limits().len()).expect("a policy has at most 16 limits");

    let mut plan = Vec::with_capacity(15 + 14 * policy.limits().len());
    plan.push(mode_byte(mode));
    plan.push(if all_fixed { count } else { 0 });
    push_u56(&mut plan, cost.units());
    plan.extend_from_slice(&calls.to_be_bytes());
    if all_fixed {
        let len =
            u16::try_from(state_len(policy)).expect("sixteen windows are a few hundred bytes");
        plan.extend_from_slice(&len.to_be_bytes());
    } else {
        push_marks(&mut plan, in_order(policy));
    }
    for limit in in_order(policy) {
        // decide_fixed.lua does not read the tags, so it is told the periods.
        if all_fixed {
            push_u56(&mut plan, limit.period().as_micros());
        }
        push_u56(&mut plan, limit.max());
        if !all_fixed {
            push_u56(&mut plan, limit.capacity());
        }
    }
    plan
}

/// The argument of `decide.lua` that names the cost of each call, for a plan of 0 calls.
pub(super) fn costs(costs: &[Cost]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(7 * costs.len());
    costs.iter().for_each(|cost| push_u56(&mut bytes, cost.units()));
    bytes
}

/// The argument of `amend.lua` that gives units back.
pub(super) fn refund_plan(refund: &Refund<'_>) -> Vec<u8> {
    amend_plan(refund.policy, 0, refund.charged, |place| refund.units_of(place))
}

/// The argument of `amend.lua` that begins leases anew.
pub(super) fn renew_plan(renewal: &Renewal<'_>) -> Vec<u8> {
    let refund = renewal.as_refund();
    amend_plan(refund.policy, 1, refund.charged, |place| refund.units_of(place))
}

/// The argument of `amend.lua` that forgets the limit at this place.
pub(super) fn forget_plan(policy: &Policy, place: usize) -> Vec<u8> {
    amend_plan(policy, 2, Timestamp::EPOCH, |at| u64::from(at == place))
}

fn amend_plan(
    policy: &Policy,
    task: u8,
    charged: Timestamp,
    units: impl Fn(usize) -> u64,
) -> Vec<u8> {
    let mut plan = Vec::with_capacity(8 + 14 * policy.limits().len());
    plan.push(task);
    push_u56(&mut plan, charged.as_micros());
    for place in places(policy) {
        push_u56(&mut plan, units(place));
        push_u56(&mut plan, policy.limits()[place].limit().max());
    }
    plan
}

/// What a renewal replied: since when the units count, or nothing.
pub(super) fn read_renewed(bytes: &[u8]) -> Result<Option<Timestamp>, StoreError> {
    match bytes {
        [] => Ok(None),
        bytes => match bytes.try_into() {
            Ok(bytes) => Ok(Some(Timestamp::from_micros(read_u56(bytes)))),
            Err(_) => Err(StoreError::new(FailureKind::Protocol)
                .with_detail(format!("a script replied {} bytes for a time", bytes.len()))),
        },
    }
}

/// The argument of `readable_counters.lua`.
pub(super) fn readable_periods(policy: &Policy) -> Vec<u8> {
    let mut periods = Vec::with_capacity(7 * policy.limits().len());
    for limit in in_order(policy) {
        push_u56(&mut periods, limit.period().as_millis());
    }
    periods
}

/// The argument of `readable.lua`.
pub(super) fn readable_plan(policy: &Policy, mode: Mode, cost: Cost) -> Vec<u8> {
    let mut plan = Vec::with_capacity(12 + 7 * policy.limits().len());
    plan.push(mode_byte(mode));
    push_u56(&mut plan, cost.units());
    push_marks(&mut plan, in_order(policy));
    for limit in in_order(policy) {
        push_u56(&mut plan, limit.max());
    }
    plan
}

/// The argument of `readable_refund.lua`.
pub(super) fn readable_refund_plan(refund: &Refund<'_>) -> Vec<u8> {
    let mut plan = Vec::with_capacity(7 + 7 * refund.policy.limits().len());
    push_u56(&mut plan, refund.charged.as_micros());
    for place in places(refund.policy) {
        push_u56(&mut plan, refund.units_of(place));
    }
    plan
}

const fn has_mark(limit: Limit) -> bool {
    limit.is_shadow() || limit.counts_requests()
}

/// Which limits are in shadow, and which count requests.
fn push_marks(plan: &mut Vec<u8>, limits: impl Iterator<Item = Limit>) {
    let limits: SmallVec<[Limit; 6]> = limits.collect();
    for mark in [Limit::is_shadow, Limit::counts_requests] {
        let limits = limits.iter().enumerate();
        let marked = limits.filter(|(_, limit)| mark(**limit)).map(|(place, _)| place);
        plan.extend_from_slice(&marked.collect::<LimitSet>().bits().to_be_bytes());
    }
}

fn mode_byte(mode: Mode) -> u8 {
    match mode {
        Mode::Check => 0,
        Mode::CheckUpTo => 1,
        Mode::Peek => 2,
        Mode::Charge => 3,
    }
}

/// Six bytes hold every period in milliseconds.
fn push_u48(bytes: &mut Vec<u8>, number: u64) {
    bytes.extend_from_slice(&number.to_be_bytes()[2..]);
}

/// Seven bytes hold every number that Lua holds exactly, and one above.
pub(super) fn push_u56(bytes: &mut Vec<u8>, number: u64) {
    bytes.extend_from_slice(&number.to_be_bytes()[1..]);
}

pub(super) fn read_u56(number: [u8; 7]) -> u64 {
    let mut bytes = [0; 8];
    bytes[1..].copy_from_slice(&number);
    u64::from_be_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Subject;
    use crate::store::{Namespace, RefundOf};

    #[test]
    fn arguments_have_the_length_that_the_scripts_expect() {
        let limits = (0..16).map(|n| {
            let period = Period::from_millis(1_001 + n).unwrap();
            let limit = Limit::new(9, period).unwrap();
            let precision = Period::from_millis(100).unwrap();
            limit.counted_by(Algorithm::SlidingWindow { precision }).unwrap()
        });
        let policy = Policy::new(limits).unwrap();
        assert_eq!(shape(&policy).len(), 3 + 16 * 13);
        assert_eq!(decide_plan(&policy, Mode::Check, Cost::from(u64::MAX), 1).len(), 15 + 16 * 14);
        assert_eq!(forget_plan(&policy, 15).len(), 8 + 16 * 14);
        let fixed = Policy::new([Limit::per_day(256), Limit::per_second(1)]).unwrap();
        let plan = decide_plan(&fixed, Mode::Check, Cost::ONE, 1);
        assert_eq!((plan.len(), &plan[11..13]), (13 + 2 * 14, &[0, 3 + 7 + 5 + 7][..]));
        assert_eq!(format(&fixed), b">c3I7I3I2I5I2");
    }

    #[test]
    fn the_shape_names_states_and_not_their_size() {
        let shape_of = |text: &str| shape(&Policy::new([text.parse().unwrap()]).unwrap());
        assert_eq!(shape_of("1/second")[..], [2, 1, 0x01]);
        assert_eq!(shape_of("256/month")[..], [2, 2, 0x20]);
        assert_eq!(shape_of("255/minute:sliding-window-counter")[..], [2, 1, 0x42]);
        assert_eq!(shape_of("9/month:clock")[..], [2, 1, 0x81, 0x16]);
        assert_eq!(shape_of("1/1000ms"), shape_of("200/second"));
        assert_eq!(shape_of("1/258ms")[..], [2, 1, 0x81, 0x80, 0, 0, 0, 0, 1, 2]);
        assert_eq!(shape_of("1/258ms:clock")[..], [2, 1, 0x81, 0x90, 0, 0, 0, 0, 1, 2]);
        assert_eq!(shape_of("1/minute:sliding-log")[..], [2, 1, 0x81, 0x72, 0]);
        assert_eq!(shape_of("1:concurrency:lease=minute")[..], [2, 1, 0x81, 0x72, 1]);
        let of_258_ms = shape_of("1:concurrency:lease=258ms");
        assert_eq!(of_258_ms[..], [2, 1, 0x81, 0xf0, 0, 0, 0, 0, 1, 2, 1]);
        let mixed = ["9/hour", "9/day:clock"].map(|text| text.parse().unwrap());
        assert_eq!(shape(&Policy::new(mixed).unwrap())[..], [2, 1, 0x82, 0x03, 0x14]);
    }

    #[test]
    fn windows_of_named_periods_have_one_order_whatever_the_policy_s() {
        let places_of = |limits: [&str; 3]| {
            let policy = Policy::new(limits.map(|text| text.parse().unwrap())).unwrap();
            (shape(&policy), places(&policy).to_vec())
        };
        let (shape, places) = places_of(["9/minute", "9/day", "9/second"]);
        assert_eq!((&shape[2..], &places[..]), (&[0b1011][..], &[2, 0, 1][..]));
        assert_eq!(places_of(["9/second", "9/minute", "9/day"]), (shape, vec![0, 1, 2]));
        let (_, places) = places_of(["9/minute", "9/day", "9/1500ms"]);
        assert_eq!(places, [0, 1, 2], "by their tags");
    }

    #[test]
    fn units_go_to_the_limits_that_are_meant() {
        let limits = ["5/second", "5:concurrency"].map(|text| text.parse().unwrap());
        let policy = Policy::new(limits).unwrap();
        let units = |plan: Vec<u8>| [plan[8 + 6], plan[8 + 14 + 6]];
        let (namespace, subject) = (&Namespace::default(), &Subject::global());
        let refund = Refund {
            namespace,
            subject,
            policy: &policy,
            charged: Timestamp::EPOCH,
            units: 3,
            of: RefundOf::All,
            uncharged: LimitSet::EMPTY,
        };
        let renewal = Renewal {
            namespace,
            subject,
            policy: &policy,
            charged: Timestamp::EPOCH,
            units: 3,
            uncharged: LimitSet::EMPTY,
        };
        assert_eq!(units(renew_plan(&renewal)), [0, 3]);
        let refunded = |of| units(refund_plan(&Refund { of, ..refund }));
        assert_eq!(refunded(RefundOf::All), [3, 3]);
        assert_eq!(refunded(RefundOf::Rates), [3, 0]);
        assert_eq!(refunded(RefundOf::Permits), [0, 3]);
        let uncharged = LimitSet::from_iter([1]);
        assert_eq!(units(refund_plan(&Refund { uncharged, ..refund })), [3, 0]);
        assert_eq!(units(forget_plan(&policy, 1)), [0, 1]);
    }

    #[test]
    fn a_renewal_is_a_time_or_nothing() {
        assert_eq!(read_renewed(b"").unwrap(), None);
        let time = Timestamp::from_micros(258);
        assert_eq!(read_renewed(&[0, 0, 0, 0, 0, 1, 2]).unwrap(), Some(time));
        assert_eq!(read_renewed(&[0; 8]).unwrap_err().kind(), FailureKind::Protocol);
    }
}
