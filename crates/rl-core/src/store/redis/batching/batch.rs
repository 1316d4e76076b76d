//! Who can travel in one call. No I/O.

use std::collections::VecDeque;

use tokio::sync::oneshot;

use super::fan_out::Part;
use crate::model::Cost;
use crate::model::MAX_UNITS;
use crate::model::StoreError;
use crate::policy::Policy;
use crate::store::redis::encoding::policy::coded;
use crate::store::redis::shortcuts::denial_cache::Asking;
use crate::store::redis::subject_key::Who;

/// Calls of one subject and cost in one: under fixed windows they are decided by one division, unless
/// the subject has counts under another policy as well.
const MOST_ALIKE: usize = 256;

/// What somebody asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    /// A check of this cost.
    Check(Cost),
    /// `units` checks of one unit with one answer, of which at least `least` pass, or none. The units belong
    /// to this caller alone, so no other call shares the run.
    Lease { units: u16, least: u16 },
}

/// One who asks.
pub(crate) struct Caller {
    pub(crate) policy: Policy,
    pub(crate) question: Question,
    pub(crate) asking: Option<Asking>,
    pub(crate) tell: oneshot::Sender<Result<Part, StoreError>>,
}

/// Callers of one subject under one policy, in the order in which they came.
pub(crate) struct Run {
    pub(crate) who: Who,
    pub(crate) callers: Vec<Caller>,
}

/// What travels in one script call.
pub(crate) struct Batch {
    pub(crate) policy: Policy,
    pub(crate) costs: Costs,
    pub(crate) runs: Vec<Run>,
}

/// What each subject of a batch is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Costs {
    /// `calls` calls of one cost, of which at least `least` pass, or none.
    Alike { cost: Cost, calls: u16, least: u16 },
    /// Each caller's own.
    Mixed,
}

impl Question {
    pub(crate) const fn cost(self) -> Cost {
        match self {
            Self::Check(cost) => cost,
            Self::Lease { .. } => Cost::ONE,
        }
    }

    pub(crate) const fn calls(self) -> u16 {
        match self {
            Self::Check(_) => 1,
            Self::Lease { units, .. } => units,
        }
    }

    pub(crate) const fn least(self) -> u16 {
        match self {
            Self::Check(_) => 1,
            Self::Lease { least, .. } => least,
        }
    }
}

pub(crate) fn fail(run: Run, error: &StoreError) {
    for caller in run.callers {
        let _ = caller.tell.send(Err(error.again()));
    }
}

/// Those at the front of the line who can travel as one, without those who have given up.
pub(crate) fn take_run(waiting: &mut VecDeque<Caller>) -> Option<(Costs, Vec<Caller>)> {
    waiting.retain(|caller| !caller.tell.is_closed());
    let first = waiting.front()?;
    let Question::Check(cost) = first.question else {
        let question = first.question;
        let (cost, calls, least) = (question.cost(), question.calls(), question.least());
        let costs = Costs::Alike { cost, calls, least };
        return Some((costs, waiting.drain(..1).collect()));
    };
    let policy = &first.policy;
    let like_first = |most: usize, is_like: &dyn Fn(Cost) -> bool| {
        let goes_along = |caller: &&Caller| match caller.question {
            Question::Check(cost) => is_like(cost) && caller.policy == *policy,
            Question::Lease { .. } => false,
        };
        waiting.iter().take(most).take_while(goes_along).count()
    };
    // Together they must not ask for more than can be counted.
    let most = usize::try_from(MAX_UNITS / cost.units().max(1)).unwrap_or(usize::MAX).max(1);
    // Where costs differ, and under other algorithms, the script evaluates each call, and blocks the
    // server meanwhile.
    let most_evaluated = coded(policy).most_evaluated;
    let most_alike = if coded(policy).is_all_fixed { MOST_ALIKE } else { most_evaluated };
    let alike = like_first(most_alike.min(most), &|other| other == cost);
    let mixed = like_first(most_evaluated, &|_| true);
    let (costs, count) = if mixed > alike {
        (Costs::Mixed, mixed)
    } else {
        let calls = u16::try_from(alike).unwrap_or(1);
        (Costs::Alike { cost, calls, least: 1 }, alike)
    };
    Some((costs, waiting.drain(..count).collect()))
}

/// Puts those together who can travel in one call.
pub(crate) fn batches(runs: Vec<(Costs, Run)>, most_subjects: usize) -> Vec<Batch> {
    /// How many are looked through for one to join.
    const OPEN: usize = 8;
    let mut batches: Vec<Batch> = Vec::new();
    for (costs, run) in runs {
        let policy = &run.callers[0].policy;
        let can_join = |batch: &&mut Batch| {
            costs != Costs::Mixed
                && batch.costs == costs
                && batch.runs.len() < most_subjects.min(coded(policy).most_subjects)
                && batch.policy == *policy
                && coded(policy).is_all_fixed
        };
        match batches.iter_mut().rev().take(OPEN).find(can_join) {
            Some(batch) => batch.runs.push(run),
            None => batches.push(Batch { policy: policy.clone(), costs, runs: vec![run] }),
        }
    }
    batches
}
