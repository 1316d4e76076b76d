use std::sync::LazyLock;

use crate::decision::Decision;
use crate::denial::{Denial, is_grpc};
use crate::key::RequestInfo;
use crate::maybe_ready::MaybeReady;
use crate::model::{Realm, Subject};
use crate::store::SubjectHasher;

/// Hashes the subjects of one request, so that a decision need not carry a copy of its subject.
static SUBJECTS: LazyLock<SubjectHasher> = LazyLock::new(SubjectHasher::random);

/// What to do with a request.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "the common case: a box would be an allocation")]
pub enum Admission {
    /// Let it pass: it is not counted.
    Exempt,
    /// Reject it: its key is missing or ambiguous.
    TurnedAway(Denial),
    /// Do as the decision says.
    Asked {
        /// Ready at once if the store is in memory.
        decision: MaybeReady<Decision>,
        /// What a denial needs to know.
        caller: Caller,
    },
}

/// What the answer to a client depends on, beside the decision.
#[derive(Clone, Debug)]
pub struct Caller {
    subject: Subject,
    subject_hash: u64,
    is_grpc: bool,
    is_nested: bool,
}

impl Caller {
    pub(super) fn new<R: RequestInfo>(subject: Subject, request: &R, is_nested: bool) -> Self {
        let subject_hash = SUBJECTS.hash(&subject);
        Self { subject, subject_hash, is_grpc: speaks_grpc(request), is_nested }
    }

    pub(super) const fn subject_hash(&self) -> u64 {
        self.subject_hash
    }

    /// Returns `decision` marked with this subject, for the request's extensions: for adapters. A nested
    /// layer of the same limiter then does not charge the subject again. `outer` is the decision that the
    /// adapter found in the extensions.
    #[must_use]
    pub fn mark(&self, decision: Decision, outer: Option<Decision>) -> Decision {
        decision.nested_in(self.subject_hash, outer)
    }

    /// Returns the subject that is counted.
    #[must_use]
    pub const fn subject(&self) -> &Subject {
        &self.subject
    }

    /// Returns the realm of the subject that is counted.
    #[must_use]
    pub const fn realm(&self) -> &Realm {
        self.subject.realm()
    }

    /// Returns whether the client speaks gRPC, and must be answered so.
    #[must_use]
    pub const fn is_grpc(&self) -> bool {
        self.is_grpc
    }

    /// Returns whether the request has passed a limiter around this one, whose [`Decision`] is in its extensions,
    /// and perhaps a [`Permit`](crate::Permit).
    #[must_use]
    pub const fn is_nested(&self) -> bool {
        self.is_nested
    }
}

pub(super) fn speaks_grpc<R: RequestInfo>(request: &R) -> bool {
    // Its calls are all of this method.
    request.method() == "POST" && {
        let mut found = false;
        request.header_lines("content-type", &mut |value| found |= is_grpc(value));
        found
    }
}
