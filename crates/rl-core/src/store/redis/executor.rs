//! The lowest layer: encodes a call, runs its script on the server, and decodes the reply.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use smallvec::smallvec;
use tokio::time::timeout;

#[cfg(feature = "conformance")]
use super::connection::ManualTime;
use super::connection::{Command, Router};
use super::encoding::Layout;
use super::encoding::parts_reply::PartsReplies;
use super::encoding::policy::PolicyEncoding;
use super::encoding::reply::ScriptReply;
use super::encoding::reply_reader;
use super::encoding::request::{CallCosts, DecideCall, RequestEncoder};
#[cfg(feature = "redis-cluster")]
use super::layer::RequestPart;
use super::layer::{Amendment, Amendments, Layer, LeaseRequest, Request};
use crate::maybe_ready::{MaybeReady, both, done};
use crate::model::{Cost, FailureKind, StoreError};
use crate::observe::{self, Transition};
use crate::stats::{RedisCounts, RedisStats};
use crate::store::part_groups::GroupDecisions;
use crate::store::{
    DecideRequest, Mode, Namespace, Part, Reservations, Reset, ServerLoads, StoreFuture,
};

/// If no counter without expiry is found for this time, the problem counts as solved.
const HEALING_RECOVERY_PERIOD: Duration = Duration::from_secs(10);

/// Runs calls of the scripts that decide.
pub(crate) trait Execute: Layer {
    /// Runs `call`. Returns a reply for each subject, in the order of the subjects.
    ///
    /// A subject without a reply was not decided, and its state has not changed. The caller sends
    /// it again in a call of its own. If a call has only one subject, that subject always has a
    /// reply.
    fn execute(
        &self,
        call: &DecideCall<'_>,
    ) -> impl Future<Output = Result<Vec<Option<ScriptReply>>, StoreError>> + Send;

    /// Returns whether a request of several parts may share a script call with others.
    fn can_batch(&self, request: &Request) -> bool;

    /// Decides requests of several parts in one script call, one after the other. The parts of all
    /// requests have the same policies, in the same order. A single request is always decided.
    fn execute_requests(
        &self,
        requests: &[&Request],
    ) -> impl Future<Output = Result<PartsReplies, StoreError>> + Send;

    /// Refunds units of several subjects, under one policy, in one script call. Returns the indices
    /// in `refunds` of those that were not made. The caller sends each of them in a call of its
    /// own.
    fn refund(
        &self,
        refunds: &[&Amendment],
    ) -> impl Future<Output = Result<Vec<u8>, StoreError>> + Send;
}

/// Sends commands to Redis.
#[derive(Clone)]
pub(crate) struct ScriptExecutor {
    shared: Arc<ExecutorShared>,
}

struct ExecutorShared {
    router: Router,
    encoder: RequestEncoder,
    response_timeout: Duration,
    /// The kind of store and its server, for the log.
    label: String,
    counts: Arc<RedisCounts>,
    /// Samples the log lines about counters without expiry.
    healing: Transition,
    #[cfg(feature = "conformance")]
    time: Option<ManualTime>,
}

impl ScriptExecutor {
    pub(crate) fn new(
        router: Router,
        encoder: RequestEncoder,
        response_timeout: Duration,
        label: String,
        counts: Arc<RedisCounts>,
        #[cfg(feature = "conformance")] time: Option<ManualTime>,
    ) -> Self {
        Self {
            shared: Arc::new(ExecutorShared {
                router,
                encoder,
                response_timeout,
                label,
                counts,
                healing: Transition::new(HEALING_RECOVERY_PERIOD),
                #[cfg(feature = "conformance")]
                time,
            }),
        }
    }

    pub(crate) fn label(&self) -> &str {
        &self.shared.label
    }

    pub(crate) fn layout(&self) -> Layout {
        self.shared.encoder.layout
    }

    /// Returns the counts of the store.
    pub(crate) fn stats(&self) -> RedisStats {
        self.shared.counts.stats()
    }

    /// Runs a call for a single subject.
    async fn execute_one(&self, call: &DecideCall<'_>) -> Result<ScriptReply, StoreError> {
        let reply = self.execute(call).await?.pop().flatten();
        reply.ok_or_else(reply_reader::undecided)
    }

