//! Decodes the replies of the deciding scripts.
//!
//! ```text
//!   first byte   reply
//!   0  PER_CALL  healed:1  { uncharged:2  granted:7  states } for each call, for one subject
//!   1  COUNTED   { healed:1  allowed:2  states } for each subject
//!   6  STATES    a stored state for each subject, if all calls of all subjects are allowed
//!
//!   time of the server:7  after any of these replies, if the server's clock has stepped back
//!
//!   states       a stored state without the entries of logs, and for each log when its units will
//!                be available:7
//! ```
//!
//! A stored state begins with its version, 6, so a reply of states needs no other type byte.

use smallvec::{SmallVec, smallvec};

use super::arguments::read_u56;
use super::kind::Kind;
use super::policy::{self, PolicyEncoding, StoredLimit};
use super::reply::{CallResult, FinalState, ReplyBody, ScriptReply, States};
use super::request::EncodedPart;
use crate::algorithm::State;
use crate::model::{FailureKind, MAX_UNITS, StoreError};
use crate::policy::{LimitSet, Policy};
use crate::time::Timestamp;

const PER_CALL: u8 = 0;
const COUNTED: u8 = 1;
const STATES: u8 = policy::VERSION;

/// The value that a reply contains in place of the number of allowed calls if the subject was not
/// decided.
const UNDECIDED: u16 = u16::MAX;

/// The number of bytes of a time.
const TIME_BYTES: usize = 7;

/// The part of a reply that is not read yet.
struct Reader<'a> {
    bytes: &'a [u8],
    policy: &'a Policy,
    encoding: &'a PolicyEncoding,
    /// The number of calls of each subject.
    calls: u16,
}

