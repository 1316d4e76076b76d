use std::fmt;
use std::hash::{BuildHasher, RandomState};

use crate::model::{Realm, Subject};
use crate::store::Namespace;

/// A subject in a namespace, as a store knows it: two numbers.
///
/// Every subject costs the same memory, however long its id.
///
/// # Why two subjects never share one
///
/// Realm and id are cut into numbers *m* of less than 2^57, each with a place of its own; their lengths
/// and a digest of the namespace are among them, so distinct subjects have distinct numbers. A lane is
/// k₀ + Σ kᵢ × mᵢ modulo the prime 2^61 − 1, with keys *k* drawn at random when the store is made; or that
/// and some multiple of the prime, the same for equal sums, so that the lanes of two subjects are equal only
/// if their sums are equal modulo the prime. Where two subjects differ in a number mᵢ, exactly one value of kᵢ
/// makes them so, whatever the other keys are: a lane is equal for two subjects with a probability of 2^-61, both lanes with 2^-122
/// (*multilinear hashing*, Carter and Wegman 1979). That is proven for every two subjects that are chosen
/// without knowing the keys, and the keys and fingerprints never leave the process. Among ten million
/// subjects, chosen by whomever, two share one with a probability of 10^-23.
///
/// Ids that follow each other have lanes that do, with the same step between them, and with an unlucky
/// step they would crowd together. So the bits of the lane that says where a subject stands are mixed in
/// the end, by a step that can be undone: what was distinct stays so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fingerprint {
    // The second is the one that is mixed.
    lanes: [u64; 2],
}

impl Fingerprint {
    /// The one that no subject has: what is counted together when the store is full.
    pub(super) const OVERFLOW: Self = Self { lanes: [u64::MAX; 2] };

    /// A number below `count`, a power of two up to 2^13, that is spread evenly over subjects.
    #[inline]
    pub(super) const fn spread(self, count: usize) -> usize {
        (self.lanes[1] >> 16) as usize & (count - 1)
    }

    /// 32 bits, spread evenly over subjects; they say nothing of a [`spread`](Self::spread) over 2^13.
    #[inline]
    pub(super) const fn place(self) -> u32 {
        (self.lanes[1] >> 29) as u32
    }

    /// All bits that are spread evenly over subjects.
    #[cfg(feature = "redis")]
    pub(super) const fn bits(self) -> u64 {
        self.lanes[1]
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

/// Numbers of the name of a realm of one's own, and of an id: what is longer is kept as a digest.
const OF_REALM: usize = 32_usize.div_ceil(BYTES) + 1;
const OF_ID: usize = Subject::MAX_ID_LEN.div_ceil(BYTES) + 1;

/// For both lanes, the key of one number.
type Key = [u64; 2];

/// Makes fingerprints with keys of its own.
#[derive(Clone)]
pub(super) struct Fingerprinter(Box<Keys>);

#[derive(Clone)]
struct Keys {
    sums: [u128; 2],
    /// The most usual namespace, and the sums with it.
    usual: ([u64; 2], [u128; 2]),
    lengths: Key,
    id: [Key; OF_ID],
    namespace: [Key; 2],
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
        let (sums, namespace) = (key().map(u128::from), [key(), key()]);
        let usual = Namespace::default().digest();
        let with_usual = Sums(sums).with_namespace(usual, namespace);
        Self(Box::new(Keys {
            sums,
            usual: (usual, with_usual.0),
            lengths: key(),
            id: std::array::from_fn(|_| key()),
            namespace,
            realm: std::array::from_fn(|_| key()),
        }))
    }

    #[inline(always)]
    pub(super) fn fingerprint(&self, namespace: &Namespace, subject: &Subject) -> Fingerprint {
        let keys = &*self.0;
        let (id, is_digest) = subject.id().parts();
        let (usual, with_usual) = keys.usual;
        let mut sums = match namespace.digest() {
            digest if digest == usual => Sums(with_usual),
            digest => Sums(keys.sums).with_namespace(digest, keys.namespace),
        };
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
        // Each is far below what stands above it.
        let lengths = (id.len() as u64) << 16 | realm << 8 | u64::from(is_digest);
        sums.add(lengths, keys.lengths);
        sums.add_bytes(id, &keys.id);
        let [first, second] = sums.0.map(folded);
        Fingerprint { lanes: [first, mixed(second)] }
    }
}

/// Hashes subjects with keys of this process. Two subjects share a hash with a probability of 2^-61.
#[derive(Debug)]
pub(crate) struct SubjectHasher {
    fingerprinter: Fingerprinter,
    namespace: Namespace,
}

impl SubjectHasher {
    pub(crate) fn random() -> Self {
        Self { fingerprinter: Fingerprinter::random(), namespace: Namespace::default() }
    }

