//! The encoding of a policy: the states that it uses, and their stored form.
//!
//! A stored state begins with a header, the *shape*:
//!
//! ```text
//!   byte 0     1           2                3 …
//!   ┌─────────┬───────────┬────────────────┬──────────────────────┐
//!   │ version │ width of  │ code           │ one tag per limit,   │
//!   │ 6       │ a count   │                │ if the code is ≥ 128 │
//!   └─────────┴───────────┴────────────────┴──────────────────────┘
//!   code < 64    fixed windows from the first request, one bit for each named period
//!   code < 128   sliding window counters, 64 + one bit for each named period
//!   code ≥ 128   128 + the number of tags that follow
//! ```
//!
//! `scripts/lib/slots.lua` describes the tags, and the numbers after the header.

use smallvec::SmallVec;

use super::kind::{Kind, LimitKind, ScriptShape};
use crate::algorithm;
use crate::model::{Algorithm, Anchor, Limit, Period, Refill};
use crate::policy::{Policy, weight};

/// The version of the packed state, its first byte.
pub(crate) const VERSION: u8 = 6;

/// The largest number of subjects of one script call. Such a call keeps the server busy for 80 to
/// 200 µs, and up to 350 µs if all buckets of sliding windows expire together.
pub(crate) const MAX_SUBJECTS: usize = 32;

/// The maximum weight of one script call: the sum of the weights of the limits of all its subjects.
const MAX_WEIGHT_PER_CALL: u64 = 2560;

/// The bit of a tag for a limit that counts requests.
const REQUESTS: u8 = 0x08;

/// The form in which a policy is sent to scripts, and with which their replies are decoded.
///
/// It is built for each call. That takes a fraction of a microsecond, so it is not cached.
#[derive(Debug)]
pub(crate) struct PolicyEncoding {
    /// The header of a stored state.
    pub(crate) shape: Vec<u8>,
    /// The format in which Lua's `struct` reads and writes a state: shape, time, and cells.
    pub(crate) format: Vec<u8>,
    /// The indices of the policy's limits, in the order of the scripts.
    ///
    /// That is the order of their kinds, so that policies share scripts. Limits of one kind keep
    /// the order of the policy, or have the order of their periods if the shape has no tags.
    pub(crate) order: SmallVec<[usize; 6]>,
    /// The length of a stored state in bytes.
    pub(crate) state_len: u16,
    /// The stored form of each limit, in the order of the scripts.
    pub(crate) stored: SmallVec<[StoredLimit; 6]>,
}

/// The stored form of a limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoredLimit {
    pub(crate) kind: Kind,
    pub(crate) counts_requests: bool,
    /// The number of bytes of a stored time, for kinds that store it in as few bytes as possible.
    pub(crate) time_bytes: u8,
    /// The period in µs.
    pub(crate) period: u64,
    /// The length of a bucket of a sliding window in µs.
    pub(crate) precision: u64,
    /// The number of older buckets of a sliding window.
    pub(crate) older: u16,
    /// The number of stored cells, for kinds whose cells all have seven bytes; else 0.
    cells: u8,
}

impl StoredLimit {
    fn of(limit: Limit) -> Self {
        let (LimitKind { kind, counts_requests }, period) =
            (LimitKind::of(limit), limit.period().as_micros());
        let longest = if kind == Kind::WindowCounter { 2 * period } else { period };
        let precision = match limit.algorithm() {
            Algorithm::SlidingWindow { precision } => precision.as_micros(),
            _ => period,
        };
        // Counting the cells takes as long as the rest of this function, so it is done only if
        // needed.
        let older = match kind {
            // The newest bucket, its number and the first charge have cells of their own.
            Kind::SlidingWindow => algorithm::replied_cells(limit).saturating_sub(3),
            _ => 0,
        };
        let older = u16::try_from(older).expect("a policy has at most a few hundred buckets");
        let cells = match kind {
            Kind::Gcra | Kind::IntervalBucket | Kind::SlidingLog | Kind::Concurrency => {
                u8::try_from(algorithm::stored_cells(limit)).unwrap_or(u8::MAX)
            }
            _ => 0,
        };
        Self {
            kind,
            counts_requests,
            time_bytes: bytes_of(longest),
            period,
            precision,
            older,
            cells,
        }
    }

