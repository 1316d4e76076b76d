use crate::denial::{Denial, is_grpc};
use crate::key::RequestInfo;
use crate::{Decision, Eventual, Realm};

/// What to do with a request.
#[derive(Debug)]
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
    realm: Realm,
    is_grpc: bool,
}

impl Caller {
    pub(super) fn new<R: RequestInfo>(realm: Realm, request: &R) -> Self {
        let mut found = false;
        request.header_lines("content-type", &mut |value| found |= is_grpc(value));
        Self { realm, is_grpc: found }
    }

    /// The realm of the subject that was counted.
    #[must_use]
    pub const fn realm(&self) -> &Realm {
        &self.realm
    }

    /// Whether the client speaks gRPC, and must be answered so.
    #[must_use]
    pub const fn is_grpc(&self) -> bool {
        self.is_grpc
    }
}
