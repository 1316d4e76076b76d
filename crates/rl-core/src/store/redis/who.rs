//! Whose counters, as a key of tables.

use std::hash::{Hash, Hasher};

use indexmap::Equivalent;

use crate::Subject;
use crate::store::Namespace;

/// A subject in a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Who {
    pub(super) namespace: Namespace,
    pub(super) subject: Subject,
}

/// The same, borrowed.
#[derive(Clone, Copy, Debug)]
pub(super) struct WhoRef<'a> {
    pub(super) namespace: &'a Namespace,
    pub(super) subject: &'a Subject,
}

impl Who {
    pub(super) const fn as_ref(&self) -> WhoRef<'_> {
        WhoRef { namespace: &self.namespace, subject: &self.subject }
    }
}

impl WhoRef<'_> {
    pub(super) fn to_owned(self) -> Who {
        Who { namespace: self.namespace.clone(), subject: self.subject.clone() }
    }
}

impl Hash for Who {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_ref().hash(state);
    }
}

impl Hash for WhoRef<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // There are few namespaces, and many subjects: those alone are spread.
        self.subject.hash(state);
    }
}

impl Equivalent<Who> for WhoRef<'_> {
    fn equivalent(&self, other: &Who) -> bool {
        *self.subject == other.subject && *self.namespace == other.namespace
    }
}
