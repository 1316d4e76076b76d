//! The look-ups of rules whose limits a source has to find.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;

use super::operation::Operation;
use super::pipeline::Pipeline;
use super::stores::Pending;
use crate::decision::{Decision, Origin};
use crate::maybe_ready::MaybeReady;
use crate::model::{Cost, FailureKind, StoreError, Subject};
use crate::policy::Policy;
use crate::rules::{RequestParts, RuleSet};
use crate::source::PolicyFuture;
use crate::store::StoreFuture;

impl Pipeline {
    /// Returns the rules that apply now, if the limiter has rules.
    pub(super) fn current_rules(&self) -> Option<Arc<RuleSet>> {
        self.rules.as_ref().map(|rules| rules.current())
    }

    /// Continues with `then` when the policies of `parts` are known. `then` gets the time that is
    /// left until the deadline, or the error of a look-up.
    pub(super) fn with_policies<T: Send + 'static>(
        self: &Arc<Self>,
        parts: &Arc<RequestParts>,
        required: RequiredLookups,
        then: impl FnOnce(&Arc<Self>, &Arc<RequestParts>, Result<Duration, StoreError>) -> MaybeReady<T>
        + Send
        + 'static,
    ) -> MaybeReady<T> {
        match self.find_policies(parts, required) {
            MaybeReady::Ready(Some(found)) => then(self, parts, found),
            later => {
                let (this, parts) = (Arc::clone(self), Arc::clone(parts));
                MaybeReady::later(async move {
                    let found = later.await;
                    then(&this, &parts, found).await
                })
            }
        }
    }

    /// Looks up the policies of `parts` that are not known yet, and sets them. Resolves to the time
    /// that is left until the deadline of the decision.
    ///
    /// `required` selects the look-ups that the request needs. If another one fails, or takes more
    /// than half of the deadline, the request is not counted under its rule.
    ///
    /// # Errors
    ///
    /// Resolves to the error of the first required look-up that fails. The error has been reported.
    fn find_policies(
        self: &Arc<Self>,
        parts: &Arc<RequestParts>,
        required: RequiredLookups,
    ) -> StoreFuture<Duration> {
        if parts.lookups().next().is_none() {
            return MaybeReady::ready(Ok(self.stores.deadline));
        }
        self.look_up(parts, required)
    }

    fn look_up(
        self: &Arc<Self>,
        parts: &Arc<RequestParts>,
        required: RequiredLookups,
    ) -> StoreFuture<Duration> {
        let (begin, deadline) = (Instant::now(), self.stores.deadline);
        let mut pending = Vec::new();
        for (index, source, subject) in parts.lookups() {
            if let Some(policy) = source.cached(subject) {
                parts.set_policy(index, Some(policy.clone()));
                continue;
            }
            match source.policy(subject) {
                MaybeReady::Ready(Some(found)) => match self.policy_found(found, subject, None) {
                    Ok(policy) => {
                        self.events.source_answered_at_once();
                        parts.set_policy(index, policy);
                    }
                    Err(_) if !required.includes(parts, index) => parts.set_policy(index, None),
                    Err(error) => return MaybeReady::ready(Err(error)),
                },
                lookup => pending.push((index, lookup)),
            }
        }
        if pending.is_empty() {
            return MaybeReady::ready(Ok(deadline));
        }
        let wait = |(index, lookup)| -> Pending<Result<(), StoreError>> {
            let (pipeline, parts) = (Arc::clone(self), Arc::clone(parts));
            let is_required = required.includes(&parts, index);
            let lookup = PendingLookup { pipeline, parts, index, lookup, begin, is_required };
            Box::pin(lookup.finish())
        };
        let mut pending: Vec<_> = pending.into_iter().map(wait).collect();
        MaybeReady::later(async move {
            poll_fn(|cx| poll_all(&mut pending, cx)).await?;
            Ok(deadline.saturating_sub(begin.elapsed()))
        })
    }

    /// Returns the policy that a look-up has found, or `policy_when_overloaded` if the source is
    /// overloaded. Reports a failed look-up of a request that has waited since `begun`.
    ///
    /// # Errors
    ///
    /// Returns the error of the look-up.
    pub(super) fn policy_found(
        &self,
        found: Result<Option<Policy>, StoreError>,
        subject: &Subject,
        begun: Option<Instant>,
    ) -> Result<Option<Policy>, StoreError> {
        match (found, &self.policy_when_overloaded) {
            (Err(error), Some(policy)) if error.kind() == FailureKind::Overloaded => {
                self.tally.source_failed(error.kind());
                self.events.policy_when_overloaded_applies(&error, begun);
                Ok(Some(policy.clone()))
            }
            (Err(error), _) => {
                self.tally.source_failed(error.kind());
                self.events.source_failed(subject, &error, begun);
                Err(error)
            }
            (found, _) => found,
        }
    }

    /// Applies the failure policy to a request whose policies were not found. Without them, a
    /// fallback cannot decide.
    pub(super) fn report_failed_lookup(
        &self,
        (subject, cost): (&Subject, Cost),
        operation: Operation,
        error: &StoreError,
    ) -> MaybeReady<Decision> {
        let action = self.failure_policy.action_without_policy(error.kind());
        let origin = Origin::without_store(action, error.kind());
        self.report_undecided(subject, cost, operation, origin)
    }
}

/// The look-ups that have to succeed. If one of them fails, the failure policy decides the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequiredLookups {
    All,
    /// Those of rules that are not in shadow. A rule in shadow denies nothing.
    Enforced,
}

impl RequiredLookups {
    /// Returns whether the look-up of `parts` at `index` is required.
    fn includes(self, parts: &RequestParts, index: usize) -> bool {
        self == Self::All || !parts.is_in_shadow(index)
    }
}

/// A look-up that is not ready yet.
struct PendingLookup {
    pipeline: Arc<Pipeline>,
    parts: Arc<RequestParts>,
    index: usize,
    lookup: PolicyFuture,
    /// The time since which the request has waited.
    begin: Instant,
    is_required: bool,
}

impl PendingLookup {
    /// Waits for the look-up, and sets its result.
    async fn finish(self) -> Result<(), StoreError> {
        let Self { pipeline, parts, index, lookup, begin, is_required } = self;
        let deadline = pipeline.stores.deadline;
        // The store needs the rest of the time for the other rules.
        let deadline = if is_required { deadline } else { deadline / 2 };
        let subject = parts.subject_of_lookup(index);
        let left = deadline.saturating_sub(begin.elapsed());
        let found = pipeline.policies.wait_for(lookup, left).await;
        if found.is_ok() {
            pipeline.events.source_answered(subject);
        }
        let found = pipeline.policy_found(found, subject, Some(begin));
        parts.set_policy(index, if is_required { found? } else { found.unwrap_or_default() });
        Ok(())
    }
}

/// Polls all futures, and drops those that are ready. Ready when none is left, or with the first
/// error.
fn poll_all<E>(
    pending: &mut Vec<Pending<Result<(), E>>>,
    cx: &mut Context<'_>,
) -> Poll<Result<(), E>> {
    let mut result = Ok(());
    pending.retain_mut(|future| match future.as_mut().poll(cx) {
        Poll::Ready(ready) => {
            result = std::mem::replace(&mut result, Ok(())).and(ready);
            false
        }
        Poll::Pending => true,
    });
    if result.is_err() || pending.is_empty() { Poll::Ready(result) } else { Poll::Pending }
}