    /// Returns the hash of `subject`, which is never 0.
    #[inline]
    pub(crate) fn hash(&self, subject: &Subject) -> u64 {
        self.fingerprinter.fingerprint(&self.namespace, subject).lanes[1].max(1)
    }
}

/// Of both lanes. No sum exceeds 2^124: there are fewer than 64 products below 2^118.
struct Sums([u128; 2]);

impl Sums {
    #[inline]
    fn with_namespace(mut self, digest: [u64; 2], keys: [Key; 2]) -> Self {
        for (number, key) in digest.into_iter().zip(keys) {
            self.add(number, key);
        }
        self
    }

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
        let number = match (rest.len(), bytes.last_chunk::<8>()) {
            (0, _) => return,
            // The last seven, of which some were read before.
            (_, Some(eight)) => u64::from_le_bytes(*eight) >> 8,
            // Twice what stands in the middle, and never above the prime.
            (4.., None) => {
                let [first, last] = [rest.first_chunk::<4>(), rest.last_chunk::<4>()]
                    .map(|four| four.map_or(0, |four| u64::from(u32::from_le_bytes(*four))));
                first | last << 24
            }
            // First, middle and last, of which some may be the same.
            (len, None) => {
                let byte = |place: usize| u64::from(rest[place]);
                byte(0) | byte(len / 2) << 8 | byte(len - 1) << 16
            }
        };
        let Some(key) = keys.next() else { return };
        self.add(number, *key);
    }
}

/// A number that is equal to a sum below 2^124, modulo the prime: what is folded to the same is equal modulo
/// the prime.
#[inline]
const fn folded(sum: u128) -> u64 {
    // 2^61 is 1 here: the upper bits, less than 2^63, are added to the lower ones.
    (sum as u64 & PRIME) + (sum >> 61) as u64
}

/// Another number for each number, its bits spread over all others.
#[inline]
const fn mixed(lane: u64) -> u64 {
    // An odd number, so that the product can be undone; its bits are those of the golden ratio.
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

    let lane = (lane ^ lane >> 32).wrapping_mul(ODD);
    lane ^ lane >> 32
}

impl fmt::Debug for Fingerprinter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fingerprinter(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Each differs from the others in one thing.
    #[test]
    fn what_differs_in_anything_has_another_fingerprint() {
        let fingerprinter = Fingerprinter::random();
        let [default, login]: [Namespace; 2] =
            ["default", "login"].map(|name| name.parse().unwrap());
        let mut subjects = vec![
            Subject::user(""),
            Subject::global(),
            Subject::ip("10.0.0.1"),
            Subject::consumer("10.0.0.1"),
            Subject::digest(Realm::Key, [b'a'; 16]),
            Subject::new(Realm::Key, &"a".repeat(16)),
            Subject::new(Realm::custom("tenant").unwrap(), "10.0.0.1"),
            Subject::new(Realm::custom("tenan").unwrap(), "10.0.0.1"),
            Subject::new(Realm::custom("tenants").unwrap(), "10.0.0.1"),
        ];
        // Ids of every length, and with a bit more in each byte.
        for len in 1..=Subject::MAX_ID_LEN + 1 {
            let id = "a".repeat(len);
            subjects.push(Subject::user(&id));
            for place in (0..len.min(40)).chain([len - 1]) {
                let mut id = id.clone().into_bytes();
                id[place] = b'c';
                subjects.push(Subject::user(&String::from_utf8(id).unwrap()));
            }
        }
        let distinct: HashSet<_> = subjects.iter().cloned().collect();
        let fingerprints: HashSet<_> = distinct
            .iter()
            .flat_map(|subject| [(&default, subject), (&login, subject)])
            .map(|(namespace, subject)| fingerprinter.fingerprint(namespace, subject).lanes)
            .collect();
        assert_eq!(fingerprints.len(), 2 * distinct.len());
        assert!(!fingerprints.contains(&Fingerprint::OVERFLOW.lanes));
    }

    /// With some keys two thirds of the places were never taken by ids that follow each other.
    #[test]
    fn subjects_spread_evenly_whatever_the_keys_are() {
        const PLACES: usize = 64;
        const EACH: usize = 50;

        let namespace = Namespace::default();
        for _ in 0..300 {
            let fingerprinter = Fingerprinter::random();
            let mut taken = [[0_usize; PLACES]; 3];
            for n in 0..PLACES * EACH {
                let subject = Subject::user(&format!("user-{n}"));
                let fingerprint = fingerprinter.fingerprint(&namespace, &subject);
                taken[0][fingerprint.spread(PLACES)] += 1;
                taken[1][fingerprint.place() as usize >> 26] += 1;
                taken[2][fingerprint.tag() as usize % PLACES] += 1;
            }
            // As far from fifty as is to be expected once in a million times.
            let is_even = |count: &usize| (15..=95).contains(count);
            assert!(taken.iter().flatten().all(is_even), "{taken:?}");
        }
    }

    #[test]
    fn sums_are_folded_to_what_is_equal_modulo_the_prime() {
        let prime = u128::from(PRIME);
        for sum in [0, 1, prime - 1, prime, prime + 1, 2 * prime, prime * prime, u128::MAX >> 4] {
            assert_eq!(u128::from(folded(sum)) % prime, sum % prime, "{sum}");
        }
    }
}
