use std::fmt;

use super::multilinear_hash::{HashSums, Key, NUMBER_BYTES, RandomKeys};
use crate::model::{Realm, Subject};
use crate::store::Namespace;

/// A 122-bit keyed hash of a namespace and a subject.
///
/// Stores use it as the key of a subject. It takes 16 bytes for every subject, however long the id
/// is.
///
/// # Why two subjects never share a fingerprint
///
/// A fingerprint consists of two halves. Each half is a *multilinear hash* (Carter and Wegman,
/// 1979):
///
/// ```text
/// half = d + k1 × m1 + k2 × m2 + …   modulo p = 2^61 − 1
///
///   d           the digest of the namespace: a sum of the same form over its name (`namespace.rs`)
///   m1, m2, …   the lengths, the realm and the id, cut into numbers below 2^57
///   k1, k2, …   keys below p, drawn at random when the store is created; each half has its own.
///               The keys of namespaces are drawn once for the process.
/// ```
///
/// * Distinct subjects have distinct sequences of numbers *m*, because the lengths are part of
///   them. So have distinct namespaces.
/// * If two subjects or their namespaces differ in *mᵢ*, exactly one value of *kᵢ* makes their
///   halves equal, whatever the other keys are. So one half is equal with a probability of 2^-61,
///   and both halves with 2^-122.
/// * A half is stored before its last reduction modulo *p*. This cannot make unequal halves equal.
///
/// The proof holds for every pair of subjects that is chosen without knowledge of the keys. Keys
/// and fingerprints never leave the process. So even if an attacker chooses the ids of ten million
/// subjects, two of them share a fingerprint with a probability of only 10^-23.
///
/// The second half selects the shard and the table slot. Consecutive ids differ by a constant step
/// in a half, and some steps would use only a few slots. The second half is therefore mixed by an
/// invertible function, which keeps distinct values distinct.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fingerprint {
    // The second half contains the result of `mix`.
    halves: [u64; 2],
}

impl Fingerprint {
    /// The fingerprint of the entry that new subjects share in a full shard. No subject has this
    /// fingerprint.
    pub(super) const OVERFLOW: Self = Self { halves: [u64::MAX; 2] };

    /// Returns an index below `count`, evenly distributed over subjects. `count` is a power of two
    /// up to 2^13.
    pub(super) const fn spread(self, count: usize) -> usize {
        (self.halves[1] >> 16) as usize & (count - 1)
    }

    /// Returns 51 bits that are independent of [`spread`](Self::spread), for a hash table of the
    /// subjects that have the same. They are the lowest 35 and the highest 16 bits of the result.
    pub(super) const fn hash_in_shard(self) -> u64 {
        self.halves[1] >> 29 | self.halves[1] << 48
    }

    /// Returns 64 bits that a map can use as the hash.
    #[cfg(feature = "redis")]
    pub(super) const fn bits(self) -> u64 {
        self.halves[1]
    }

    #[cfg(test)]
    pub(super) const fn with_home(number: u64, home: u32) -> Self {
        Self { halves: [number, (home as u64) << 29 | number & 0xffff] }
    }
}

/// The number of hash keys for the longest name of a custom realm, and for the longest id. An id
/// that is longer than that is replaced by its digest.
const REALM_NUMBERS: usize = 32_usize.div_ceil(NUMBER_BYTES) + 1;
const ID_NUMBERS: usize = Subject::MAX_ID_LEN.div_ceil(NUMBER_BYTES) + 1;

/// Creates fingerprints with its own random keys.
#[derive(Clone)]
pub(super) struct Fingerprinter(Box<Keys>);

#[derive(Clone)]
struct Keys {
    lengths: Key,
    id: [Key; ID_NUMBERS],
    realm: [Key; REALM_NUMBERS],
}

impl Fingerprinter {
    /// Creates a fingerprinter with random keys.
    pub(super) fn random() -> Self {
        let mut keys = RandomKeys::new();
        Self(Box::new(Keys { lengths: keys.next(), id: keys.many(), realm: keys.many() }))
    }

    /// Returns the fingerprint of `subject` in `namespace`.
    #[inline(always)]
    pub(super) fn fingerprint(&self, namespace: &Namespace, subject: &Subject) -> Fingerprint {
        let keys = &*self.0;
        let (id, is_digest) = subject.id().parts();
        let mut sums = HashSums::new(namespace.digest());
        if let Realm::Custom(_) = subject.realm() {
            sums.add_text(subject.realm().as_str().as_bytes(), &keys.realm);
        }
        let realm = realm_number(subject.realm());
        // The fields do not overlap: the number of the realm has 7 bits, and the flag has one.
        let lengths = (id.len() as u64) << 16 | realm << 8 | u64::from(is_digest);
        sums.add(lengths, keys.lengths);
        sums.add_text(id, &keys.id);
        let [first, second] = sums.reduced();
        Fingerprint { halves: [first, mix(second)] }
    }
}