    /// Returns the size of each integer of the limit, with counts of `width` bytes.
    fn integers(&self, width: u8) -> SmallVec<[u8; 7]> {
        match self.kind {
            Kind::FixedWindow => SmallVec::from_slice(&[self.time_bytes, width]),
            Kind::ClockWindow | Kind::MonthWindow => {
                SmallVec::from_slice(&[self.time_bytes, width, 7])
            }
            Kind::WindowCounter => SmallVec::from_slice(&[self.time_bytes, width, width]),
            Kind::SlidingWindow => SmallVec::from_slice(&[7; 4]),
            Kind::Gcra | Kind::IntervalBucket | Kind::SlidingLog | Kind::Concurrency => {
                SmallVec::from_elem(7, self.cells.into())
            }
        }
    }
}

impl PolicyEncoding {
    pub(crate) fn new(policy: &Policy) -> Self {
        let limit = |place: &usize| policy.limits()[*place].limit();
        let mut order: SmallVec<[usize; 6]> = (0..policy.limits().len()).collect();
        if named_set(policy).is_some() {
            order.sort_by_key(|place| limit(place).period());
        } else {
            order.sort_by_key(|place| LimitKind::of(limit(place)));
        }
        let shape = shape(policy, &order);
        let width = shape[1];
        let stored: SmallVec<[StoredLimit; 6]> =
            order.iter().map(|place| StoredLimit::of(limit(place))).collect();

        let (format, state_len) = format_of(&stored, shape.len(), width);
        Self { shape, format, order, state_len, stored }
    }

    /// Returns the shape and the format of a state with counts of any size. The scripts of the
    /// readable layout return states in this form.
    pub(crate) fn of_any_count(&self) -> (Vec<u8>, Vec<u8>) {
        const WIDTH: u8 = 7;
        let mut shape = self.shape.clone();
        shape[1] = WIDTH;
        let (format, _) = format_of(&self.stored, shape.len(), WIDTH);
        (shape, format)
    }

