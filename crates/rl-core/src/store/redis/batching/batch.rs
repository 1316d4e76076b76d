//! Divides the queued checks into batches, each of which fits into one script call. No I/O.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use smallvec::smallvec;
use tokio::sync::oneshot;

use crate::model::{Cost, MAX_UNITS, StoreError};
use crate::store::part_groups::GroupDecisions;
use crate::store::redis::encoding::parts_reply::PartsReplies;
use crate::store::redis::encoding::policy::{max_evaluated_calls, max_subjects as max_subjects_of};
use crate::store::redis::encoding::reply::{CallArgs, ScriptReply};
use crate::store::redis::layer::{Request, RequestPart};

/// The largest number of checks of one subject, all of one cost, in one script call. If no limit is
/// in shadow, the script decides all of them by one division.
const MAX_SAME_CALLS: usize = 256;

pub(super) type ReplySender = oneshot::Sender<Result<CallerReply, StoreError>>;
pub(super) type ReplyReceiver = oneshot::Receiver<Result<CallerReply, StoreError>>;

/// The reply for one caller of a batch.
///
/// The waiting task computes the decisions from it, because they are larger than this reply.
pub(super) enum CallerReply {
    /// The reply for a request of one part. `call` is the index of the caller's last call among the
    /// calls that the reply covers.
    Calls { reply: Arc<ScriptReply>, call: u16 },
    /// The replies for requests of several parts. `bytes` is the position of the caller's reply.
    Requests { replies: Arc<PartsReplies>, bytes: Range<usize> },
    /// The decisions on a request that was sent again, in a call of its own.
    Alone(GroupDecisions),
}

impl CallerReply {
    /// Returns the decisions on the parts of the caller's request.
    pub(super) fn decisions(self, request: &Request) -> Result<GroupDecisions, StoreError> {
        match self {
            Self::Calls { reply, call } => {
                let (part, mode) = (&request.parts[0], request.mode);
                let args = CallArgs { policy: &part.policy, mode, cost: part.cost };
                Ok(smallvec![reply.decision(call, args)])
            }
            Self::Requests { replies, bytes } => replies.decisions(bytes, request),
            Self::Alone(decisions) => Ok(decisions),
        }
    }
}

/// A call that waits to be sent.
pub(super) struct QueuedCall {
    pub(super) request: Arc<Request>,
    pub(super) kind: CallKind,
    pub(super) reply: ReplySender,
}

/// The operation of a queued call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallKind {
    Check,
    /// A lease: `units` checks of one unit, with one reply. If fewer than `least` would be allowed,
    /// none is.
    ///
    /// It is never merged with other calls of the subject, because all granted units belong to this
    /// caller.
    Lease {
        units: u16,
        least: u16,
    },
}

/// Calls in the order of their arrival: those of one subject under one policy, or requests of
/// several parts whose policies are the same.
pub(super) struct SubjectBatch {
    /// The slot group of the subjects: only subjects of one slot group share a call.
    pub(super) group: u16,
    pub(super) calls: Vec<QueuedCall>,
}

/// The content of one script call. All requests have the same policies, in the same order.
pub(super) struct Batch {
    pub(super) group: u16,
    pub(super) costs: BatchCosts,
    pub(super) subjects: Vec<SubjectBatch>,
}

/// The costs of the calls of each subject in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BatchCosts {
    /// `calls` checks of one cost. If fewer than `least` of them would be allowed, none is.
    Same { cost: Cost, calls: u16, least: u16 },
    /// The calls have different costs, or several parts.
    Mixed,
}

impl QueuedCall {
    /// Returns the first part of the request.
    pub(super) fn part(&self) -> &RequestPart {
        &self.request.parts[0]
    }
}

impl CallKind {
    /// Returns the number of checks that the script makes for this operation: 1, or one for each
    /// unit of a lease.
    pub(super) const fn calls(self) -> u16 {
        match self {
            Self::Check => 1,
            Self::Lease { units, .. } => units,
        }
    }
}

