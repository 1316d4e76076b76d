//! Between policies and bytes: what a script is told. No I/O. What it replies: `reply.rs`.

use std::time::Duration;

use smallvec::SmallVec;

use crate::model::StoreError;
use crate::model::{Cost, FailureKind, Limit};
use crate::model::{MAX_UNITS, Mode};
use crate::policy::LimitSet;
use crate::policy::Policy;
use crate::store::redis::encoding::policy::coded;
use crate::store::{Refund, Renewal, Reservation, ReservationStatus};
use crate::time::Timestamp;

/// Returns the argument of `decide.lua` for `calls` calls, one after the other. If fewer than `least` of
/// them would pass, none does.
pub(crate) fn decide_plan(
    policy: &Policy,
    mode: Mode,
    cost: Cost,
    calls: u16,
    least: u16,
) -> Vec<u8> {
    let coded = coded(policy);
    let all_fixed = coded.is_all_fixed;
    let count = u8::try_from(policy.limits().len()).expect("a policy has at most 16 limits");

    let mut plan = Vec::with_capacity(17 + 14 * policy.limits().len());
    plan.push(mode_byte(mode));
    plan.push(if all_fixed { count } else { 0 });
    push_u56(&mut plan, cost.units());
    plan.extend_from_slice(&calls.to_be_bytes());
    if all_fixed {
        plan.extend_from_slice(&coded.state_len.to_be_bytes());
    } else {
        push_marks(&mut plan, coded.in_order(policy));
    }
    for limit in coded.in_order(policy) {
        // decide_fixed.lua does not read the tags, so it is told the periods.
        if all_fixed {
            push_u56(&mut plan, limit.period().as_micros());
        }
        push_u56(&mut plan, limit.max());
        if !all_fixed {
            push_u56(&mut plan, limit.capacity());
        }
    }
    if least > 1 {
        plan.extend_from_slice(&least.to_be_bytes());
    }
    plan
}

/// The argument of `decide.lua` that names the cost of each call, for a plan of 0 calls.
pub(crate) fn costs(costs: &[Cost]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(7 * costs.len());
    costs.iter().for_each(|cost| push_u56(&mut bytes, cost.units()));
    bytes
}

/// The argument of `amend.lua` that gives units back.
pub(crate) fn refund_plan(refund: &Refund<'_>) -> Vec<u8> {
    amend_plan(refund.policy, 0, refund.charged, |place| refund.units_of(place))
}

/// The argument of `amend.lua` that begins leases anew.
pub(crate) fn renew_plan(renewal: &Renewal<'_>) -> Vec<u8> {
    let refund = renewal.as_refund();
    amend_plan(refund.policy, 1, refund.charged, |place| refund.units_of(place))
}

/// Returns the argument of `amend.lua` that forgets all limits.
pub(crate) fn forget_all_plan() -> Vec<u8> {
    vec![3]
}

/// Returns the argument of `amend.lua` that forgets the limit at this place.
pub(crate) fn forget_plan(policy: &Policy, place: usize) -> Vec<u8> {
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
    for &place in &coded(policy).places {
        push_u56(&mut plan, units(place));
        push_u56(&mut plan, policy.limits()[place].limit().max());
    }
    plan
}

/// Returns the argument of `reserve.lua` and `reservation.lua` that says how long a reservation lasts, in
/// µs; 0 if it does not.
pub(crate) fn lifetime(lifetime: Option<Duration>) -> Vec<u8> {
    let micros = lifetime.map_or(0, |lifetime| lifetime.as_micros());
    let mut bytes = Vec::with_capacity(7);
    push_u56(&mut bytes, u64::try_from(micros).unwrap_or(MAX_UNITS).min(MAX_UNITS));
    bytes
}