/// The reason why a reply is rejected: the part that is not valid, or `None` if the length is
/// wrong.
type Refusal = Option<&'static str>;

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Refusal> {
        let (bytes, rest) = self.bytes.split_first_chunk::<N>().ok_or(None)?;
        self.bytes = rest;
        Ok(*bytes)
    }

    /// Reads a number of seven bytes.
    fn number(&mut self) -> Result<u64, Refusal> {
        self.number_of(7)
    }

    /// Reads a number of `size` bytes, 1 to 7.
    fn number_of(&mut self, size: usize) -> Result<u64, Refusal> {
        let (bytes, rest) = self.bytes.split_at_checked(size).ok_or(None)?;
        let mut padded = [0; 8];
        padded[8 - size..].copy_from_slice(bytes);
        let number = u64::from_be_bytes(padded);
        self.bytes = rest;
        // Scripts return no time or count above 2^53. Calculations with smaller numbers never
        // overflow.
        if number > MAX_UNITS + 1 { Err(Some("a number beyond 2^53")) } else { Ok(number) }
    }

    /// Reads the header of a stored state, and its time. Returns the width of counts, and the time.
    fn header(&mut self) -> Result<(u8, u64), Refusal> {
        let (header, rest) = self.bytes.split_at_checked(self.encoding.shape.len()).ok_or(None)?;
        let &[STATES, width @ 1..=7, ..] = header else { return Err(None) };
        self.bytes = rest;
        Ok((width, self.number()?))
    }

    /// Reads the states after the last call. `has_waits` states whether, for each log, the time
    /// follows at which its units will be available.
    fn final_state(&mut self, has_waits: bool) -> Result<FinalState, Refusal> {
        let mut limits = self.encoding.stored.iter();
        if limits.all(|limit| limit.kind == Kind::FixedWindow && !limit.counts_requests) {
            return self.stored_windows();
        }
        Ok(FinalState::States(Box::new(self.stored_states(has_waits)?)))
    }

    /// Reads a stored state of fixed windows that begin with the first request.
    fn stored_windows(&mut self) -> Result<FinalState, Refusal> {
        let (width, now) = self.header()?;
        let PolicyEncoding { order, stored, .. } = self.encoding;
        let mut windows = [[0; 2]; Policy::MAX_LIMITS];
        for (&place, limit) in order.iter().zip(stored) {
            windows[place] = self.window(limit, width, now)?;
        }
        Ok(FinalState::of_windows(self.policy, now, &windows[..order.len()]))
    }

    /// Reads the beginning of a fixed window (0 if none is open), and its used units.
    fn window(&mut self, limit: &StoredLimit, width: u8, now: u64) -> Result<[u64; 2], Refusal> {
        let remaining = self.number_of(limit.time_bytes.into())?;
        let used = self.number_of(width.into())?;
        let since = match remaining {
            0 => Some(0),
            remaining => (now + remaining).checked_sub(limit.period),
        };
        let since = since.filter(|since| *since <= now);
        Ok([since.ok_or(Some("a window that begins in the future"))?, used])
    }

    /// Reads the cells of each limit. `has_waits` states whether, for each log, the time follows at
    /// which its units will be available.
    fn stored_states(&mut self, has_waits: bool) -> Result<States, Refusal> {
        let (width, now) = self.header()?;
        let PolicyEncoding { order, stored, .. } = self.encoding;
        let mut states = smallvec![State::default(); order.len()];
        let mut logs: SmallVec<[(usize, [u64; 2]); 4]> = SmallVec::new();
        for (&place, limit) in order.iter().zip(stored) {
            if limit.kind.is_log() {
                let [used, _, _, newest, ..] = self.numbers::<8>()?;
                logs.push((place, [used, if used > 0 { newest } else { 0 }]));
            } else {
                states[place] = self.state(limit, width, now)?;
            }
        }
        for (place, [used, newest]) in logs {
            let passes_at = if has_waits { self.number()? } else { 0 };
            states[place] = State::from_cells([used, newest, passes_at].into_iter());
        }
        Ok(States { now: Timestamp::from_micros(now), states })
    }

    /// Reads the state of a limit without entries.
    fn state(&mut self, limit: &StoredLimit, width: u8, now: u64) -> Result<State, Refusal> {
        Ok(match limit.kind {
            Kind::FixedWindow => State::from_cells(self.window(limit, width, now)?.into_iter()),
            Kind::ClockWindow | Kind::MonthWindow => {
                let _ends = self.number_of(limit.time_bytes.into())?;
                let used = self.number_of(width.into())?;
                State::from_cells([self.number()?, used].into_iter())
            }
            Kind::WindowCounter => {
                let first = self.number_of(limit.time_bytes.into())?;
                let current = self.number_of(width.into())?;
                let previous = self.number_of(width.into())?;
                let since = now - now % limit.period;
                let cells = match first {
                    0 => [0; 4],
                    first => {
                        let first = (since + first - 1).checked_sub(limit.period);
                        let first = first.ok_or(Some("a charge before all time"))?;
                        [since, current, previous, first]
                    }
                };
                State::from_cells(cells.into_iter())
            }
            Kind::SlidingWindow => {
                let [newest, since, total, current] = self.numbers()?;
                let mut cells = Vec::with_capacity(3 + usize::from(limit.older));
                cells.extend([newest, since, current]);
                for _ in 0..limit.older {
                    cells.push(self.number_of(width.into())?);
                }
                if total != counting_units(limit, newest, &cells[2..], now) {
                    return Err(Some("a total that is not that of its buckets"));
                }
                State::from_cells(cells.into_iter())
            }
            Kind::Gcra => State::from_cells(self.numbers::<3>()?.into_iter()),
            Kind::IntervalBucket => State::from_cells(self.numbers::<4>()?.into_iter()),
            Kind::SlidingLog | Kind::Concurrency => {
                return Err(Some("a log where the cells of a state are expected"));
            }
        })
    }

    fn numbers<const N: usize>(&mut self) -> Result<[u64; N], Refusal> {
        let mut numbers = [0; N];
        for number in &mut numbers {
            *number = self.number()?;
        }
        Ok(numbers)
    }

    fn per_call(&mut self) -> Result<ScriptReply, Refusal> {
        let [_, healed] = self.take()?;
        let mut calls = Vec::with_capacity(1);
        // The result of a call is longer than a time.
        while calls.is_empty() || self.bytes.len() > TIME_BYTES {
            calls.push(self.call_result()?);
            if calls.len() > usize::from(self.calls) {
                return Err(None);
            }
        }
        let body = ReplyBody::PerCall(calls);
        Ok(ScriptReply { healed: healed.into(), body, server_time: None })
    }

    /// Reads the result of one call.
    fn call_result(&mut self) -> Result<CallResult, Refusal> {
        let uncharged = LimitSet::from_bits(u16::from_be_bytes(self.take()?));
        let order = self.encoding.order.iter().enumerate();
        let uncharged = order.filter(|(index, _)| uncharged.contains(*index));
        let uncharged = uncharged.map(|(_, place)| *place).collect();
        let granted = self.number()?;
        Ok(CallResult { uncharged, granted, states: self.stored_states(true)? })
    }

    /// Reads the number of keys of a part that had lost their expiry, and the result of the part.
    fn part_result(&mut self) -> Result<(u8, CallResult), Refusal> {
        let [healed] = self.take()?;
        Ok((healed, self.call_result()?))
    }

    fn counted(&mut self) -> Result<Option<ScriptReply>, Refusal> {
        let [healed, allowed @ ..] = self.take::<3>()?;
        match u16::from_be_bytes(allowed) {
            UNDECIDED => Ok(None),
            allowed if allowed > self.calls => Err(None),
            allowed => {
                let body = ReplyBody::Counted { allowed, last: self.final_state(true)? };
                Ok(Some(ScriptReply { healed: healed.into(), body, server_time: None }))
            }
        }
    }

    fn all_allowed(&mut self) -> Result<Option<ScriptReply>, Refusal> {
        let body = ReplyBody::Counted { allowed: self.calls, last: self.final_state(false)? };
        Ok(Some(ScriptReply { healed: 0, body, server_time: None }))
    }

    fn replies(&mut self, subjects: usize) -> Result<Vec<Option<ScriptReply>>, Refusal> {
        let mut replies = match self.bytes.first() {
            Some(&PER_CALL) if subjects == 1 => vec![Some(self.per_call()?)],
            Some(&STATES) => {
                (0..subjects).map(|_| self.all_allowed()).collect::<Result<_, Refusal>>()?
            }
            Some(&COUNTED) => {
                let [_] = self.take()?;
                (0..subjects).map(|_| self.counted()).collect::<Result<_, Refusal>>()?
            }
            _ => return Err(None),
        };
        if let Some(time) = read_server_time(self.bytes)? {
            replies.iter_mut().flatten().for_each(|reply| reply.server_time = Some(time));
        }
        Ok(replies)
    }
}

