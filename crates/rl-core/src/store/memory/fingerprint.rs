use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState};

use siphasher::sip128::{Hasher128, SipHasher13};

use crate::Subject;
use crate::store::Namespace;

/// A subject in a namespace, as the store knows it: a keyed 128-bit hash.
///
/// Every subject costs the same memory, however long its id. The key is random and never leaves
/// the process, so nobody can look for two subjects with one fingerprint; by chance two of ten
/// million meet with a probability of 10^-25.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fingerprint {
    high: u64,
    low: u64,
}

impl Fingerprint {
    /// The one that no subject has: what is counted together when the store is full.
    pub(super) const OVERFLOW: Self = Self { high: 0, low: 0 };

    /// A number below `count` that is spread evenly over subjects.
    pub(super) const fn spread(self, count: usize) -> usize {
        // The map beneath uses `low`: both must not depend on the same bits.
        (self.high as usize) & (count - 1)
    }
}

impl Hash for Fingerprint {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.low);
    }
}

/// Makes fingerprints with a key of its own.
#[derive(Clone, Debug)]
pub(super) struct Fingerprinter(SipHasher13);

impl Fingerprinter {
    pub(super) fn random() -> Self {
        // `RandomState` is the standard library's source of random hash keys.
        let key = || RandomState::new().hash_one(0_u8);
        Self(SipHasher13::new_with_keys(key(), key()))
    }

    pub(super) fn fingerprint(&self, namespace: &Namespace, subject: &Subject) -> Fingerprint {
        let mut hasher = self.0;
        let id = subject.id();
        // Each part but the last is ended by a byte that cannot stand in it, and the kind of the
        // last is said before it: distinct subjects are distinct bytes.
        hasher.write(namespace.as_str().as_bytes());
        hasher.write(b"\0");
        hasher.write(subject.realm().as_str().as_bytes());
        hasher.write(if id.as_text().is_some() { b"\0" } else { b"\x01" });
        hasher.write(id.as_bytes());
        let hash = hasher.finish128();
        Fingerprint { high: hash.h1, low: hash.h2 }
    }
}

/// The map's hasher: a fingerprint is a hash already.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AlreadyHashed(u64);

impl Hasher for AlreadyHashed {
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("fingerprints are hashed as one number");
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

pub(super) type BuildAlreadyHashed = BuildHasherDefault<AlreadyHashed>;