    /// Returns the loads of the servers that decide `request`.
    pub(crate) fn server_loads(&self, request: &DecideRequest<'_>) -> ServerLoads<'_> {
        let ExecutorShared { router, encoder, .. } = &*self.shared;
        let slot =
            |part: &Part<'_>| encoder.slot_of_subject(request.namespace_of(part), part.subject);
        router.loads(request.parts.iter().map(slot))
    }

    /// Returns the slot of a cluster that holds the keys of a part; 0 if one server holds all keys.
    ///
    /// # Errors
    ///
    /// Returns an error if the layout does not support a limit.
    #[cfg(feature = "redis-cluster")]
    pub(crate) fn slot_of(&self, part: &RequestPart) -> Result<u16, StoreError> {
        self.shared.encoder.slot_of(part)
    }

    /// Decides a request of one enforced part in the packed layout.
    async fn execute_part(&self, request: &Request) -> Result<GroupDecisions, StoreError> {
        let part = &request.parts[0];
        let call = DecideCall {
            subjects: &[&part.subject],
            policy: &part.policy,
            mode: request.mode,
            costs: CallCosts::same(part.cost),
            reservations: request.reservations,
        };
        let reply = self.execute_one(&call).await?;
        let decision = reply.decision(0, call.args(part.cost));
        Ok(smallvec![if call.lifetime().is_some() { decision.reserved() } else { decision }])
    }

    /// Decides a request of several parts, or of a part in shadow. On a cluster, all their keys
    /// must be in one slot.
    async fn execute_parts(&self, request: &Request) -> Result<GroupDecisions, StoreError> {
        let replies = self.execute_requests(&[request]).await?;
        let bytes = replies.ranges().next().flatten();
        replies.decisions(bytes.ok_or_else(reply_reader::undecided)?, request)
    }

    /// Divides changes into calls: on a cluster, one for each slot.
    pub(crate) fn calls_of(&self, amendments: Amendments) -> Vec<Amendments> {
        self.shared.encoder.calls_of(amendments)
    }

    /// Resets several subjects, in one call for each slot.
    pub(crate) fn reset(&self, resets: &[Reset<'_>]) -> StoreFuture<()> {
        let reset = |command| self.send(command).map(|reply| reply.map(drop));
        match self.shared.encoder.reset(resets) {
            Ok(commands) => commands.into_iter().map(reset).fold(done(), both),
            Err(error) => MaybeReady::ready(Err(error)),
        }
    }

    /// Publishes the note of an instance. With an empty id, returns the notes of all instances.
    pub(crate) fn notes(
        &self,
        namespace: &Namespace,
        instance: &str,
        note: &str,
    ) -> StoreFuture<Vec<u8>> {
        self.send(self.shared.encoder.notes(namespace, instance, note))
    }

    /// Sends a command. Resolves to the reply of its script.
    fn send(&self, command: Command) -> StoreFuture<Vec<u8>> {
        let this = self.clone();
        MaybeReady::later(
            async move { this.shared.router.send(&this.at_manual_time(command)).await },
        )
    }

    /// Replaces the server's time if a test sets the clock.
    fn at_manual_time(&self, command: Command) -> Command {
        #[cfg(feature = "conformance")]
        if let Some(time) = &self.shared.time {
            return command.at(time);
        }
        command
    }

    /// Counts the counters that had no expiry. Logs a line when the first are found, and one when
    /// no more have been found for a while.
    fn count_healed(&self, found: u64) {
        let ExecutorShared { healing, counts, label, .. } = &*self.shared;
        if found > 0 {
            RedisCounts::add(&counts.healed, found);
            if healing.occurred_times(found) {
                observe::healed(label, found);
            }
        } else if let Some(ended) = healing.ended() {
            observe::healing_ended(label, ended);
        }
    }
}

/// Returns no reply if the server has no memory for the charges of a batch. It has then changed
/// nothing, so the caller sends each request in a call of its own: the server still decides those
/// that it denies.
fn or_undecided_if_full<T>(reply: Result<Option<T>, StoreError>) -> Result<Option<T>, StoreError> {
    match reply {
        Err(error) if error.kind() == FailureKind::OutOfMemory => Ok(None),
        reply => reply,
    }
}

impl Execute for ScriptExecutor {
    async fn execute(&self, call: &DecideCall<'_>) -> Result<Vec<Option<ScriptReply>>, StoreError> {
        let (encoding, encoder) = (PolicyEncoding::new(call.policy), &self.shared.encoder);
        if call.subjects.len() > 1 && encoder.fast_script(call, &encoding).is_none() {
            return Ok(vec![None; call.subjects.len()]);
        }
        let command = self.at_manual_time(encoder.decide(call, &encoding)?);
        let router = &self.shared.router;
        let reply = match call.subjects.len() {
            1 => router.send(&command).await.map(Some),
            _ => or_undecided_if_full(router.try_send(&command).await),
        };
        self.shared.counts.add_call(call.subjects.len(), reply.is_err());
        // While a slot is being migrated, the server may be unable to decide its subjects together.
        // Without replies, the caller sends each of them in a call of its own.
        let Some(reply) = reply? else { return Ok(vec![None; call.subjects.len()]) };
        let replies =
            reply_reader::read(&reply, call.policy, &encoding, call.subjects.len(), call.calls())?;
        self.count_healed(replies.iter().flatten().map(|reply| reply.healed).sum());
        Ok(replies)
    }

    fn can_batch(&self, request: &Request) -> bool {
        self.shared.encoder.can_batch(request)
    }

    async fn execute_requests(&self, requests: &[&Request]) -> Result<PartsReplies, StoreError> {
        let Some((command, parts)) = self.shared.encoder.command_of_requests(requests)? else {
            return Ok(PartsReplies::undecided(requests.len()));
        };
        let (command, router) = (self.at_manual_time(command), &self.shared.router);
        let reply = match requests.len() {
            1 => router.send(&command).await.map(Some),
            _ => or_undecided_if_full(router.try_send(&command).await),
        };
        self.shared.counts.add_call(parts.len() * requests.len(), reply.is_err());
        // While a slot is being migrated, the server may be unable to decide its subjects together.
        let Some(reply) = reply? else { return Ok(PartsReplies::undecided(requests.len())) };
        let (replies, healed) = PartsReplies::read(reply, parts, requests.len())?;
        self.count_healed(healed);
        Ok(replies)
    }

    async fn refund(&self, refunds: &[&Amendment]) -> Result<Vec<u8>, StoreError> {
        let none_made = || (0..).take(refunds.len()).collect();
        let Some(command) = self.shared.encoder.refund_together(refunds) else {
            return Ok(none_made());
        };
        let sent = self.shared.router.try_send(&self.at_manual_time(command)).await;
        let sent = or_undecided_if_full(sent)?;
        Ok(sent.unwrap_or_else(none_made))
    }
}

impl Layer for ScriptExecutor {
    fn decide(&self, request: Arc<Request>) -> StoreFuture<GroupDecisions> {
        let this = self.clone();
        match &request.parts[..] {
            [part] if !part.is_shadow && self.layout() == Layout::Packed => {
                MaybeReady::later(async move { this.execute_part(&request).await })
            }
            _ => MaybeReady::later(async move { this.execute_parts(&request).await }),
        }
    }

    fn lease(&self, request: LeaseRequest) -> StoreFuture<ScriptReply> {
        let this = self.clone();
        MaybeReady::later(async move {
            let LeaseRequest { request, units, least } = request;
            let part = &request.parts[0];
            let call = DecideCall {
                subjects: &[&part.subject],
                policy: &part.policy,
                mode: Mode::Check,
                costs: CallCosts::Same { cost: Cost::ONE, calls: units, least },
                reservations: Reservations::Ignore,
            };
            // This call may outlive the request that caused it, so the deadline of that request
            // does not bound the wait.
            let reply = timeout(this.shared.response_timeout, this.execute_one(&call)).await;
            let reply = reply.unwrap_or_else(|_| Err(StoreError::new(FailureKind::TimedOut)))?;
            RedisCounts::add(&this.shared.counts.leased_units, reply.allowed_calls().into());
            Ok(reply)
        })
    }

    fn amend(&self, amendments: Amendments) -> StoreFuture<Vec<u8>> {
        match self.shared.encoder.amend(&amendments) {
            Ok(command) => self.send(command),
            Err(error) => MaybeReady::ready(Err(error)),
        }
    }
}