/// Returns the number of a realm. A custom realm is represented by the length of its name. Other
/// realms have numbers above all lengths.
fn realm_number(realm: &Realm) -> u64 {
    match realm {
        Realm::Ip => 64,
        Realm::Key => 65,
        Realm::Consumer => 66,
        Realm::User => 67,
        Realm::Global => 68,
        Realm::Unknown => 69,
        Realm::Custom(_) => realm.as_str().len() as u64,
    }
}

/// Hashes subjects with random keys of this process. Two subjects share a hash with a probability
/// of 2^-61.
#[derive(Debug)]
pub(crate) struct SubjectHasher {
    fingerprinter: Fingerprinter,
    namespace: Namespace,
}

impl SubjectHasher {
    /// Creates a hasher with random keys.
    pub(crate) fn random() -> Self {
        Self { fingerprinter: Fingerprinter::random(), namespace: Namespace::default() }
    }

    /// Returns the hash of `subject`, which is never 0.
    pub(crate) fn hash(&self, subject: &Subject) -> u64 {
        self.fingerprinter.fingerprint(&self.namespace, subject).halves[1].max(1)
    }
}

/// Mixes all bits of a half. The function is invertible, so distinct halves stay distinct.
const fn mix(half: u64) -> u64 {
    // The first 64 bits of the fraction of the golden ratio. The number is odd, so the
    // multiplication is invertible.
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

    let half = (half ^ half >> 32).wrapping_mul(ODD);
    half ^ half >> 32
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

    #[test]
    fn subjects_that_differ_in_one_byte_have_different_fingerprints() {
        let fingerprinter = Fingerprinter::random();
        let [default, login]: [Namespace; 2] =
            ["default", "login"].map(|name| name.parse().unwrap());
        let mut subjects = vec![
            Subject::user(""),
            Subject::global(),
            Subject::ip([10, 0, 0, 1]),
            Subject::consumer("10.0.0.1"),
            Subject::digest(Realm::Key, [b'a'; 16]),
            Subject::new(Realm::Key, &"a".repeat(16)),
            Subject::new(Realm::custom("tenant").unwrap(), "10.0.0.1"),
            Subject::new(Realm::custom("tenan").unwrap(), "10.0.0.1"),
            Subject::new(Realm::custom("tenants").unwrap(), "10.0.0.1"),
        ];
        // Ids of every length, and for each of them ids that differ from it in one byte.
        for len in 1..=Subject::MAX_ID_LEN + 1 {
            let id = "a".repeat(len);
            subjects.push(Subject::user(&id));
            for changed in (0..len.min(40)).chain([len - 1]) {
                let mut id = id.clone().into_bytes();
                id[changed] = b'c';
                subjects.push(Subject::user(&String::from_utf8(id).unwrap()));
            }
        }
        let distinct: HashSet<_> = subjects.iter().cloned().collect();
        let fingerprints: HashSet<_> = distinct
            .iter()
            .flat_map(|subject| [(&default, subject), (&login, subject)])
            .map(|(namespace, subject)| fingerprinter.fingerprint(namespace, subject).halves)
            .collect();
        assert_eq!(fingerprints.len(), 2 * distinct.len());
        assert!(!fingerprints.contains(&Fingerprint::OVERFLOW.halves));
    }

    /// Fault: without the mixing step, consecutive ids left two thirds of the buckets empty under
    /// some keys.
    #[test]
    fn consecutive_ids_are_distributed_evenly_under_all_keys() {
        const BUCKETS: usize = 64;
        const SUBJECTS_PER_BUCKET: usize = 50;

        let namespace = Namespace::default();
        for _ in 0..300 {
            let fingerprinter = Fingerprinter::random();
            let mut counts = [[0_usize; BUCKETS]; 3];
            for n in 0..BUCKETS * SUBJECTS_PER_BUCKET {
                let subject = Subject::user(&format!("user-{n}"));
                let fingerprint = fingerprinter.fingerprint(&namespace, &subject);
                counts[0][fingerprint.spread(BUCKETS)] += 1;
                counts[1][fingerprint.hash_in_shard() as usize % BUCKETS] += 1;
                counts[2][(fingerprint.hash_in_shard() >> 57) as usize % BUCKETS] += 1;
            }
            // For each fingerprinter, the probability that one of the 192 counts is outside this
            // range is one in a million.
            let is_even = |count: &usize| (15..=95).contains(count);
            assert!(counts.iter().flatten().all(is_even), "{counts:?}");
        }
    }
}