impl SubjectBatch {
    /// Returns the first request.
    pub(super) fn first(&self) -> &Request {
        &self.calls[0].request
    }

    /// Returns a batch of this subject alone. Drops cancelled calls. Returns `None` if no call is
    /// left.
    pub(super) fn into_batch(self) -> Option<Batch> {
        let Self { group, calls } = self;
        // All of these calls fitted into one script call, so it takes all that are left.
        let (costs, calls) = take_batch(&mut calls.into())?;
        Some(Batch { group, costs, subjects: vec![Self { group, calls }] })
    }
}

impl Batch {
    /// Returns the first request.
    pub(super) fn first(&self) -> &Request {
        self.subjects[0].first()
    }

    /// Returns the calls of all subjects.
    pub(super) fn calls(&self) -> impl Iterator<Item = &QueuedCall> {
        self.subjects.iter().flat_map(|subject| &subject.calls)
    }
}

/// Takes calls under one policy from the front of a subject's queue: a lease alone, or as many
/// checks as fit into one script call. Drops cancelled calls. Returns `None` if no call is left.
pub(super) fn take_batch(
    waiting: &mut VecDeque<QueuedCall>,
) -> Option<(BatchCosts, Vec<QueuedCall>)> {
    waiting.retain(|call| !call.reply.is_closed());
    let first = waiting.front()?;
    if let CallKind::Lease { units, least } = first.kind {
        let costs = BatchCosts::Same { cost: Cost::ONE, calls: units, least };
        return Some((costs, waiting.drain(..1).collect()));
    }
    let RequestPart { policy, cost, .. } = first.part();
    let count_checks = |max: usize, has_cost: &dyn Fn(Cost) -> bool| {
        let is_like_first = |call: &&QueuedCall| {
            let part = call.part();
            call.kind == CallKind::Check && has_cost(part.cost) && part.policy == *policy
        };
        waiting.iter().take(max).take_while(is_like_first).count()
    };
    // The sum of all costs must be a number that Lua represents exactly.
    let max_exact = usize::try_from(MAX_UNITS / cost.units().max(1)).unwrap_or(usize::MAX).max(1);
    // If costs differ, or if a limit is in shadow, the script evaluates calls one by one. One
    // script call then contains fewer of them.
    let max_evaluated = max_evaluated_calls(policy);
    let max_same = if policy.has_shadow() { max_evaluated } else { MAX_SAME_CALLS };
    let same = count_checks(max_same.min(max_exact), &|other| other == *cost);
    let mixed = count_checks(max_evaluated, &|_| true);
    let (costs, count) = if mixed > same {
        (BatchCosts::Mixed, mixed)
    } else {
        let calls = u16::try_from(same).unwrap_or(1);
        (BatchCosts::Same { cost: *cost, calls, least: 1 }, same)
    };
    Some((costs, waiting.drain(..count).collect()))
}

/// Divides subjects into script calls. The subjects of a call have one slot group, one policy and
/// equal costs. There are at most `max_subjects` of them, or fewer if the policy is heavy.
pub(super) fn into_batches(
    subjects: Vec<(BatchCosts, SubjectBatch)>,
    max_subjects: usize,
) -> Vec<Batch> {
    /// The number of batches, counted from the newest, in which room for a subject is sought.
    const MAX_TRIED: usize = 8;
    let mut batches: Vec<Batch> = Vec::new();
    for (costs, subject) in subjects {
        let policy = &subject.calls[0].part().policy;
        let accepts = |batch: &&mut Batch| {
            batch.group == subject.group
                && costs != BatchCosts::Mixed
                && batch.costs == costs
                && batch.subjects.len() < max_subjects.min(max_subjects_of(policy))
                && batch.first().parts[0].policy == *policy
        };
        match batches.iter_mut().rev().take(MAX_TRIED).find(accepts) {
            Some(batch) => batch.subjects.push(subject),
            None => batches.push(Batch { group: subject.group, costs, subjects: vec![subject] }),
        }
    }
    batches
}
