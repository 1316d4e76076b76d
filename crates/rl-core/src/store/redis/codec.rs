//! Between policies and bytes: what a script is told, and what it replies. No I/O.

use arrayvec::ArrayVec;

use crate::algorithm::{Mode, State};
use crate::model::{Algorithm, Anchor};
use crate::store::StoreError;
use crate::time::Timestamp;
use crate::{Cost, FailureKind, Limit, Period, Policy};

/// The version of the packed state, its first byte.
const VERSION: u8 = 1;

/// Which states a policy counts in, whatever its limits' `max`: what `slots.lua` calls the shape.
pub(super) fn shape(policy: &Policy) -> Vec<u8> {
    let mut shape = Vec::with_capacity(2 + 7 * policy.limits().len());
    shape.push(VERSION);
    shape.push(u8::try_from(policy.limits().len()).expect("a policy has at most 16 limits"));
    for limit in policy.limits() {
        let limit = limit.limit();
        let Algorithm::FixedWindow { anchor } = limit.algorithm();
        let anchor = match anchor {
            Anchor::FirstRequest => 0,
            Anchor::Clock => 0x10,
        };
        let place = (1..).zip(Period::NAMED).find(|(_, named)| *named == limit.period());
        match place {
            Some((place, _)) => shape.push(anchor | place),
            None => {
                shape.push(0x80 | anchor);
                shape.extend_from_slice(&limit.period().as_millis().to_be_bytes()[2..]);
            }
        }
    }
    shape
}

/// The argument of `decide.lua`.
pub(super) fn decide_plan(policy: &Policy, mode: Mode, cost: Cost) -> Vec<u8> {
    let mut plan = Vec::with_capacity(15 + 15 * policy.limits().len());
    plan.push(mode_byte(mode));
    push_u56(&mut plan, cost.units());
    for limit in policy.limits() {
        push_window(&mut plan, limit.limit());
        push_u56(&mut plan, limit.limit().max());
    }
    plan
}

/// The argument of `amend.lua`: `forget` is the place of a limit to forget, from 0.
pub(super) fn amend_plan(
    policy: &Policy,
    units: u64,
    charged: Timestamp,
    forget: Option<usize>,
) -> Vec<u8> {
    let mut plan = Vec::with_capacity(15 + 15 * policy.limits().len());
    push_u56(&mut plan, units);
    push_u56(&mut plan, charged.as_micros());
    plan.push(forget.and_then(|place| u8::try_from(place + 1).ok()).unwrap_or(0));
    for limit in policy.limits() {
        push_window(&mut plan, limit.limit());
    }
    plan
}

/// The argument of `readable.lua`.
pub(super) fn readable_plan(policy: &Policy, mode: Mode, cost: Cost) -> Vec<u8> {
    let mut plan = Vec::with_capacity(15 + 15 * policy.limits().len());
    plan.push(mode_byte(mode));
    push_u56(&mut plan, cost.units());
    for limit in policy.limits() {
        push_u56(&mut plan, limit.limit().period().as_millis());
        push_u56(&mut plan, limit.limit().max());
    }
    plan
}

/// The argument of `readable_refund.lua`.
pub(super) fn readable_refund_plan(policy: &Policy, units: u64, charged: Timestamp) -> Vec<u8> {
    let mut plan = Vec::with_capacity(15 + 15 * policy.limits().len());
    push_u56(&mut plan, units);
    push_u56(&mut plan, charged.as_micros());
    for limit in policy.limits() {
        push_u56(&mut plan, limit.limit().period().as_millis());
    }
    plan
}

/// What a deciding script replied.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Reply {
    /// Counters that had no expiry and were given one.
    pub(super) healed: u64,
    pub(super) taken: u64,
    pub(super) now: Timestamp,
    pub(super) states: ArrayVec<State, { Policy::MAX_LIMITS }>,
}

impl Reply {
    /// Reads the reply for a policy of `count` limits.
    pub(super) fn read(bytes: &[u8], count: usize) -> Result<Self, StoreError> {
        let malformed = || {
            StoreError::new(FailureKind::Protocol)
                .with_detail(format!("a script replied {} bytes for {count} limits", bytes.len()))
        };
        let (&healed, numbers) = bytes.split_first().ok_or_else(malformed)?;
        let (numbers, []) = numbers.as_chunks::<7>() else {
            return Err(malformed());
        };
        let mut numbers = numbers.iter().map(|number| {
            let mut bytes = [0; 8];
            bytes[1..].copy_from_slice(number);
            u64::from_be_bytes(bytes)
        });
        if numbers.len() != 2 + 2 * count || count > Policy::MAX_LIMITS {
            return Err(malformed());
        }
        let mut next = || numbers.next().unwrap_or_default();
        let (taken, now) = (next(), Timestamp::from_micros(next()));
        let states = (0..count)
            .map(|_| State { since: Timestamp::from_micros(next()), used: next() })
            .collect();
        Ok(Self { healed: u64::from(healed), taken, now, states })
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

/// Where a limit's windows begin (`grid` in `fixed_window.lua`), and its period.
fn push_window(plan: &mut Vec<u8>, limit: Limit) {
    let Algorithm::FixedWindow { anchor } = limit.algorithm();
    let grid = match anchor {
        Anchor::FirstRequest => 0,
        Anchor::Clock if limit.period() == Period::MONTH => 3,
        Anchor::Clock if limit.period().as_millis().is_multiple_of(Period::WEEK.as_millis()) => 2,
        Anchor::Clock => 1,
    };
    plan.push(grid);
    push_u56(plan, limit.period().as_micros());
}

/// Seven bytes hold every number that Lua holds exactly, and one above.
fn push_u56(bytes: &mut Vec<u8>, number: u64) {
    bytes.extend_from_slice(&number.to_be_bytes()[1..]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn arguments_have_the_length_that_the_scripts_expect() {
        let limits = (0..16).map(|n| {
            Limit::new(crate::MAX_UNITS, Period::from_millis(1_001 + n).unwrap()).unwrap()
        });
        let policy = Policy::new(limits).unwrap();
        assert_eq!(shape(&policy).len(), 2 + 16 * 7);
        assert_eq!(decide_plan(&policy, Mode::Check, Cost::from(u64::MAX)).len(), 8 + 16 * 15);
        assert_eq!(amend_plan(&policy, 1, Timestamp::EPOCH, Some(15)).len(), 15 + 16 * 8);
    }

    #[test]
    fn the_shape_names_states_and_not_their_size() {
        let shape_of = |text: &str| shape(&Policy::new([text.parse().unwrap()]).unwrap());
        assert_eq!(shape_of("1/second")[..], [1, 1, 0x01]);
        assert_eq!(shape_of("9/month:clock")[..], [1, 1, 0x16]);
        assert_eq!(shape_of("1/1000ms"), shape_of("500/second"));
        assert_eq!(shape_of("1/258ms:clock")[..], [1, 1, 0x90, 0, 0, 0, 0, 1, 2]);
    }

    proptest! {
        #[test]
        fn any_reply_is_read_or_refused(bytes: Vec<u8>, count in 0_usize..40) {
            if let Ok(reply) = Reply::read(&bytes, count) {
                prop_assert_eq!(bytes.len(), 15 + 14 * count);
                prop_assert_eq!(reply.states.len(), count);
            }
        }
    }
}
