//! Between policies and bytes: what a script is told, and what it replies. No I/O.

use smallvec::SmallVec;

use crate::algorithm::{self, State};
use crate::model::{Algorithm, Anchor, LimitSet, MAX_UNITS, Mode, Refill};
use crate::store::{Refund, Renewal, StoreError};
use crate::time::Timestamp;
use crate::{Cost, FailureKind, Limit, Period, Policy};

/// The version of the packed state, its first byte.
const VERSION: u8 = 1;

/// Which states a policy counts in, whatever its limits' `max`: what `slots.lua` calls the shape.
pub(super) fn shape(policy: &Policy) -> Vec<u8> {
    let mut shape = Vec::with_capacity(2 + 13 * policy.limits().len());
    shape.push(VERSION);
    shape.push(u8::try_from(policy.limits().len()).expect("a policy has at most 16 limits"));
    for limit in policy.limits() {
        push_tag(&mut shape, limit.limit());
    }
    shape
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

/// The argument of `decide.lua`.
pub(super) fn decide_plan(policy: &Policy, mode: Mode, cost: Cost) -> Vec<u8> {
    const FROM_FIRST_REQUEST: Algorithm = Algorithm::FixedWindow { anchor: Anchor::FirstRequest };
    let limits = || policy.limits().iter().map(|named| named.limit());
    let all_fixed =
        limits().all(|limit| limit.algorithm() == FROM_FIRST_REQUEST && !has_mark(limit));

    let mut plan = Vec::with_capacity(13 + 14 * policy.limits().len());
    plan.push(mode_byte(mode));
    plan.push(u8::from(all_fixed));
    push_u56(&mut plan, cost.units());
    if !all_fixed {
        push_marks(&mut plan, policy);
    }
    for limit in limits() {
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
    for (place, limit) in policy.limits().iter().enumerate() {
        push_u56(&mut plan, units(place));
        push_u56(&mut plan, limit.limit().max());
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
    for limit in policy.limits() {
        push_u56(&mut periods, limit.limit().period().as_millis());
    }
    periods
}

/// The argument of `readable.lua`.
pub(super) fn readable_plan(policy: &Policy, mode: Mode, cost: Cost) -> Vec<u8> {
    let mut plan = Vec::with_capacity(12 + 7 * policy.limits().len());
    plan.push(mode_byte(mode));
    push_u56(&mut plan, cost.units());
    push_marks(&mut plan, policy);
    for limit in policy.limits() {
        push_u56(&mut plan, limit.limit().max());
    }
    plan
}

/// The argument of `readable_refund.lua`.
pub(super) fn readable_refund_plan(refund: &Refund<'_>) -> Vec<u8> {
    let limits = refund.policy.limits().len();
    let mut plan = Vec::with_capacity(7 + 7 * limits);
    push_u56(&mut plan, refund.charged.as_micros());
    for place in 0..limits {
        push_u56(&mut plan, refund.units_of(place));
    }
    plan
}

/// What a deciding script replied.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Reply {
    /// Counters that had no expiry and were given one.
    pub(super) healed: u64,
    /// Limits in shadow that would have denied what was granted.
    pub(super) uncharged: LimitSet,
    pub(super) taken: u64,
    pub(super) now: Timestamp,
    /// The states of the limits afterwards, of logs what is told of them, in the order of the policy.
    pub(super) states: SmallVec<[State; 6]>,
}

impl Reply {
    /// Reads the reply for a policy.
    pub(super) fn read(bytes: &[u8], policy: &Policy) -> Result<Self, StoreError> {
        let malformed = || {
            let limits = policy.limits().len();
            StoreError::new(FailureKind::Protocol)
                .with_detail(format!("a script replied {} bytes for {limits} limits", bytes.len()))
        };
        let (&[healed, uncharged @ ..], numbers) =
            bytes.split_first_chunk::<3>().ok_or_else(malformed)?;
        let (numbers, []) = numbers.as_chunks::<7>() else { return Err(malformed()) };
        let cells = || policy.limits().iter().map(|limit| algorithm::replied_cells(limit.limit()));
        if numbers.len() != 2 + cells().sum::<usize>() {
            return Err(malformed());
        }
        let mut numbers = numbers.iter().copied().map(read_u56);
        // No time and no count that a script replies is larger: with those, nothing overflows.
        if numbers.clone().any(|number| number > MAX_UNITS + 1) {
            return Err(StoreError::new(FailureKind::Protocol)
                .with_detail("a script replied a number beyond 2^53"));
        }
        let taken = numbers.next().unwrap_or_default();
        let now = Timestamp::from_micros(numbers.next().unwrap_or_default());
        let states = cells().map(|cells| State::from_cells(numbers.by_ref().take(cells)));
        let (healed, uncharged) =
            (u64::from(healed), LimitSet::from_bits(u16::from_be_bytes(uncharged)));
        Ok(Self { healed, uncharged, taken, now, states: states.collect() })
    }
}

#[cfg(any(test, feature = "conformance"))]
impl super::RedisStore {
    /// The decision that a server tells with this reply, for those who try to break the reading of
    /// it.
    #[doc(hidden)]
    pub fn decision_of(
        reply: &[u8],
        policy: &Policy,
        mode: Mode,
        cost: Cost,
    ) -> Result<crate::Decision, StoreError> {
        let Reply { uncharged, taken, now, states, .. } = Reply::read(reply, policy)?;
        let limits = policy.limits().iter().zip(&states).enumerate();
        let outcomes = limits.map(|(place, (limit, state))| {
            let needed = algorithm::needed(mode, cost, taken, uncharged.contains(place));
            algorithm::replied_outcome(limit.limit(), state, now, needed)
        });
        Ok(crate::Decision::of(policy.clone(), cost, taken, now, outcomes.collect()))
    }
}

const fn has_mark(limit: Limit) -> bool {
    limit.is_shadow() || limit.counts_requests()
}

/// Which limits are in shadow, and which count requests.
fn push_marks(plan: &mut Vec<u8>, policy: &Policy) {
    for mark in [Limit::is_shadow, Limit::counts_requests] {
        let limits = policy.limits().iter().enumerate();
        let marked = limits.filter(|(_, limit)| mark(limit.limit())).map(|(place, _)| place);
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
fn push_u56(bytes: &mut Vec<u8>, number: u64) {
    bytes.extend_from_slice(&number.to_be_bytes()[1..]);
}

fn read_u56(number: [u8; 7]) -> u64 {
    let mut bytes = [0; 8];
    bytes[1..].copy_from_slice(&number);
    u64::from_be_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Subject;
    use crate::store::{Namespace, RefundOf};
    use proptest::prelude::*;

    #[test]
    fn arguments_have_the_length_that_the_scripts_expect() {
        let limits = (0..16).map(|n| {
            let period = Period::from_millis(1_001 + n).unwrap();
            let limit = Limit::new(9, period).unwrap();
            let precision = Period::from_millis(100).unwrap();
            limit.counted_by(Algorithm::SlidingWindow { precision }).unwrap()
        });
        let policy = Policy::new(limits).unwrap();
        assert_eq!(shape(&policy).len(), 2 + 16 * 13);
        assert_eq!(decide_plan(&policy, Mode::Check, Cost::from(u64::MAX)).len(), 13 + 16 * 14);
        assert_eq!(forget_plan(&policy, 15).len(), 8 + 16 * 14);
        let fixed = Policy::new([Limit::per_second(1), Limit::per_day(1)]).unwrap();
        assert_eq!(decide_plan(&fixed, Mode::Check, Cost::ONE).len(), 9 + 2 * 14);
    }

    #[test]
    fn the_shape_names_states_and_not_their_size() {
        let shape_of = |text: &str| shape(&Policy::new([text.parse().unwrap()]).unwrap());
        assert_eq!(shape_of("1/second")[..], [1, 1, 0x01]);
        assert_eq!(shape_of("9/month:clock")[..], [1, 1, 0x16]);
        assert_eq!(shape_of("1/1000ms"), shape_of("500/second"));
        assert_eq!(shape_of("1/258ms:clock")[..], [1, 1, 0x90, 0, 0, 0, 0, 1, 2]);
        assert_eq!(shape_of("1/minute:sliding-log")[..], [1, 1, 0x72, 0]);
        assert_eq!(shape_of("1:concurrency:lease=minute")[..], [1, 1, 0x72, 1]);
        assert_eq!(shape_of("1:concurrency:lease=258ms")[..], [1, 1, 0xf0, 0, 0, 0, 0, 1, 2, 1]);
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

    /// Limits whose replies have many shapes.
    fn any_policy() -> impl Strategy<Value = Policy> {
        let limits = [
            "5/second",
            "5/month:clock",
            "5/minute:sliding-log",
            "5/100ms:sliding-window:precision=30ms",
            "5/36500d:sliding-window:precision=365d",
            "5/18000d:sliding-window-counter",
            "5/3d:gcra:burst=9",
            "5/1ms:token-bucket:capacity=9:refill=interval",
            "0/hour",
            "5:concurrency",
            "5/day:requests",
            "5/week:shadow",
        ];
        prop::sample::subsequence(limits.to_vec(), 1..=limits.len()).prop_map(|limits| {
            Policy::new(limits.into_iter().map(|text| text.parse().unwrap())).unwrap()
        })
    }

    proptest! {
        #[test]
        fn any_reply_is_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let policy = Policy::new([Limit::per_second(1), Limit::per_day(1)]).unwrap();
            if let Ok(reply) = Reply::read(&bytes, &policy) {
                prop_assert_eq!((bytes.len(), reply.states.len()), (17 + 14 * 2, 2));
            }
        }

        /// A reply of the right length with any numbers in it: it can be told, or is refused.
        #[test]
        fn any_numbers_of_a_reply_can_be_told(
            policy in any_policy(), head: [u8; 3], mode in 0..4_usize, cost: u64,
            numbers in prop::collection::vec(
                prop_oneof![0..9_u64, Just(MAX_UNITS + 1), 0..=MAX_UNITS, 0..1_u64 << 56], 300,
            ),
        ) {
            let limits = policy.limits().iter().map(|limit| limit.limit());
            let count = 2 + limits.map(algorithm::replied_cells).sum::<usize>();
            let mut reply = head.to_vec();
            numbers.iter().take(count).for_each(|number| push_u56(&mut reply, *number));
            let mode = [Mode::Check, Mode::CheckUpTo, Mode::Peek, Mode::Charge][mode];
            let decided = crate::RedisStore::decision_of(&reply, &policy, mode, Cost::new(cost));
            let is_sound = numbers.iter().take(count).all(|number| *number <= MAX_UNITS + 1);
            prop_assert_eq!(decided.is_ok(), is_sound);
            for limit in decided.iter().flat_map(|decision| decision.limits()) {
                prop_assert!(limit.remaining() <= limit.limit().capacity());
            }
        }
    }
}
