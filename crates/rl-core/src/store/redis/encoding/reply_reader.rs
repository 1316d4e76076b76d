//! Between bytes and decisions: what the deciding scripts reply. No I/O.

use smallvec::{SmallVec, smallvec};

use super::policy::{self, Coded, coded};
use crate::algorithm::{self, State};
use crate::model::FailureKind;
use crate::model::MAX_UNITS;
use crate::model::StoreError;
use crate::policy::LimitSet;
use crate::policy::Policy;
use crate::store::redis::encoding::reply::{After, Answer, Asked, Each, Told};
use crate::time::Timestamp;

/// The first byte of a reply: what follows.
const SINGLE: u8 = 0;
/// A stored state begins with its version.
const STATES: u8 = policy::VERSION;
const COUNTED: u8 = 1;
const TOGETHER: u8 = 2;

/// Instead of a number of calls: the subject was not decided.
const UNDECIDED: u16 = u16::MAX;

/// What is left to read of a reply.
struct Reader<'a> {
    bytes: &'a [u8],
    policy: &'a Policy,
    coded: &'a Coded,
    /// How many calls were asked of each subject.
    calls: u16,
}

/// Why a reply is refused, in words.
type Refusal = Option<&'static str>;

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Refusal> {
        let (bytes, rest) = self.bytes.split_first_chunk::<N>().ok_or(None)?;
        self.bytes = rest;
        Ok(*bytes)
    }

    fn number(&mut self) -> Result<u64, Refusal> {
        self.number_of(7)
    }

    /// The number in so many bytes, 1 to 7.
    fn number_of(&mut self, count: usize) -> Result<u64, Refusal> {
        let (number, rest) = self.bytes.split_at_checked(count).ok_or(None)?;
        let number = match self.bytes.first_chunk() {
            // Eight are read where fewer are meant, as long as there are as many.
            Some(eight) => u64::from_be_bytes(*eight) >> (64 - 8 * count),
            None => number.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)),
        };
        self.bytes = rest;
        // No time and no count that a script replies is larger: with those, nothing overflows.
        if number > MAX_UNITS + 1 { Err(Some("a number beyond 2^53")) } else { Ok(number) }
    }

    fn each(&mut self) -> Result<Each, Refusal> {
        let now = Timestamp::from_micros(self.number()?);
        let (limits, places) = (self.policy.limits(), &self.coded.places);
        let mut states = smallvec![State::default(); places.len()];
        for &place in places {
            let count = algorithm::replied_cells(limits[place].limit());
            let cells: Result<SmallVec<[u64; 3]>, _> = (0..count).map(|_| self.number()).collect();
            states[place] = State::from_cells(cells?.into_iter());
        }
        Ok(Each { now, states })
    }

    /// A state of fixed windows as it is stored, behind its shape.
    fn stored(&mut self) -> Result<After, Refusal> {
        let Coded { shape, places, windows: stored, .. } = self.coded;
        let (head, rest) = self.bytes.split_at_checked(shape.len()).ok_or(None)?;
        let &[STATES, width @ 1..=7, ..] = head else { return Err(None) };
        self.bytes = rest;
        let now = self.number()?;
        let mut windows = [[0; 2]; Policy::MAX_LIMITS];
        for (&place, window) in places.iter().zip(stored) {
            let left = self.number_of(window.bytes)?;
            let used = self.number_of(width.into())?;
            let since = match left {
                0 => Some(0),
                left => (now + left).checked_sub(window.micros),
            };
            let since = since.filter(|since| *since <= now).ok_or(Some("no window of ours"))?;
            windows[place] = [since, used];
        }
        Ok(After::of_windows(self.policy, now, &windows[..places.len()]))
    }

    fn single(&mut self) -> Result<Answer, Refusal> {
        let [_, healed] = self.take()?;
        let mut calls = Vec::with_capacity(1);
        while calls.is_empty() || !self.bytes.is_empty() {
            let uncharged = LimitSet::from_bits(u16::from_be_bytes(self.take()?));
            let places = self.coded.places.iter().enumerate();
            let uncharged = places.filter(|(told, _)| uncharged.contains(*told));
            let uncharged = uncharged.map(|(_, place)| *place).collect();
            let taken = self.number()?;
            calls.push((uncharged, taken, self.each()?));
            if calls.len() > usize::from(self.calls) {
                return Err(None);
            }
        }
        Ok(Answer { healed: healed.into(), told: Told::Each(calls) })
    }

    fn together(&mut self) -> Result<Answer, Refusal> {
        let [_, healed, calls @ ..] = self.take::<4>()?;
        let passing = u16::from_be_bytes(calls);
        if passing > self.calls {
            return Err(None);
        }
        let told = Told::Passing { passing, after: After::Each(Box::new(self.each()?)) };
        Ok(Answer { healed: healed.into(), told })
    }

    fn counted(&mut self) -> Result<Option<Answer>, Refusal> {
        let [healed, calls @ ..] = self.take::<3>()?;
        match u16::from_be_bytes(calls) {
            UNDECIDED => Ok(None),
            passing if passing > self.calls => Err(None),
            passing => {
                let told = Told::Passing { passing, after: self.stored()? };
                Ok(Some(Answer { healed: healed.into(), told }))
            }
        }
    }
}

