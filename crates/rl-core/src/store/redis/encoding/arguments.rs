//! Encodes the arguments of the scripts. Decodes the replies that are not decisions.
//!
//! Numbers are big-endian. Most have seven bytes, which hold every integer that Lua represents
//! exactly.

use std::time::Duration;

use smallvec::SmallVec;

use super::kind::Kind;
use super::policy::PolicyEncoding;
use crate::algorithm::fixed_window::Alignment;
use crate::model::{Algorithm, Cost, FailureKind, Limit, MAX_UNITS, StoreError};
use crate::policy::{LimitSet, Policy};
use crate::store::redis::layer::{AmendOperation, Amendment, ChangedUnits, HeldReservation};
use crate::store::{LeaseStatus, Mode};
use crate::time::Timestamp;

/// Returns the plan of `decide.lua` for `calls` calls, each with the cost `cost`. If fewer than
/// `least` of them would be allowed, the script allows none. If `calls` is 0, the costs differ, and
/// are in an argument of their own.
pub(crate) fn packed_plan(
    policy: &Policy,
    encoding: &PolicyEncoding,
    mode: Mode,
    cost: Cost,
    calls: u16,
    least: u16,
) -> Vec<u8> {
    let mut plan = Vec::with_capacity(18 + 21 * policy.limits().len());
    push_plan_head(&mut plan, policy, encoding, mode, [calls, least]);
    push_plan_rest(&mut plan, policy, encoding, cost);
    plan
}

/// Appends the argument of `parts_arguments.lua` for one part.
pub(crate) fn push_part(
    bytes: &mut Vec<u8>,
    policy: &Policy,
    encoding: &PolicyEncoding,
    mode: Mode,
    cost: Cost,
) {
    push_plan_head(bytes, policy, encoding, mode, [1, 1]);
    for text in [&encoding.shape, &encoding.format] {
        let length = u16::try_from(text.len()).expect("a shape and a format are short");
        bytes.extend_from_slice(&length.to_be_bytes());
        bytes.extend_from_slice(text);
    }
    push_plan_rest(bytes, policy, encoding, cost);
}

/// Appends the first nine bytes of the plan of `decide.lua`. `calls` are the number of calls, and
/// the least number that must be allowed.
fn push_plan_head(
    plan: &mut Vec<u8>,
    policy: &Policy,
    encoding: &PolicyEncoding,
    mode: Mode,
    calls: [u16; 2],
) {
    plan.push(mode_byte(mode));
    push_marks(plan, encoding.limits(policy));
    for number in calls {
        plan.extend_from_slice(&number.to_be_bytes());
    }
}

/// Appends the rest of the plan of `decide.lua`.
fn push_plan_rest(plan: &mut Vec<u8>, policy: &Policy, encoding: &PolicyEncoding, cost: Cost) {
    push_u56(plan, cost.units());
    plan.extend_from_slice(&encoding.state_len.to_be_bytes());
    push_constants(plan, policy, encoding);
}

/// Changes a plan of a check or a refund into one for several subjects.
pub(crate) fn of_several_subjects(mut plan: Vec<u8>) -> Vec<u8> {
    const SEVERAL: u8 = 4;
    plan[0] = SEVERAL;
    plan
}

/// Returns the argument of `decide.lua` that lists the cost of each check. The plan then has 0 as
/// the number of checks.
pub(crate) fn costs(costs: &[Cost]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(7 * costs.len());
    costs.iter().for_each(|cost| push_u56(&mut bytes, cost.units()));
    bytes
}

/// Returns the plan of `change.lua` for an amendment.
pub(crate) fn change_plan(amendment: &Amendment, encoding: &PolicyEncoding) -> Vec<u8> {
    let Amendment { policy, charged, leased, units, .. } = amendment;
    let operation = u8::from(matches!(amendment.operation, AmendOperation::Renew));
    plan_of_change(policy, encoding, operation, [*charged, *leased], |place| units[place])
}

/// Returns the plan of `change.lua` that resets the limit at this index.
pub(crate) fn forget_plan(policy: &Policy, encoding: &PolicyEncoding, place: usize) -> Vec<u8> {
    const RESET: u8 = 2;
    let units = |at| ChangedUnits { refunded: u64::from(at == place), added: 0 };
    plan_of_change(policy, encoding, RESET, [Timestamp::EPOCH; 2], units)
}

fn plan_of_change(
    policy: &Policy,
    encoding: &PolicyEncoding,
    operation: u8,
    times: [Timestamp; 2],
    units: impl Fn(usize) -> ChangedUnits,
) -> Vec<u8> {
    let mut plan = Vec::with_capacity(15 + 35 * encoding.order.len());
    plan.push(operation);
    times.iter().for_each(|time| push_u56(&mut plan, time.as_micros()));
    push_units(&mut plan, encoding, units);
    push_constants(&mut plan, policy, encoding);
    plan
}

