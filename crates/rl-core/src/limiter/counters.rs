use crate::model::{Cost, Subject};
use crate::policy::Policy;
use crate::store::{Namespace, Part};

/// Identifies the counters of a subject.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counters<'a> {
    /// The namespace, if it is not the limiter's own.
    pub(super) namespace: Option<&'a Namespace>,
    pub(super) subject: &'a Subject,
}

impl<'a> Counters<'a> {
    /// Returns a part that charges the counters.
    pub(super) const fn part(self, policy: &'a Policy, cost: Cost) -> Part<'a> {
        let part = Part::new(self.subject, policy, cost);
        match self.namespace {
            Some(namespace) => part.with_namespace(namespace),
            None => part,
        }
    }

    /// Returns whether both identify the same counters. `own` is the namespace of the limiter.
    pub(super) fn is_same(self, other: Counters<'_>, own: &Namespace) -> bool {
        self.subject == other.subject
            && self.namespace.unwrap_or(own) == other.namespace.unwrap_or(own)
    }
}

impl<'a> From<&'a Subject> for Counters<'a> {
    fn from(subject: &'a Subject) -> Self {
        Self { namespace: None, subject }
    }
}

impl<'a> From<&Part<'a>> for Counters<'a> {
    fn from(part: &Part<'a>) -> Self {
        Self { namespace: part.namespace, subject: part.subject }
    }
}

/// The counters of all parts of a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum PartCounters<'a> {
    /// The counters of parts whose policies are known.
    Parts(&'a [Part<'a>]),
    /// The counters of the subject of a request that was decided without a policy.
    Subject(&'a Subject),
}

impl<'a> PartCounters<'a> {
    /// Returns the counters of the part at `index`.
    #[inline]
    pub(super) fn at(self, index: usize) -> Counters<'a> {
        match self {
            Self::Parts(parts) => (&parts[index]).into(),
            Self::Subject(subject) => subject.into(),
        }
    }
}