    /// Returns the properties of the policy on which the text of its script depends.
    pub(crate) fn script_shape(&self) -> ScriptShape {
        let kind = |limit: &StoredLimit| LimitKind {
            kind: limit.kind,
            counts_requests: limit.counts_requests,
        };
        self.stored.iter().map(kind).collect()
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
/// are enforced. Units of such policies can be leased.
pub(crate) fn is_fixed_windows(policy: &Policy) -> bool {
    let mut limits = policy.limits().iter().map(|named| named.limit());
    limits.all(|limit| is_window(limit) && !limit.is_shadow() && !limit.counts_requests())
}

/// Returns whether checks of the policy have a fast path. They have one if no limit is in shadow.
/// One script call can decide several subjects under such a policy.
pub(crate) fn has_fast_path(policy: &Policy) -> bool {
    !policy.has_shadow()
}

/// Returns the largest number of checks that one script call evaluates one by one. This bound keeps
/// a call below a millisecond. It is smaller for a policy whose checks take longer.
pub(crate) fn max_evaluated_calls(policy: &Policy) -> usize {
    const MAX_CALLS: u64 = 64;
    const MAX_WEIGHT: u64 = 320;
    let weight: u64 = policy.limits().iter().map(|named| weight(named.limit())).sum();
    (MAX_WEIGHT / weight.max(1)).clamp(1, MAX_CALLS) as usize
}

/// Returns the largest number of subjects that one script call decides. It is smaller for a policy
/// whose decisions take longer.
pub(crate) fn max_subjects(policy: &Policy) -> usize {
    if !has_fast_path(policy) {
        return 1;
    }
    let weight = |limit| match Kind::of(limit) {
        // A call of several subjects reads only the newest entries of a log.
        Kind::SlidingLog | Kind::Concurrency => weight(limit).min(32),
        // The buckets are read and written as one string. Only those that expire are read one by
        // one.
        Kind::SlidingWindow => weight(limit) / 2,
        _ => weight(limit),
    };
    let weight: u64 = policy.limits().iter().map(|named| weight(named.limit())).sum();
    (MAX_WEIGHT_PER_CALL / weight.max(1)).clamp(1, MAX_SUBJECTS as u64) as usize
}

/// Returns the largest number of requests that one script call decides. Each request has one part
/// under each of these policies.
pub(crate) fn max_requests<'a>(policies: impl IntoIterator<Item = &'a Policy>) -> usize {
    let limits = policies.into_iter().flat_map(Policy::limits);
    let weight: u64 = limits.map(|named| weight(named.limit())).sum();
    (MAX_WEIGHT_PER_CALL / weight.max(1)).clamp(1, MAX_SUBJECTS as u64) as usize
}

/// Returns the format in which Lua's `struct` reads and writes a state with counts of `width`
/// bytes, and the length of such a state in bytes.
fn format_of(limits: &[StoredLimit], header: usize, width: u8) -> (Vec<u8>, u16) {
    let mut format = format!(">c{header}I7").into_bytes();
    let mut len = header + 7;
    for limit in limits {
        for size in limit.integers(width) {
            format.extend([b'I', b'0' + size]);
            len += usize::from(size);
        }
        if limit.kind == Kind::SlidingWindow {
            let buckets = usize::from(width) * usize::from(limit.older);
            format.extend(format!("c{buckets}").into_bytes());
            len += buckets;
        }
    }
    (format, u16::try_from(len).expect("a state has a few thousand bytes"))
}

/// Returns the header of a stored state.
fn shape(policy: &Policy, order: &[usize]) -> Vec<u8> {
    let mut shape = Vec::with_capacity(3 + 13 * policy.limits().len());
    shape.extend([VERSION, width(policy)]);
    match named_set(policy) {
        Some(set) => shape.push(set),
        None => {
            let count = u8::try_from(policy.limits().len());
            shape.push(0x80 | count.expect("a policy has at most 16 limits"));
            let limits = order.iter().map(|place| policy.limits()[*place].limit());
            limits.for_each(|limit| push_tag(&mut shape, limit));
        }
    }
    shape
}

/// Returns the number of bytes of a count: enough for the largest count that the policy allows.
fn width(policy: &Policy) -> u8 {
    let is_short = |limit: &Limit| {
        matches!(
            limit.algorithm(),
            Algorithm::FixedWindow { .. }
                | Algorithm::SlidingWindowCounter
                | Algorithm::SlidingWindow { .. }
        )
    };
    let limits = policy.limits().iter().map(|named| named.limit()).filter(is_short);
    bytes_of(limits.map(Limit::max).max().unwrap_or_default())
}

/// Returns the number of bytes that hold `number`, at least one.
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

/// Returns the code of a policy that needs no tags, or `None`.
///
/// The limits of such a policy count units over named periods. They are all fixed windows that
/// begin with the first request, or all sliding window counters.
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

/// Appends the tag of the state that the limit uses.
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
        Algorithm::FixedWindow { anchor: Anchor::ClockOffset(_) } => 0x70,
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
        Algorithm::FixedWindow { anchor: Anchor::ClockOffset(offset) } => {
            shape.push(2);
            push_u48(shape, offset.as_millis());
        }
        Algorithm::FixedWindow { .. }
        | Algorithm::SlidingWindowCounter
        | Algorithm::TokenBucket { .. }
        | Algorithm::Gcra { .. } => {}
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
        let shape_of = |text: &str| shape(&Policy::new([text.parse().unwrap()]).unwrap(), &[0]);
        assert_eq!(shape_of("1/second")[..], [6, 1, 0x01]);
        assert_eq!(shape_of("256/month")[..], [6, 2, 0x20]);
        assert_eq!(shape_of("255/minute:sliding-window-counter")[..], [6, 1, 0x42]);
        assert_eq!(shape_of("9/month:clock")[..], [6, 1, 0x81, 0x16]);
        let offset = [6, 1, 0x81, 0x74, 2, 0, 0, 0, 0x36, 0xEE, 0x80];
        assert_eq!(shape_of("9/day:clock:offset=1h")[..], offset);
        assert_eq!(shape_of("1/1000ms"), shape_of("200/second"));
        assert_eq!(shape_of("1/258ms")[..], [6, 1, 0x81, 0x80, 0, 0, 0, 0, 1, 2]);
        assert_eq!(shape_of("1/258ms:clock")[..], [6, 1, 0x81, 0x90, 0, 0, 0, 0, 1, 2]);
        assert_eq!(shape_of("1/minute:requests")[..], [6, 1, 0x81, 0x0a]);
        assert_eq!(shape_of("1/258ms:clock:requests")[..], [6, 1, 0x81, 0x98, 0, 0, 0, 0, 1, 2]);
        assert_eq!(shape_of("1/minute:sliding-log")[..], [6, 1, 0x81, 0x72, 0]);
        assert_eq!(shape_of("1:concurrency:lease=minute")[..], [6, 1, 0x81, 0x72, 1]);
        let of_258_ms = shape_of("1:concurrency:lease=258ms");
        assert_eq!(of_258_ms[..], [6, 1, 0x81, 0xf0, 0, 0, 0, 0, 1, 2, 1]);
        let mixed = ["9/hour", "9/day:clock"].map(|text| text.parse().unwrap());
        assert_eq!(shape(&Policy::new(mixed).unwrap(), &[0, 1])[..], [6, 1, 0x82, 0x03, 0x14]);
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
        let (shape, order) = encoded(["9/minute:gcra", "9/day", "9/minute"]);
        assert_eq!((&shape[2..], &order[..]), (&[0x83, 4, 2, 0x42][..], &[1, 2, 0][..]));
    }
}
