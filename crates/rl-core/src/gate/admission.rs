use crate::denial::{Denial, is_grpc};
use crate::key::RequestInfo;
use crate::{Decision, Eventual, Realm, Subject};

/// What to do with a request.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "the common case: a box would be an allocation")]
pub enum Admission {
    /// Let it pass: it is not counted.
    Exempt,
    /// Turn it away: it does not say who is counted.
    TurnedAway(Denial),
    /// Do as the decision says.
    Asked {
        /// Ready at once if the store is in memory.
        decision: Eventual<Decision>,
        /// What a denial needs to know.
        caller: Caller,
    },
}

/// What the answer to a client depends on, beside the decision.
#[derive(Clone, Debug)]
pub struct Caller {
    subject: Subject,
    is_grpc: bool,
    is_nested: bool,
}

impl Caller {
    pub(super) fn new<R: RequestInfo>(subject: Subject, request: &R, is_nested: bool) -> Self {
        Self { subject, is_grpc: speaks_grpc(request), is_nested }
    }

    /// Who is counted.
    #[must_use]
    pub const fn subject(&self) -> &Subject {
        &self.subject
    }

    /// The realm of the subject that is counted.
    #[must_use]
    pub const fn realm(&self) -> &Realm {
        self.subject.realm()
    }

    /// Whether the client speaks gRPC, and must be answered so.
    #[must_use]
    pub const fn is_grpc(&self) -> bool {
        self.is_grpc
    }

    /// Whether the request has passed a limiter around this one, whose [`Decision`] is in its extensions,
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