/// Reads the end of a reply: the time of the server if its clock has stepped back, or nothing.
pub(super) fn read_server_time(rest: &[u8]) -> Result<Option<Timestamp>, Refusal> {
    match <[u8; TIME_BYTES]>::try_from(rest) {
        Ok(time) => Ok(Some(Timestamp::from_micros(read_u56(time)))),
        Err(_) if rest.is_empty() => Ok(None),
        Err(_) => Err(None),
    }
}

/// Returns the sum of the buckets of a sliding window that count at `now`.
///
/// It must equal the total by which the script decides.
fn counting_units(limit: &StoredLimit, newest: u64, buckets: &[u64], now: u64) -> u64 {
    let counts = |number: u64| {
        let ends = number.saturating_add(1).saturating_mul(limit.precision);
        now < ends.saturating_add(limit.period)
    };
    let numbered = buckets.iter().enumerate();
    let numbered =
        numbered.map_while(|(age, units)| Some((newest.checked_sub(age as u64)?, units)));
    let counting = numbered.take_while(|(number, _)| counts(*number)).map(|(_, units)| *units);
    counting.fold(0, u64::saturating_add).min(MAX_UNITS)
}

/// Decodes the reply to a script call with `subjects` subjects, each with `calls` calls. Returns a
/// reply for each subject, in their order.
///
/// The reply of a subject that was not decided is `None`. It must be sent again in a call of its
/// own.
pub(crate) fn read(
    bytes: &[u8],
    policy: &Policy,
    encoding: &PolicyEncoding,
    subjects: usize,
    calls: u16,
) -> Result<Vec<Option<ScriptReply>>, StoreError> {
    let mut reader = Reader { bytes, policy, encoding, calls };
    reader.replies(subjects).map_err(|refusal| {
        let error = StoreError::new(FailureKind::Protocol);
        match refusal {
            Some(found) => error.with_detail(format!("a script replied {found}")),
            None => {
                let limits = policy.limits().len();
                error.with_detail(format!(
                    "a script replied {} bytes for {limits} limits of {subjects} subjects",
                    bytes.len()
                ))
            }
        }
    })
}

