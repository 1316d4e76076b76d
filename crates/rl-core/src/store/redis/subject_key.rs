//! The keys that stand for subjects in maps of this process.

use std::hash::{BuildHasherDefault, Hash, Hasher};

use indexmap::IndexMap;

use crate::model::Subject;
use crate::store::Namespace;
use crate::store::fingerprint::Fingerprint;

/// The key of a subject in a namespace, for maps of this process.
///
/// It is the fingerprint of the subject, so all keys have the same size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SubjectKey(Fingerprint);

/// A map by subject, whose entries also have indices. So a task can visit them in several steps.
pub(crate) type SubjectMap<T> = IndexMap<SubjectKey, T, BuildHasherDefault<IdentityHasher>>;

/// A subject in a namespace, with its key.
#[derive(Clone, Debug)]
pub(crate) struct KeyedSubject {
    pub(crate) namespace: Namespace,
    pub(crate) subject: Subject,
    pub(crate) key: SubjectKey,
}

impl SubjectKey {
    pub(super) const fn new(fingerprint: Fingerprint) -> Self {
        Self(fingerprint)
    }

    /// Returns 64 bits of the key. Two subjects hardly ever have the same bits.
    pub(crate) const fn bits(self) -> u64 {
        self.0.bits()
    }

    /// Returns the shard of the subject among `count` shards. `count` is a power of two up to 2^13.
    pub(crate) const fn shard(self, count: usize) -> usize {
        self.0.spread(count)
    }
}

impl Hash for SubjectKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0.bits());
    }
}

/// Uses the bits of a fingerprint as the hash, because they are already keyed and evenly
/// distributed.
#[derive(Debug, Default)]
pub(crate) struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn write(&mut self, _: &[u8]) {
        unreachable!("a subject key writes a single number");
    }

    fn write_u64(&mut self, bits: u64) {
        self.0 = bits;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
