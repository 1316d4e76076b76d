//! The encoding of a policy: which states it counts in, and how they are stored.
//!
//! A state that is stored begins with a header, the *shape*:
//!
//! ```text
//!   byte 0     1           2                3 …
//!   ┌─────────┬───────────┬────────────────┬──────────────────────┐
//!   │ version │ width of  │ code           │ one tag per limit,   │
//!   │ 3       │ a count   │                │ if the code is ≥ 128 │
//!   └─────────┴───────────┴────────────────┴──────────────────────┘
//!   code < 64    fixed windows from the first request, one bit for each named period
//!   code < 128   sliding window counters, 64 + one bit for each named period
//!   code ≥ 128   128 + the number of tags that follow
//! ```
//!
//! `scripts/lib/slots.lua` describes the tags, and the numbers that follow the header.

use smallvec::SmallVec;

use crate::algorithm;
use crate::model::{Algorithm, Anchor, Limit, Period, Refill};
use crate::policy::{Policy, weight};

/// The version of the packed state, its first byte.
pub(crate) const VERSION: u8 = 3;

/// The most fixed windows that one script call decides, over all its subjects.
const MAX_WINDOWS_PER_CALL: usize = 256;

/// The bit of a tag for a limit that counts requests.
const REQUESTS: u8 = 0x08;

/// The fields of a policy that scripts and the parsing of their replies need.
///
/// It is built for each call. That takes a fraction of a microsecond, so it is not cached.
#[derive(Debug)]
pub(crate) struct PolicyEncoding {
    /// The header of a stored state.
    pub(crate) shape: Vec<u8>,
    /// The format with which Lua's `struct` reads and writes a state: shape, time, and cells.
    pub(crate) format: Vec<u8>,
    /// The places of the policy's limits, in the order of the scripts.
    ///
    /// That is the order of the policy, or the order of the periods if the shape has no tags.
    pub(crate) order: SmallVec<[usize; 6]>,
    /// Whether `fixed_windows/*.lua` can decide the policy.
    pub(crate) is_fixed_windows: bool,
    /// The length of a stored state in bytes, for fixed windows.
    pub(crate) state_len: u16,
    /// The fixed windows that begin with the first request, in the order of the scripts.
    pub(crate) windows: SmallVec<[StoredWindow; 6]>,
}

/// The stored form of a fixed window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoredWindow {
    /// The number of bytes that hold the remaining time.
    pub(crate) bytes: usize,
    /// The period in µs.
    pub(crate) micros: u64,
}

impl PolicyEncoding {
    pub(crate) fn new(policy: &Policy) -> Self {
        let mut order: SmallVec<[usize; 6]> = (0..policy.limits().len()).collect();
        if named_set(policy).is_some() {
            order.sort_by_key(|place| policy.limits()[*place].limit().period());
        }
        let (shape, width) = (shape(policy), width(policy));
        let mut format = Format::new(shape.len());
        let mut state_len = shape.len() + 7;
        let mut windows = SmallVec::new();
        for place in &order {
            let limit = policy.limits()[*place].limit();
            match limit.algorithm() {
                _ if is_window(limit) => {
                    let micros = limit.period().as_micros();
                    let bytes = bytes_of(micros);
                    windows.push(StoredWindow { bytes: bytes.into(), micros });
                    state_len += usize::from(bytes + width);
                    format.push_integers(&[bytes, width]);
                }
                Algorithm::SlidingWindowCounter => {
                    let bytes = counter_bytes(limit);
                    format.push_integers(&[bytes, width, width, bytes]);
                }
                _ => (0..algorithm::stored_cells(limit)).for_each(|_| format.push_integers(&[7])),
            }
        }
        Self {
            shape,
            format: format.0,
            order,
            is_fixed_windows: is_fixed_windows(policy),
            state_len: u16::try_from(state_len).expect("sixteen windows are a few hundred bytes"),
            windows,
        }
    }