/// The reply to a request of several parts that no fast path has decided.
#[derive(Debug)]
pub(crate) struct PartsReply {
    /// Whether all enforced parts grant the request.
    pub(crate) is_allowed: bool,
    /// The number of counters whose missing expiry was restored.
    pub(crate) healed: u64,
    /// The result of each part.
    pub(crate) parts: SmallVec<[CallResult; 2]>,
    /// The time of the server, if its clock has stepped back.
    pub(crate) server_time: Option<Timestamp>,
}

/// Decodes the reply to a request of these parts.
///
/// ```text
///   { 0 denied, 1 allowed }:1  { healed:1  uncharged:2  granted:7  states } for each part
///   time of the server:7  if the server's clock has stepped back
/// ```
pub(crate) fn read_parts(bytes: &[u8], parts: &[EncodedPart]) -> Result<PartsReply, StoreError> {
    let malformed = || {
        let detail = format!("a script replied {} bytes for {} parts", bytes.len(), parts.len());
        StoreError::new(FailureKind::Protocol).with_detail(detail)
    };
    let (&verdict, mut rest) = bytes.split_first().ok_or_else(malformed)?;
    let is_allowed = verdict == 1;
    let mut reply = PartsReply { is_allowed, healed: 0, parts: SmallVec::new(), server_time: None };
    for EncodedPart { policy, encoding, .. } in parts {
        let mut reader = Reader { bytes: rest, policy, encoding, calls: 1 };
        let (healed, result) = reader.part_result().map_err(|refusal| match refusal {
            Some(found) => StoreError::new(FailureKind::Protocol)
                .with_detail(format!("a script replied {found}")),
            None => malformed(),
        })?;
        reply.healed += u64::from(healed);
        reply.parts.push(result);
        rest = reader.bytes;
    }
    reply.server_time = read_server_time(rest).map_err(|_| malformed())?;
    Ok(reply)
}

/// Decodes the stored state of a part whose policy has no sliding log and no concurrency limit.
pub(crate) fn read_state(bytes: &[u8], part: &EncodedPart) -> Result<FinalState, StoreError> {
    let EncodedPart { policy, encoding, .. } = part;
    let mut reader = Reader { bytes, policy, encoding, calls: 1 };
    reader.final_state(false).map_err(|refusal| {
        let found = refusal.unwrap_or("a state of another length");
        StoreError::new(FailureKind::Protocol).with_detail(format!("a script replied {found}"))
    })
}

/// Returns the error for a call with a single subject that was not decided. No script of this crate
/// sends such a reply.
pub(crate) fn undecided() -> StoreError {
    StoreError::new(FailureKind::Protocol).with_detail("a script returned no decision")
}

#[cfg(test)]
mod tests {
    use super::super::reply::CallArgs;
    use super::*;
    use crate::decision::RetryAfter;
    use crate::model::{Cost, Limit};
    use crate::store::Mode;
    use proptest::prelude::*;

    /// Decodes the reply to a script call with a single subject.
    fn read_one(bytes: &[u8], policy: &Policy, calls: u16) -> Result<ScriptReply, StoreError> {
        let replies = read(bytes, policy, &PolicyEncoding::new(policy), 1, calls)?;
        replies.into_iter().flatten().next().ok_or_else(undecided)
    }

    /// Generates policies whose replies have different lengths.
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

    /// Encodes a stored state. `numbers` are the time, then the first request and the used units of
    /// each window.
    fn stored(policy: &Policy, numbers: &[u64]) -> Vec<u8> {
        let PolicyEncoding { shape: mut bytes, order, stored, .. } = PolicyEncoding::new(policy);
        let width = bytes[1].into();
        let mut push =
            |number: u64, count: usize| bytes.extend_from_slice(&number.to_be_bytes()[8 - count..]);
        push(numbers[0], 7);
        for (place, limit) in order.iter().zip(stored) {
            let at = 1 + 2 * place;
            push(numbers[at] + limit.period - numbers[0], limit.time_bytes.into());
            push(numbers[at + 1], width);
        }
        bytes
    }

