//! Whose counters, as a key of tables.

use std::hash::{BuildHasherDefault, Hash, Hasher};

use indexmap::{Equivalent, IndexMap};

use crate::model::Subject;
use crate::store::Namespace;
use crate::store::fingerprint::Fingerprint;

/// A subject in a namespace.
#[derive(Clone, Debug)]
pub(crate) struct Who {
    pub(crate) namespace: Namespace,
    pub(crate) subject: Subject,
    /// Which of them it is: no two have the same.
    pub(in crate::store::redis) fingerprint: Fingerprint,
}

/// The same, borrowed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WhoRef<'a> {
    pub(crate) namespace: &'a Namespace,
    pub(crate) subject: &'a Subject,
    pub(in crate::store::redis) fingerprint: Fingerprint,
}

/// A table by subjects. Fingerprints are spread already, by keys that nobody knows.
pub(crate) type ByWho<T> = IndexMap<Who, T, BuildHasherDefault<AsSpread>>;

impl Who {
    pub(crate) const fn as_ref(&self) -> WhoRef<'_> {
        let Self { namespace, subject, fingerprint } = self;
        WhoRef { namespace, subject, fingerprint: *fingerprint }
    }
}

impl WhoRef<'_> {
    pub(crate) fn to_owned(self) -> Who {
        let Self { namespace, subject, fingerprint } = self;
        Who { namespace: namespace.clone(), subject: subject.clone(), fingerprint }
    }
}

impl PartialEq for Who {
    fn eq(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint
    }
}

impl Eq for Who {}

impl Hash for Who {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_ref().hash(state);
    }
}

impl Hash for WhoRef<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.fingerprint.bits());
    }
}

impl Equivalent<Who> for WhoRef<'_> {
    fn equivalent(&self, other: &Who) -> bool {
        self.fingerprint == other.fingerprint
    }
}

/// Takes a number as it is.
#[derive(Debug, Default)]
pub(crate) struct AsSpread(u64);

impl Hasher for AsSpread {
    fn write(&mut self, _: &[u8]) {
        unreachable!("of a fingerprint one number is written");
    }

    fn write_u64(&mut self, bits: u64) {
        self.0 = bits;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
