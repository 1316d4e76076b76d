use std::fmt;
use std::hash::{BuildHasher, RandomState};

use crate::model::{Realm, Subject};
use crate::store::Namespace;

/// A subject in a namespace, as the store knows it: two numbers below 2^61 − 1.
///
/// Every subject costs the same memory, however long its id.
///
/// # Why two subjects never share one
///
/// Namespace, realm and id are cut into numbers *m* of less than 2^57, each with a place of its own;
/// their lengths are among them, so distinct subjects have distinct numbers. A lane is
/// k₀ + Σ kᵢ × mᵢ modulo the prime 2^61 − 1, with keys *k* drawn at random when the store is made. Where
/// two subjects differ in a number mᵢ, exactly one value of kᵢ makes their sums equal, whatever the
/// other keys are: a lane is equal for two subjects with a probability of 2^-61, both lanes with 2^-122
/// (*multilinear hashing*, Carter and Wegman 1979). That is proven for every two subjects that are chosen
/// without knowing the keys, and the keys and fingerprints never leave the process. Among ten million
/// subjects, chosen by whomever, two share one with a probability of 10^-23.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fingerprint {
    lanes: [u64; 2],
}

impl Fingerprint {
    /// The one that no subject has: what is counted together when the store is full.
    pub(super) const OVERFLOW: Self = Self { lanes: [u64::MAX; 2] };

    /// A number below `count`, a power of two up to 2^32, that is spread evenly over subjects.
    #[inline]
    pub(super) const fn spread(self, count: usize) -> usize {
        (self.lanes[0] >> 16) as usize & (count - 1)
    }

    /// 32 bits, spread evenly over subjects; the last of them say nothing of [`spread`](Self::spread).
    #[inline]
    pub(super) const fn place(self) -> u32 {
        (self.lanes[1] >> 29) as u32
    }

    /// Bits that say nothing of the others.
    #[inline]
    pub(super) const fn tag(self) -> u32 {
        self.lanes[1] as u32 & 0xffff
    }

    #[cfg(test)]
    pub(super) const fn at_place(number: u64, place: u32) -> Self {
        Self { lanes: [number, (place as u64) << 29 | number & 0xffff] }
    }
}

const PRIME: u64 = (1 << 61) - 1;

/// Bytes of a number.
const BYTES: usize = 7;

/// Numbers of a namespace, of the name of a realm of one's own, and of an id: what is longer is kept
/// as a digest.
const OF_NAMESPACE: usize = 64_usize.div_ceil(BYTES) + 1;
const OF_REALM: usize = 32_usize.div_ceil(BYTES) + 1;
const OF_ID: usize = Subject::MAX_ID_LEN.div_ceil(BYTES) + 1;

/// For both lanes, the key of one number.
type Key = [u64; 2];

/// Makes fingerprints with keys of its own.
#[derive(Clone)]
pub(super) struct Fingerprinter(Box<Keys>);

#[derive(Clone)]
struct Keys {
    sums: [u64; 2],
    lengths: Key,
    id: [Key; OF_ID],
    namespace: [Key; OF_NAMESPACE],
    realm: [Key; OF_REALM],
}

impl Fingerprinter {
    pub(super) fn random() -> Self {
        // `RandomState` is the standard library's source of random hash keys: a pseudorandom function.
        let (random, mut count) = (RandomState::new(), 0_u64);
        let mut number = || loop {
            count += 1;
            let number = random.hash_one(count) & PRIME;
            if number < PRIME {
                return number;
            }
        };
        let mut key = || [number(), number()];
        Self(Box::new(Keys {
            sums: key(),
            lengths: key(),
            id: std::array::from_fn(|_| key()),
            namespace: std::array::from_fn(|_| key()),
            realm: std::array::from_fn(|_| key()),
        }))
    }

    #[inline]
    pub(super) fn fingerprint(&self, namespace: &Namespace, subject: &Subject) -> Fingerprint {
        let keys = &*self.0;
        let (namespace, id) = (namespace.as_str().as_bytes(), subject.id());
        let mut sums = Sums(keys.sums.map(u128::from));
        // A realm is the length of its name if it is one's own, else a number above all lengths.
        let realm = match subject.realm() {
            Realm::Custom(_) => {
                let name = subject.realm().as_str().as_bytes();
                sums.add_bytes(name, &keys.realm);
                name.len() as u64
            }
            Realm::Ip => 64,
            Realm::Key => 65,
            Realm::Consumer => 66,
            Realm::User => 67,
            Realm::Global => 68,
            Realm::Unknown => 69,
        };
        let is_digest = u64::from(id.as_text().is_none());
        let id = id.as_bytes();
        // Each is far below what stands above it.
        let lengths = (id.len() as u64) << 24 | (namespace.len() as u64) << 16 | realm << 8;
        sums.add(lengths | is_digest, keys.lengths);
        sums.add_bytes(namespace, &keys.namespace);
        sums.add_bytes(id, &keys.id);
        Fingerprint { lanes: sums.0.map(modulo) }
    }
}

/// Of both lanes. No sum exceeds 2^128: there are fewer than 64 products below 2^118.
struct Sums([u128; 2]);

impl Sums {
    #[inline]
    fn add(&mut self, number: u64, key: Key) {
        self.0[0] += u128::from(number) * u128::from(key[0]);
        self.0[1] += u128::from(number) * u128::from(key[1]);
    }

    /// Adds all bytes, if there are keys for them. Of two texts of one length that differ, a number
    /// differs.
    #[inline]
    fn add_bytes(&mut self, bytes: &[u8], keys: &[Key]) {
        const MASK: u64 = (1 << (8 * BYTES)) - 1;

        debug_assert!(bytes.len().div_ceil(BYTES) < keys.len());
        let mut keys = keys.iter();
        let mut rest = bytes;
        // Eight are read where seven are meant, as long as there are as many.
        while let Some(eight) = rest.first_chunk::<8>() {
            let Some(key) = keys.next() else { return };
            self.add(u64::from_le_bytes(*eight) & MASK, *key);
            rest = &rest[BYTES..];
        }
        let number = match rest.len() {
            0 => return,
            // Twice what stands in the middle, and never above the prime.
            4.. => {
                let [first, last] = [rest.first_chunk::<4>(), rest.last_chunk::<4>()]
                    .map(|four| four.map_or(0, |four| u64::from(u32::from_le_bytes(*four))));
                first | last << 24
            }
            _ => rest.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)),
        };
        let Some(key) = keys.next() else { return };
        self.add(number, *key);
    }
}

/// What is left of a sum after division by the prime.
#[inline]
const fn modulo(sum: u128) -> u64 {
    // 2^61 is 1 here: the upper bits are added to the lower ones.
    const LOW: u128 = PRIME as u128;
    let folded = (sum & LOW) + (sum >> 61);
    let folded = (folded & LOW) + (folded >> 61);
    let rest = folded as u64;
    if rest >= PRIME { rest - PRIME } else { rest }
}

impl fmt::Debug for Fingerprinter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fingerprinter(…)")
    }
}