    #[test]
    fn calls_of_one_reply_are_decided_one_after_the_other() {
        let policy = Policy::new([Limit::per_second(9), Limit::per_day(50)]).unwrap();
        let args = CallArgs { policy: &policy, mode: Mode::Check, cost: Cost::new(2) };
        let mut reply = vec![COUNTED, 0, 0, 3];
        reply.extend(stored(&policy, &[1_000, 1_000, 8, 400, 28]));
        let reply = read_one(&reply, &policy, 5).unwrap();
        let used = |call| {
            let decision = reply.decision(call, args);
            let used: Vec<u64> = decision.limits().map(|limit| limit.used()).collect();
            (decision.granted(), used)
        };
        assert_eq!(used(0), (2, vec![4, 24]));
        assert_eq!(used(2), (2, vec![8, 28]));
        assert_eq!(used(3), (0, vec![8, 28]));
        assert!(matches!(reply.decision(4, args).retry_after(), RetryAfter::In(_)));
    }

    #[test]
    fn each_subject_of_a_call_has_a_reply_of_its_own() {
        let policy = Policy::new([Limit::per_second(9)]).unwrap();
        let args = CallArgs { policy: &policy, mode: Mode::Check, cost: Cost::ONE };
        let encoding = PolicyEncoding::new(&policy);
        let read = |bytes: &[u8], subjects| read(bytes, &policy, &encoding, subjects, 1);
        let state = |used| stored(&policy, &[2_000_000, 1_500_000, used]);
        let all = read(&[state(3), state(4)].concat(), 2).unwrap();
        assert!(all.iter().flatten().all(|reply| reply.decision(0, args).is_allowed()));

        let some =
            [vec![COUNTED], vec![0, 255, 255], vec![1, 0, 0], state(9), vec![0, 0, 1], state(1)];
        let some = read(&some.concat(), 3).unwrap();
        let is_allowed = |reply: &ScriptReply| reply.decision(0, args).is_allowed();
        let allowed: Vec<_> = some.iter().map(|reply| reply.as_ref().map(is_allowed)).collect();
        assert_eq!(allowed, [None, Some(false), Some(true)]);
        assert_eq!(some[1].as_ref().map(|reply| reply.healed), Some(1));
        assert!(read(&state(3), 2).is_err(), "the reply of a subject is missing");
        assert!(read(&[COUNTED, 0, 0, 2], 1).is_err(), "more calls are allowed than were sent");
    }

    proptest! {
        #[test]
        fn any_reply_is_read_or_refused(
            bytes in prop::collection::vec(prop_oneof![0..4_u8, any::<u8>()], 0..120),
            (subjects, calls) in (1..4_usize, 1..5_u16),
        ) {
            let policy = Policy::new([Limit::per_second(1), Limit::per_day(1)]).unwrap();
            let encoding = PolicyEncoding::new(&policy);
            let args = CallArgs { policy: &policy, mode: Mode::Check, cost: Cost::ONE };
            let replies = read(&bytes, &policy, &encoding, subjects, calls);
            for reply in replies.into_iter().flatten().flatten() {
                for call in 0..calls {
                    prop_assert_eq!(reply.decision(call, args).limits().len(), 2);
                }
            }
        }

        /// Checks that a reply of the right length, whatever numbers it contains, leads to a
        /// decision or to an error, never to a panic.
        #[test]
        fn any_numbers_of_a_reply_are_decided_or_refused(
            policy in any_policy(), head: [u8; 3], mode in 0..4_usize, cost: u64,
            rest in prop::collection::vec(prop_oneof![3 => Just(0), 1 => any::<u8>()], 3_000),
        ) {
            let encoding = PolicyEncoding::new(&policy);
            let mut bytes = [&[PER_CALL][..], &head, &[0; 7], &encoding.shape].concat();
            let logs = encoding.stored.iter().filter(|limit| limit.kind.is_log()).count();
            let count = usize::from(encoding.state_len) - encoding.shape.len() + 7 * logs;
            bytes.extend_from_slice(&rest[..count]);
            let mode = [Mode::Check, Mode::CheckUpTo, Mode::Peek, Mode::Charge][mode];
            let args = CallArgs { policy: &policy, mode, cost: Cost::new(cost) };
            let reply = read_one(&bytes, &policy, 1);
            let decided = reply.map(|reply| reply.decision(0, args));
            for limit in decided.iter().flat_map(|decision| decision.limits()) {
                prop_assert!(limit.remaining() <= limit.limit().capacity());
            }
            // If all numbers are 0, the reply is valid for every limit.
            if rest[..count].iter().all(|byte| *byte == 0) {
                prop_assert!(decided.is_ok());
            }
        }
    }
}