/// Returns the plan of `readable_change.lua`.
pub(crate) fn readable_change_plan(amendment: &Amendment, encoding: &PolicyEncoding) -> Vec<u8> {
    let mut plan = Vec::with_capacity(7 + 14 * encoding.order.len());
    push_u56(&mut plan, amendment.charged.as_micros());
    push_units(&mut plan, encoding, |place| amendment.units[place]);
    plan
}

/// Appends for each limit the units to refund, and the further units to charge.
fn push_units(
    plan: &mut Vec<u8>,
    encoding: &PolicyEncoding,
    units: impl Fn(usize) -> ChangedUnits,
) {
    for &place in &encoding.order {
        let ChangedUnits { refunded, added } = units(place);
        push_u56(plan, refunded);
        push_u56(plan, added);
    }
}

/// Returns the argument of `refund_shape.lua` that lists the charges of several subjects, under one
/// policy.
pub(crate) fn refund_charges(refunds: &[&Amendment], encoding: &PolicyEncoding) -> Vec<u8> {
    let mut charges = Vec::with_capacity(7 * (1 + encoding.order.len()) * refunds.len());
    for Amendment { charged, units, .. } in refunds {
        push_u56(&mut charges, charged.as_micros());
        encoding.order.iter().for_each(|place| push_u56(&mut charges, units[*place].refunded));
    }
    charges
}

/// Appends the constants of each limit, in the order in which its file in `scripts/algorithms/`
/// lists them.
fn push_constants(plan: &mut Vec<u8>, policy: &Policy, encoding: &PolicyEncoding) {
    for (limit, stored) in encoding.limits(policy).zip(&encoding.stored) {
        push_u56(plan, stored.period);
        push_u56(plan, limit.max());
        match stored.kind {
            Kind::SlidingWindow => push_u56(plan, stored.precision),
            Kind::Gcra | Kind::IntervalBucket => push_u56(plan, limit.capacity()),
            Kind::ClockWindow | Kind::MonthWindow => push_u56(plan, alignment(limit)),
            Kind::FixedWindow => {}
            Kind::WindowCounter | Kind::SlidingLog | Kind::Concurrency => {}
        }
    }
}

/// Returns the constant `alignment` of `clock_window.lua`.
fn alignment(limit: Limit) -> u64 {
    match limit.algorithm() {
        Algorithm::FixedWindow { anchor } => Alignment::new(limit.period(), anchor).constant(),
        _ => 0,
    }
}

/// Returns the argument of `reserve.lua` and `reservation.lua` with the lifetime of a reservation
/// in µs, or 0 without one.
pub(crate) fn lifetime(lifetime: Option<Duration>) -> Vec<u8> {
    let micros = lifetime.map_or(0, |lifetime| lifetime.as_micros());
    let mut bytes = Vec::with_capacity(7);
    push_u56(&mut bytes, u64::try_from(micros).unwrap_or(MAX_UNITS).min(MAX_UNITS));
    bytes
}

/// Returns the member of the sorted set that `reserve.lua` added for a reservation of the charge at
/// the time `charged`.
pub(crate) fn reservation(
    charged: Timestamp,
    held: &HeldReservation,
    encoding: &PolicyEncoding,
) -> Vec<u8> {
    let uncharged = encoding.order.iter().enumerate();
    let uncharged = uncharged.filter(|(_, place)| held.uncharged.contains(**place));
    let uncharged: LimitSet = uncharged.map(|(index, _)| index).collect();
    let mut member = Vec::with_capacity(16 + encoding.shape.len());
    push_u56(&mut member, charged.as_micros());
    push_u56(&mut member, held.units);
    member.extend_from_slice(&uncharged.bits().to_be_bytes());
    // The shape without its first two bytes, which are the version and the width.
    member.extend_from_slice(&encoding.shape[2..]);
    member
}

/// Returns the argument of `reservation.lua` with the time at which a reservation expires, in µs.
pub(crate) fn expires(held: &HeldReservation) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(7);
    push_u56(&mut bytes, held.expires.as_micros().min(MAX_UNITS));
    bytes
}

/// Decodes the status of a reservation after a change. `expires` is the time at which it expires if
/// the change has not renewed it.
pub(crate) fn read_lease_status(
    bytes: &[u8],
    expires: Timestamp,
) -> Result<LeaseStatus<Timestamp>, StoreError> {
    match bytes {
        [0] => Ok(LeaseStatus::Forgotten),
        [1] => Ok(LeaseStatus::Expired),
        bytes => Ok(LeaseStatus::Held(read_renewed(bytes)?.unwrap_or(expires))),
    }
}

/// Decodes the reply of a renewal: the time from which the units count, or `None` if the permit is
/// lost.
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