/// Reads what was replied of so many subjects, of so many calls each. A subject without an answer was not
/// decided, and is to be asked for alone.
pub(crate) fn read(
    bytes: &[u8],
    subjects: usize,
    calls: u16,
    asked: Asked<'_>,
) -> Result<Vec<Option<Answer>>, StoreError> {
    let mut reader = Reader { bytes, policy: asked.policy, coded: coded(asked.policy), calls };
    let mut read = || -> Result<Vec<Option<Answer>>, Refusal> {
        let answers = match bytes.first() {
            Some(&SINGLE) if subjects == 1 => vec![Some(reader.single()?)],
            Some(&TOGETHER) if subjects == 1 => vec![Some(reader.together()?)],
            Some(&STATES) if reader.coded.is_all_fixed => {
                let answer = |_| {
                    let (passing, after) = (reader.calls, reader.stored()?);
                    Ok(Some(Answer { healed: 0, told: Told::Passing { passing, after } }))
                };
                (0..subjects).map(answer).collect::<Result<_, Refusal>>()?
            }
            Some(&COUNTED) if reader.coded.is_all_fixed => {
                let [_] = reader.take()?;
                let answer = |_| reader.counted();
                (0..subjects).map(answer).collect::<Result<_, Refusal>>()?
            }
            _ => return Err(None),
        };
        if reader.bytes.is_empty() { Ok(answers) } else { Err(None) }
    };
    read().map_err(|refusal| {
        let error = StoreError::new(FailureKind::Protocol);
        match refusal {
            Some(why) => error.with_detail(format!("a script replied {why}")),
            None => {
                let limits = asked.policy.limits().len();
                error.with_detail(format!(
                    "a script replied {} bytes for {limits} limits of {subjects} subjects",
                    bytes.len()
                ))
            }
        }
    })
}

/// The answer of the only subject.
pub(crate) fn read_one(bytes: &[u8], calls: u16, asked: Asked<'_>) -> Result<Answer, StoreError> {
    read(bytes, 1, calls, asked)?.pop().flatten().ok_or_else(undecided)
}

/// A subject that was asked for alone was not decided, which no script of ours does.
pub(crate) fn undecided() -> StoreError {
    StoreError::new(FailureKind::Protocol).with_detail("a script decided nothing")
}

