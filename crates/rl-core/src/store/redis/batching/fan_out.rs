//! Hands the reply for a subject to the callers that wait for it.

use std::sync::Arc;

use super::batch::{CallerReply, QueuedCall, ReplyReceiver, SubjectBatch};
use crate::model::StoreError;
use crate::store::part_groups::GroupDecisions;
use crate::store::redis::encoding::reply::ScriptReply;
use crate::store::redis::encoding::reply_reader;
use crate::store::redis::layer::{Request, runtime_has_ended};

/// The smallest number of callers that are woken in two steps.
const LARGE: usize = 16;

/// The callers of a subject that still wait for the reply, in the order of their arrival.
pub(super) struct FanOut {
    callers: std::vec::IntoIter<QueuedCall>,
    reply: Arc<ScriptReply>,
    /// The number of calls whose callers have been woken.
    completed: u16,
}

impl FanOut {
    pub(super) fn new(batch: SubjectBatch, reply: ScriptReply) -> Self {
        Self { callers: batch.calls.into_iter(), reply: Arc::new(reply), completed: 0 }
    }

    /// Returns whether the callers should be woken in two steps. If all of them were woken at once,
    /// the server would be idle meanwhile.
    pub(super) fn is_large(&self) -> bool {
        self.callers.len() >= LARGE
    }

    /// Wakes the first quarter of the callers.
    ///
    /// If a fixed number of callers were woken first, the callers could split into a small and a
    /// large group that alternate for ever.
    pub(super) fn complete_first_quarter(&mut self) {
        self.wake(self.callers.len() / 4);
    }

    /// Wakes the remaining callers.
    pub(super) fn complete(mut self) {
        self.wake(usize::MAX);
    }

    fn wake(&mut self, count: usize) {
        let Self { callers, reply, completed } = self;
        for QueuedCall { kind, reply: sender, .. } in callers.take(count) {
            *completed += kind.calls();
            // An error means that the request was cancelled. The script has already run, so its
            // charge stays.
            let (reply, call) = (Arc::clone(reply), *completed - 1);
            let _ = sender.send(Ok(CallerReply::Calls { reply, call }));
        }
    }
}

/// Fails all calls of a subject.
pub(super) fn fail(batch: SubjectBatch, error: &StoreError) {
    for call in batch.calls {
        let _ = call.reply.send(Err(error.again()));
    }
}

/// Waits for the decisions on a check.
pub(super) async fn wait_for_decisions(
    receiver: ReplyReceiver,
    request: Arc<Request>,
) -> Result<GroupDecisions, StoreError> {
    wait(receiver).await?.decisions(&request)
}

/// Waits for the reply to a lease, which is the only call of its subject in the batch.
pub(super) async fn wait_for_reply(receiver: ReplyReceiver) -> Result<ScriptReply, StoreError> {
    match wait(receiver).await? {
        CallerReply::Calls { reply, .. } => Ok(Arc::unwrap_or_clone(reply)),
        CallerReply::Requests { .. } | CallerReply::Alone(_) => Err(reply_reader::undecided()),
    }
}

async fn wait(receiver: ReplyReceiver) -> Result<CallerReply, StoreError> {
    receiver.await.unwrap_or_else(|_| Err(runtime_has_ended()))
}