    /// Returns the limits in the order of the scripts.
    pub(crate) fn limits<'a>(
        &self,
        policy: &'a Policy,
    ) -> impl Iterator<Item = Limit> + use<'_, 'a> {
        self.order.iter().map(|place| policy.limits()[*place].limit())
    }
}

/// Returns whether all limits are fixed windows that begin with the first request, count units and
/// are enforced. `fixed_windows/*.lua` decide such policies, for several subjects in one call.
pub(crate) fn is_fixed_windows(policy: &Policy) -> bool {
    let mut limits = policy.limits().iter().map(|named| named.limit());
    limits.all(|limit| is_window(limit) && !limit.is_shadow() && !limit.counts_requests())
}

/// Returns the most calls that one script evaluates one by one, so that it does not block the
/// server for a millisecond. It is less for a policy whose calls take longer.
pub(crate) fn max_evaluated_calls(policy: &Policy) -> usize {
    const MAX_CALLS: u64 = 64;
    const MAX_WEIGHT: u64 = 400;
    let weight: u64 = policy.limits().iter().map(|named| weight(named.limit())).sum();
    (MAX_WEIGHT / weight.max(1)).clamp(1, MAX_CALLS) as usize
}

/// Returns the most subjects that one script call decides. It is less for a policy of more limits.
pub(crate) fn max_subjects(policy: &Policy) -> usize {
    MAX_WINDOWS_PER_CALL / policy.limits().len()
}

/// A format of Lua's `struct`.
struct Format(Vec<u8>);

impl Format {
    /// Creates a format that begins with a header of `header` bytes and a time.
    fn new(header: usize) -> Self {
        Self(format!(">c{header}I7").into_bytes())
    }

    /// Appends unsigned integers of these sizes in bytes.
    fn push_integers(&mut self, sizes: &[u8]) {
        sizes.iter().for_each(|size| self.0.extend([b'I', b'0' + size]));
    }
}

/// Returns the header of a stored state.
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

/// Returns the number of bytes of a short count: enough for the largest count that is allowed.
fn width(policy: &Policy) -> u8 {
    let is_short = |limit: &Limit| is_window(*limit) || is_counter(*limit);
    let limits = policy.limits().iter().map(|named| named.limit()).filter(is_short);
    bytes_of(limits.map(Limit::max).max().unwrap_or_default())
}

/// Returns how many bytes hold `number`, at least one.
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

/// Returns the code of a policy that needs no tags.
///
/// Its limits count units over named periods. They are all fixed windows that begin with the first
/// request, or all sliding window counters.
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

/// Returns the number of bytes that hold each of the two stored times of a sliding window counter.
fn counter_bytes(limit: Limit) -> u8 {
    bytes_of(2 * limit.period().as_micros())
}

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

/// Appends a number as six bytes, which hold every period in milliseconds.
fn push_u48(bytes: &mut Vec<u8>, number: u64) {
    bytes.extend_from_slice(&number.to_be_bytes()[2..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shape_names_the_states_of_a_policy_and_not_their_maxima() {
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
    fn fixed_windows_of_named_periods_are_ordered_by_period() {
        let encoded = |limits: [&str; 3]| {
            let policy = Policy::new(limits.map(|text| text.parse().unwrap())).unwrap();
            let encoding = PolicyEncoding::new(&policy);
            (encoding.shape, encoding.order.to_vec())
        };
        let (shape, order) = encoded(["9/minute", "9/day", "9/second"]);
        assert_eq!((&shape[2..], &order[..]), (&[0b1011][..], &[2, 0, 1][..]));
        assert_eq!(encoded(["9/second", "9/minute", "9/day"]), (shape, vec![0, 1, 2]));
        let (_, order) = encoded(["9/minute", "9/day", "9/1500ms"]);
        assert_eq!(order, [0, 1, 2], "the tags keep the order of the policy");
    }
}
