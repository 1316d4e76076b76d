//! What is told of a policy in each call, worked out once.

use std::fmt::Write;

use smallvec::SmallVec;

use crate::algorithm;
use crate::model::{Algorithm, Anchor, Refill};
use crate::model::{Limit, Period};
use crate::policy::Policy;
use crate::policy::weight;

/// The version of the packed state, its first byte.
pub(crate) const VERSION: u8 = 3;

/// What scripts and their replies need to know of a policy.
#[derive(Debug)]
pub(crate) struct Coded {
    /// Which states it counts in, and in how many bytes: what `slots.lua` calls the shape.
    pub(crate) shape: Vec<u8>,
    /// How `struct` reads and writes a state: its shape, the time, and the cells.
    pub(crate) format: Vec<u8>,
    /// The places of its limits, in the order in which scripts know them: their own, but where the shape
    /// has no tags that of their periods.
    pub(crate) places: SmallVec<[usize; 6]>,
    /// Whether all limits are fixed windows that begin with the first request: what decide_fixed.lua
    /// decides, for many subjects at once.
    pub(crate) is_all_fixed: bool,
    /// The most calls that one script evaluates: fewer where each takes longer.
    pub(crate) most_evaluated: usize,
    /// How many subjects one script decides at most: fewer where each has more limits.
    pub(crate) most_subjects: usize,
    /// How long a state is, if they are.
    pub(crate) state_len: u16,
    /// The fixed windows that begin with the first request, in the order of `places`.
    pub(crate) windows: SmallVec<[StoredWindow; 6]>,
}

/// How what is left of a fixed window is stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoredWindow {
    /// How many bytes hold what is left of it.
    pub(crate) bytes: usize,
    /// How long it is, in µs.
    pub(crate) micros: u64,
}

/// Fixed windows that one script decides at most, of all its subjects.
const MOST_WINDOWS: usize = 256;

/// What is told of this policy.
pub(crate) fn coded(policy: &Policy) -> &Coded {
    policy.worked_out(Coded::of)
}

impl Coded {
    fn of(policy: &Policy) -> Self {
        let limits = || policy.limits().iter().map(|named| named.limit());
        let mut places: SmallVec<[usize; 6]> = (0..policy.limits().len()).collect();
        if named_set(policy).is_some() {
            places.sort_by_key(|place| policy.limits()[*place].limit().period());
        }
        let (shape, width) = (shape(policy), width(policy));
        let mut format = format!(">c{}I7", shape.len());
        let mut state_len = shape.len() + 7;
        let mut windows = SmallVec::new();
        for place in &places {
            let limit = policy.limits()[*place].limit();
            let _ = match limit.algorithm() {
                _ if is_window(limit) => {
                    let micros = limit.period().as_micros();
                    let bytes = bytes_of(micros).into();
                    windows.push(StoredWindow { bytes, micros });
                    state_len += bytes + usize::from(width);
                    write!(format, "I{bytes}I{width}")
                }
                Algorithm::SlidingWindowCounter => {
                    let bytes = counter_bytes(limit);
                    write!(format, "I{bytes}I{width}I{width}I{bytes}")
                }
                _ => write!(format, "{}", "I7".repeat(algorithm::stored_cells(limit))),
            };
        }
        Self {
            shape,
            format: format.into_bytes(),
            places,
            most_evaluated: most_evaluated(limits().map(weight).sum()),
            most_subjects: MOST_WINDOWS / policy.limits().len(),
            is_all_fixed: limits().all(|limit| is_window(limit) && !has_mark(limit)),
            state_len: u16::try_from(state_len).expect("sixteen windows are a few hundred bytes"),
            windows,
        }
    }

    /// The limits in the order in which scripts know them.
    pub(crate) fn in_order<'a>(
        &self,
        policy: &'a Policy,
    ) -> impl Iterator<Item = Limit> + use<'_, 'a> {
        self.places.iter().map(|place| policy.limits()[*place].limit())
    }
}

/// Returns the most calls that one script evaluates under limits of this weight, so that it does not block
/// the server for a millisecond.
fn most_evaluated(weight: u64) -> usize {
    const MOST: u64 = 64;
    const MOST_NUMBERS: u64 = 600;
    (MOST_NUMBERS / weight.max(1)).clamp(1, MOST) as usize
}