#[cfg(any(test, feature = "conformance"))]
impl crate::store::RedisStore {
    /// The decision that a server tells with this reply, for those who try to break the reading of
    /// it.
    #[doc(hidden)]
    pub fn decision_of(
        reply: &[u8],
        policy: &Policy,
        mode: crate::model::Mode,
        cost: crate::model::Cost,
    ) -> Result<crate::decision::Decision, StoreError> {
        let asked = Asked { policy, mode, cost };
        Ok(read_one(reply, 1, asked)?.decision(0, asked))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::RetryAfter;
    use crate::model::Mode;
    use crate::model::{Cost, Limit};
    use crate::store::redis::encoding::arguments::push_u56;
    use proptest::prelude::*;

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

    /// The time, and of each limit since when its window lasts and what is used, as it is stored.
    fn stored(policy: &Policy, numbers: &[u64]) -> Vec<u8> {
        let mut bytes = coded(policy).shape.clone();
        let width = bytes[1].into();
        let mut push =
            |number: u64, count: usize| bytes.extend_from_slice(&number.to_be_bytes()[8 - count..]);
        push(numbers[0], 7);
        let Coded { places, windows, .. } = coded(policy);
        for (place, window) in places.iter().zip(windows) {
            let at = 1 + 2 * place;
            push(numbers[at] + window.micros - numbers[0], window.bytes);
            push(numbers[at + 1], width);
        }
        bytes
    }

    #[test]
    fn calls_that_came_together_are_told_one_after_the_other() {
        let policy = Policy::new([Limit::per_second(9), Limit::per_day(50)]).unwrap();
        let asked = Asked { policy: &policy, mode: Mode::Check, cost: Cost::new(2) };
        let mut reply = vec![COUNTED, 0, 0, 3];
        reply.extend(stored(&policy, &[1_000, 1_000, 8, 400, 28]));
        let answer = read(&reply, 1, 5, asked).unwrap().pop().unwrap().unwrap();
        let used = |call| {
            let decision = answer.decision(call, asked);
            let used: Vec<u64> = decision.limits().map(|limit| limit.used()).collect();
            (decision.granted(), used)
        };
        assert_eq!(used(0), (2, vec![4, 24]));
        assert_eq!(used(2), (2, vec![8, 28]));
        assert_eq!(used(3), (0, vec![8, 28]));
        assert!(matches!(answer.decision(4, asked).retry_after(), RetryAfter::In(_)));
    }

    #[test]
    fn of_many_subjects_each_has_its_own_answer() {
        let policy = Policy::new([Limit::per_second(9)]).unwrap();
        let asked = Asked { policy: &policy, mode: Mode::Check, cost: Cost::ONE };
        let state = |used| stored(&policy, &[2_000_000, 1_500_000, used]);
        let all = read(&[state(3), state(4)].concat(), 2, 1, asked).unwrap();
        assert!(all.iter().flatten().all(|answer| answer.decision(0, asked).is_allowed()));

        let some =
            [vec![COUNTED], vec![0, 255, 255], vec![1, 0, 0], state(9), vec![0, 0, 1], state(1)];
        let some = read(&some.concat(), 3, 1, asked).unwrap();
        let allowed = |answer: &Answer| answer.decision(0, asked).is_allowed();
        let told: Vec<_> = some.iter().map(|told| told.as_ref().map(allowed)).collect();
        assert_eq!(told, [None, Some(false), Some(true)]);
        assert_eq!(some[1].as_ref().map(|answer| answer.healed), Some(1));
        assert!(read(&state(3), 2, 1, asked).is_err(), "one is missing");
        assert!(read(&[COUNTED, 0, 0, 2], 1, 1, asked).is_err(), "more than were asked for");
    }

    proptest! {
        #[test]
        fn any_reply_is_read_or_refused(
            bytes in prop::collection::vec(prop_oneof![0..4_u8, any::<u8>()], 0..120),
            (subjects, calls) in (1..4_usize, 1..5_u16),
        ) {
            let policy = Policy::new([Limit::per_second(1), Limit::per_day(1)]).unwrap();
            let asked = Asked { policy: &policy, mode: Mode::Check, cost: Cost::ONE };
            for answer in read(&bytes, subjects, calls, asked).into_iter().flatten().flatten() {
                for call in 0..calls {
                    prop_assert_eq!(answer.decision(call, asked).limits().len(), 2);
                }
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
            let mut reply = [&[SINGLE][..], &head].concat();
            numbers.iter().take(count).for_each(|number| push_u56(&mut reply, *number));
            let mode = [Mode::Check, Mode::CheckUpTo, Mode::Peek, Mode::Charge][mode];
            let decided = crate::store::RedisStore::decision_of(&reply, &policy, mode, Cost::new(cost));
            let is_sound = numbers.iter().take(count).all(|number| *number <= MAX_UNITS + 1);
            prop_assert_eq!(decided.is_ok(), is_sound);
            for limit in decided.iter().flat_map(|decision| decision.limits()) {
                prop_assert!(limit.remaining() <= limit.limit().capacity());
            }
        }
    }
}
