//! Divides the queued checks of subjects into batches, each of which fits into one script call. No
//! I/O.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::oneshot;

use crate::decision::Decision;
use crate::model::{Cost, MAX_UNITS, StoreError};
use crate::policy::Policy;
use crate::store::Mode;
use crate::store::redis::encoding::policy::{max_evaluated_calls, max_subjects as max_subjects_of};
use crate::store::redis::encoding::reply::{CallArgs, ScriptReply};
use crate::store::redis::subject_key::KeyedSubject;

/// The largest number of checks of one subject, all of one cost, in one script call. If no limit is
/// in shadow, the script decides all of them by one division.
const MAX_SAME_CALLS: usize = 256;

pub(super) type ReplySender = oneshot::Sender<Result<CallerReply, StoreError>>;
pub(super) type ReplyReceiver = oneshot::Receiver<Result<CallerReply, StoreError>>;

/// The reply for one caller of a batch.
///
/// The waiting task computes the decision from it, because a decision is larger than this reply.
pub(super) struct CallerReply {
    pub(super) reply: Arc<ScriptReply>,
    pub(super) policy: Policy,
    pub(super) cost: Cost,
    /// The index of the caller's last call among the calls that the reply covers.
    pub(super) call: u16,
}

impl CallerReply {
    pub(super) fn decision(&self) -> Decision {
        let args = CallArgs { policy: &self.policy, mode: Mode::Check, cost: self.cost };
        self.reply.decision(self.call, args)
    }
}

/// A call that waits to be sent.
pub(super) struct QueuedCall {
    pub(super) policy: Policy,
    pub(super) kind: CallKind,
    pub(super) reply: ReplySender,
}

/// The operation of a queued call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallKind {
    /// A check of this cost.
    Check(Cost),
    /// A lease: `units` checks of one unit, with one reply. If fewer than `least` would be allowed,
    /// none is.
    ///
    /// It is never merged with other calls of the subject, because all granted units belong to this
    /// caller.
    Lease { units: u16, least: u16 },
}

/// Calls of one subject under one policy, in the order of their arrival.
pub(super) struct SubjectBatch {
    pub(super) subject: KeyedSubject,
    /// The slot group of the subject: only subjects of one slot group share a call.
    pub(super) group: u16,
    pub(super) calls: Vec<QueuedCall>,
}

/// The content of one script call.
pub(super) struct Batch {
    pub(super) group: u16,
    pub(super) policy: Policy,
    pub(super) costs: BatchCosts,
    pub(super) subjects: Vec<SubjectBatch>,
}

/// The costs of the calls of each subject in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BatchCosts {
    /// `calls` checks of one cost. If fewer than `least` of them would be allowed, none is.
    Same { cost: Cost, calls: u16, least: u16 },
    /// The calls have different costs.
    Mixed,
}

impl CallKind {
    pub(super) const fn cost(self) -> Cost {
        match self {
            Self::Check(cost) => cost,
            Self::Lease { .. } => Cost::ONE,
        }
    }

    /// Returns the number of checks that the script makes for this operation: 1, or one for each
    /// unit of a lease.
    pub(super) const fn calls(self) -> u16 {
        match self {
            Self::Check(_) => 1,
            Self::Lease { units, .. } => units,
        }
    }
}

impl SubjectBatch {
    /// Returns a batch of this subject alone. Drops cancelled calls. Returns `None` if no call is
    /// left.
    pub(super) fn into_batch(self) -> Option<Batch> {
        let Self { subject, group, calls } = self;
        // All of these calls fitted into one script call, so it takes all that are left.
        let (costs, calls) = take_batch(&mut calls.into())?;
        let policy = calls[0].policy.clone();
        Some(Batch { group, policy, costs, subjects: vec![Self { subject, group, calls }] })
    }
}

/// Takes calls under one policy from the front of a subject's queue: a lease alone, or as many
/// checks as fit into one script call. Drops cancelled calls. Returns `None` if no call is left.
pub(super) fn take_batch(
    waiting: &mut VecDeque<QueuedCall>,
) -> Option<(BatchCosts, Vec<QueuedCall>)> {
    waiting.retain(|call| !call.reply.is_closed());
    let first = waiting.front()?;
    let cost = match first.kind {
        CallKind::Lease { units, least } => {
            let costs = BatchCosts::Same { cost: Cost::ONE, calls: units, least };
            return Some((costs, waiting.drain(..1).collect()));
        }
        CallKind::Check(cost) => cost,
    };
    let policy = &first.policy;
    let count_checks = |max: usize, has_cost: &dyn Fn(Cost) -> bool| {
        let is_like_first = |call: &&QueuedCall| match call.kind {
            CallKind::Check(cost) => has_cost(cost) && call.policy == *policy,
            CallKind::Lease { .. } => false,
        };
        waiting.iter().take(max).take_while(is_like_first).count()
    };
    // The sum of all costs must be a number that Lua represents exactly.
    let max_exact = usize::try_from(MAX_UNITS / cost.units().max(1)).unwrap_or(usize::MAX).max(1);
    // If costs differ, or if a limit is in shadow, the script evaluates calls one by one. One
    // script call then contains fewer of them.
    let max_evaluated = max_evaluated_calls(policy);
    let max_same = if policy.has_shadow() { max_evaluated } else { MAX_SAME_CALLS };
    let same = count_checks(max_same.min(max_exact), &|other| other == cost);
    let mixed = count_checks(max_evaluated, &|_| true);
    let (costs, count) = if mixed > same {
        (BatchCosts::Mixed, mixed)
    } else {
        let calls = u16::try_from(same).unwrap_or(1);
        (BatchCosts::Same { cost, calls, least: 1 }, same)
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
        let policy = &subject.calls[0].policy;
        let fits = |batch: &&mut Batch| {
            batch.group == subject.group
                && costs != BatchCosts::Mixed
                && batch.costs == costs
                && batch.subjects.len() < max_subjects.min(max_subjects_of(policy))
                && batch.policy == *policy
        };
        match batches.iter_mut().rev().take(MAX_TRIED).find(fits) {
            Some(batch) => batch.subjects.push(subject),
            None => {
                let (group, policy) = (subject.group, policy.clone());
                batches.push(Batch { group, policy, costs, subjects: vec![subject] });
            }
        }
    }
    batches
}