/// Returns the argument of `lib/readable_counters.lua`.
pub(crate) fn readable_periods(policy: &Policy, encoding: &PolicyEncoding) -> Vec<u8> {
    let mut periods = Vec::with_capacity(7 * policy.limits().len());
    for limit in encoding.limits(policy) {
        push_u56(&mut periods, limit.period().as_millis());
    }
    periods
}

/// Returns the plan of `readable.lua`.
pub(crate) fn readable_plan(
    policy: &Policy,
    encoding: &PolicyEncoding,
    mode: Mode,
    cost: Cost,
) -> Vec<u8> {
    let mut plan = Vec::with_capacity(12 + 7 * policy.limits().len());
    plan.push(mode_byte(mode));
    push_marks(&mut plan, encoding.limits(policy));
    push_u56(&mut plan, cost.units());
    for limit in encoding.limits(policy) {
        push_u56(&mut plan, limit.max());
    }
    plan
}

/// Appends the set of limits in shadow and the set of limits that count requests.
fn push_marks(plan: &mut Vec<u8>, limits: impl Iterator<Item = Limit>) {
    let limits: SmallVec<[Limit; 6]> = limits.collect();
    for is_marked in [Limit::is_shadow, Limit::counts_requests] {
        let limits = limits.iter().enumerate();
        let marked = limits.filter(|(_, limit)| is_marked(**limit)).map(|(place, _)| place);
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

/// Appends a number as seven bytes.
pub(crate) fn push_u56(bytes: &mut Vec<u8>, number: u64) {
    bytes.extend_from_slice(&number.to_be_bytes()[1..]);
}

/// Reads a number of seven bytes.
pub(super) fn read_u56(number: [u8; 7]) -> u64 {
    let mut bytes = [0; 8];
    bytes[1..].copy_from_slice(&number);
    u64::from_be_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Algorithm, Period, Subject};
    use crate::store::redis::test_layer::keyed;
    use crate::store::{Lease, Namespace, Refund, RefundOf, Renewal};

    #[test]
    fn arguments_have_the_length_that_the_scripts_expect() {
        let limits = (0..16).map(|n| {
            let period = Period::from_millis(1_001 + n).unwrap();
            let limit = Limit::new(9, period).unwrap();
            let precision = Period::from_millis(100).unwrap();
            limit.with_algorithm(Algorithm::SlidingWindow { precision }).unwrap()
        });
        let policy = Policy::new(limits).unwrap();
        let encoding = PolicyEncoding::new(&policy);
        assert_eq!(encoding.shape.len(), 3 + 16 * 13);
        assert_eq!(
            packed_plan(&policy, &encoding, Mode::Check, Cost::from(u64::MAX), 1, 1).len(),
            18 + 16 * 21
        );
        assert_eq!(forget_plan(&policy, &encoding, 15).len(), 15 + 16 * 35);
        let fixed = Policy::new([Limit::per_day(256), Limit::per_second(1)]).unwrap();
        let encoding = PolicyEncoding::new(&fixed);
        let plan = packed_plan(&fixed, &encoding, Mode::Check, Cost::ONE, 1, 1);
        assert_eq!((plan.len(), &plan[16..18]), (18 + 2 * 14, &[0, 3 + 7 + 5 + 7][..]));
        assert_eq!(encoding.format, b">c3I7I3I2I5I2");
    }

    #[test]
    fn plans_of_changes_name_units_for_the_limits_in_scope_only() {
        let limits = ["5/second", "5:concurrency"].map(|text| text.parse().unwrap());
        let policy = Policy::new(limits).unwrap();
        let encoding = PolicyEncoding::new(&policy);
        let units = |plan: Vec<u8>| [plan[15 + 6], plan[15 + 14 + 6]];
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
            lease: Lease::Permits,
        };
        let keyed = || keyed(namespace, subject);
        let renewal = Amendment::renewal(keyed(), &renewal);
        assert_eq!(units(change_plan(&renewal, &encoding)), [0, 3]);
        let plan = |refund| change_plan(&Amendment::refund(keyed(), &refund), &encoding);
        let refunded = |of| units(plan(Refund { of, ..refund }));
        assert_eq!(refunded(RefundOf::All), [3, 3]);
        assert_eq!(refunded(RefundOf::Rates), [3, 0]);
        assert_eq!(refunded(RefundOf::Permits), [0, 3]);
        let uncharged = LimitSet::from_iter([1]);
        assert_eq!(units(plan(Refund { uncharged, ..refund })), [3, 0]);
        assert_eq!(units(forget_plan(&policy, &encoding, 1)), [0, 1]);
    }

    #[test]
    fn renewals_reply_a_time_or_nothing() {
        assert_eq!(read_renewed(b"").unwrap(), None);
        let time = Timestamp::from_micros(258);
        assert_eq!(read_renewed(&[0, 0, 0, 0, 0, 1, 2]).unwrap(), Some(time));
        assert_eq!(read_renewed(&[0; 8]).unwrap_err().kind(), FailureKind::Protocol);
    }
}