/// Which states a policy counts in, and in how many bytes: what `slots.lua` calls the shape.
fn shape(policy: &Policy) -> Vec<u8> {
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

/// Returns all limits in a byte, if they count units over named periods, and all in such windows or
/// all in such counters.
fn named_set(policy: &Policy) -> Option<u8> {
    let limits = || policy.limits().iter().map(|named| named.limit());
    let kind = match limits().all(is_window) {
        true => 0,
        false if limits().all(is_counter) => 0x40,
        false => return None,
    };
    limits().try_fold(kind, |set, limit| match limit.counts_requests() {
        false => Some(set | 1 << limit.period().named_index()?),
        true => None,
    })
}

/// Returns the bytes of the age of a sliding window counter in a stored state, and of the time of its
/// first charge.
fn counter_bytes(limit: Limit) -> u8 {
    bytes_of(2 * limit.period().as_micros())
}

/// Bit of a tag that says that requests are counted.
const REQUESTS: u8 = 0x08;

/// Appends the tag of the state that the limit counts in.
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
    let algorithm = if limit.counts_requests() { algorithm | REQUESTS } else { algorithm };
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

const fn has_mark(limit: Limit) -> bool {
    limit.is_shadow() || limit.counts_requests()
}

/// Six bytes hold every period in milliseconds.
fn push_u48(bytes: &mut Vec<u8>, number: u64) {
    bytes.extend_from_slice(&number.to_be_bytes()[2..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shape_names_states_and_not_their_size() {
        let shape_of = |text: &str| shape(&Policy::new([text.parse().unwrap()]).unwrap());
        assert_eq!(shape_of("1/second")[..], [3, 1, 0x01]);
        assert_eq!(shape_of("256/month")[..], [3, 2, 0x20]);
        assert_eq!(shape_of("255/minute:sliding-window-counter")[..], [3, 1, 0x42]);
        assert_eq!(shape_of("9/month:clock")[..], [3, 1, 0x81, 0x16]);
        assert_eq!(shape_of("1/1000ms"), shape_of("200/second"));
        assert_eq!(shape_of("1/258ms")[..], [3, 1, 0x81, 0x80, 0, 0, 0, 0, 1, 2]);
        assert_eq!(shape_of("1/258ms:clock")[..], [3, 1, 0x81, 0x90, 0, 0, 0, 0, 1, 2]);
        assert_eq!(shape_of("1/minute:requests")[..], [3, 1, 0x81, 0x0a]);
        assert_eq!(shape_of("1/258ms:clock:requests")[..], [3, 1, 0x81, 0x98, 0, 0, 0, 0, 1, 2]);
        assert_eq!(shape_of("1/minute:sliding-log")[..], [3, 1, 0x81, 0x72, 0]);
        assert_eq!(shape_of("1:concurrency:lease=minute")[..], [3, 1, 0x81, 0x72, 1]);
        let of_258_ms = shape_of("1:concurrency:lease=258ms");
        assert_eq!(of_258_ms[..], [3, 1, 0x81, 0xf0, 0, 0, 0, 0, 1, 2, 1]);
        let mixed = ["9/hour", "9/day:clock"].map(|text| text.parse().unwrap());
        assert_eq!(shape(&Policy::new(mixed).unwrap())[..], [3, 1, 0x82, 0x03, 0x14]);
    }

    #[test]
    fn windows_of_named_periods_have_one_order_whatever_the_policy_s() {
        let places_of = |limits: [&str; 3]| {
            let policy = Policy::new(limits.map(|text| text.parse().unwrap())).unwrap();
            (shape(&policy), coded(&policy).places.to_vec())
        };
        let (shape, places) = places_of(["9/minute", "9/day", "9/second"]);
        assert_eq!((&shape[2..], &places[..]), (&[0b1011][..], &[2, 0, 1][..]));
        assert_eq!(places_of(["9/second", "9/minute", "9/day"]), (shape, vec![0, 1, 2]));
        let (_, places) = places_of(["9/minute", "9/day", "9/1500ms"]);
        assert_eq!(places, [0, 1, 2], "by their tags");
    }
}