/// Returns the member of a reservation, as `reserve.lua` makes it.
pub(crate) fn reservation(reservation: &Reservation<'_>) -> Vec<u8> {
    let coded = coded(reservation.policy);
    let uncharged = coded.places.iter().enumerate();
    let uncharged = uncharged.filter(|(_, place)| reservation.uncharged.contains(**place));
    let uncharged: LimitSet = uncharged.map(|(order, _)| order).collect();
    let mut member = Vec::with_capacity(16 + coded.shape.len());
    push_u56(&mut member, reservation.charged.as_micros());
    push_u56(&mut member, reservation.units);
    member.extend_from_slice(&uncharged.bits().to_be_bytes());
    // Without the version and the width.
    member.extend_from_slice(&coded.shape[2..]);
    member
}

/// Returns the argument of `reservation.lua` that says when a reservation expires, µs.
pub(crate) fn expires(reservation: &Reservation<'_>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(7);
    push_u56(&mut bytes, reservation.expires.as_micros().min(MAX_UNITS));
    bytes
}

/// Reads the status of a reservation that expires at `expires` unless it was renewed.
pub(crate) fn read_changed(
    bytes: &[u8],
    expires: Timestamp,
) -> Result<ReservationStatus, StoreError> {
    match bytes {
        [0] => Ok(ReservationStatus::Forgotten),
        [1] => Ok(ReservationStatus::Expired),
        bytes => {
            let expires = read_renewed(bytes)?.unwrap_or(expires);
            Ok(ReservationStatus::Held { expires })
        }
    }
}

/// What a renewal replied: since when the units count, or nothing.
pub(crate) fn read_renewed(bytes: &[u8]) -> Result<Option<Timestamp>, StoreError> {
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
pub(crate) fn readable_periods(policy: &Policy) -> Vec<u8> {
    let mut periods = Vec::with_capacity(7 * policy.limits().len());
    for limit in coded(policy).in_order(policy) {
        push_u56(&mut periods, limit.period().as_millis());
    }
    periods
}

/// The argument of `readable.lua`.
pub(crate) fn readable_plan(policy: &Policy, mode: Mode, cost: Cost) -> Vec<u8> {
    let mut plan = Vec::with_capacity(12 + 7 * policy.limits().len());
    plan.push(mode_byte(mode));
    push_u56(&mut plan, cost.units());
    push_marks(&mut plan, coded(policy).in_order(policy));
    for limit in coded(policy).in_order(policy) {
        push_u56(&mut plan, limit.max());
    }
    plan
}

/// The argument of `readable_refund.lua`.
pub(crate) fn readable_refund_plan(refund: &Refund<'_>) -> Vec<u8> {
    let mut plan = Vec::with_capacity(7 + 7 * refund.policy.limits().len());
    push_u56(&mut plan, refund.charged.as_micros());
    for &place in &coded(refund.policy).places {
        push_u56(&mut plan, refund.units_of(place));
    }
    plan
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

/// Seven bytes hold every number that Lua holds exactly, and one above.
pub(crate) fn push_u56(bytes: &mut Vec<u8>, number: u64) {
    bytes.extend_from_slice(&number.to_be_bytes()[1..]);
}

pub(crate) fn read_u56(number: [u8; 7]) -> u64 {
    let mut bytes = [0; 8];
    bytes[1..].copy_from_slice(&number);
    u64::from_be_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Algorithm, Period, Subject};
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
        assert_eq!(coded(&policy).shape.len(), 3 + 16 * 13);
        assert_eq!(
            decide_plan(&policy, Mode::Check, Cost::from(u64::MAX), 1, 1).len(),
            15 + 16 * 14
        );
        assert_eq!(forget_plan(&policy, 15).len(), 8 + 16 * 14);
        let fixed = Policy::new([Limit::per_day(256), Limit::per_second(1)]).unwrap();
        let plan = decide_plan(&fixed, Mode::Check, Cost::ONE, 1, 1);
        assert_eq!((plan.len(), &plan[11..13]), (13 + 2 * 14, &[0, 3 + 7 + 5 + 7][..]));
        assert_eq!(coded(&fixed).format, b">c3I7I3I2I5I2");
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
