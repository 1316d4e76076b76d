use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use rl_core::{Decision, FailureKind, Origin, Realm, RetryAfter, Subject};
use rl_records::ActiveLimits;
use serde::Serialize;
use utoipa::ToSchema;

use crate::context::Context;
use crate::error::ApiError;
use crate::error::ErrorResponses;
use crate::read::{
    Allowed, CanGetRateLimits, ConsumerId, Cost, PathParam, QueryParams, SubjectParams,
};
use crate::wire::{
    Considered, LimitUsage, OTHER_PROGRAM, PoliciesOf, is_limited, policy_text, seconds_of,
};

/// The explanation of a decision.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Explanation {
    /// The subject in the form in which the limiter counts it; for an IPv6 address, this is its
    /// network.
    #[schema(example = "consumer/abc123")]
    subject: String,
    /// Whether the request would be allowed now.
    allowed: bool,
    /// The reason as a text.
    reason: String,
    /// The cost of the request.
    cost: u64,
    /// The component that decided: `store`, `local_deny`, `leased`, `policy`, `unlimited`,
    /// `disabled`, `shadow`, `fallback`, `failed_open` or `failed_closed`. `policy` is a denial
    /// that needs no counter: a block, a limit of 0, or a cost that the limits never grant.
    decided_by: &'static str,
    /// The source of the limits.
    source: Source,
    /// The tier of the consumer; `null` if it has none, or if records replace it.
    tier: Option<String>,
    /// The records from which the limits were computed, ordered by `from_date`.
    considered: Vec<Considered>,
    /// The policy that the limiter enforces, as text, or `unlimited`; `null` if it is unknown.
    #[schema(example = "second=10/second, minute=100/minute")]
    policy: Option<String>,
    /// The program whose policies these are.
    policies_of: PoliciesOf,
    /// A restriction that applies to this answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    /// The usage of each limit, and whether the limit denies the request.
    limits: Vec<LimitUsage>,
    /// The seconds after which the request would be allowed, rounded up. 0 if it is allowed now,
    /// and `null` if waiting does not help.
    retry_in_seconds: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum Source {
    /// Records of the consumer.
    Records,
    /// A record that blocks the consumer.
    Block,
    /// The tier of the consumer, which has no active record.
    Tier,
    /// The configured defaults: the consumer has neither an active record nor a tier.
    Defaults,
    /// The policies of the service, because the subject is not a consumer.
    Service,
}

/// Explains whether a request of a consumer would be allowed, and why
///
/// Charges nothing.
#[utoipa::path(get, path = "/management/consumers/{CONSUMER_ID}/explain", tag = "subjects",
    params(PathParam<ConsumerId>, Cost), responses((status = OK, body = Explanation), ErrorResponses))]
pub(super) async fn consumer(
    State(context): State<Arc<Context>>,
    _: Allowed<CanGetRateLimits>,
    PathParam(ConsumerId(consumer)): PathParam<ConsumerId>,
    QueryParams(Cost { cost }): QueryParams<Cost>,
) -> Result<Json<Explanation>, ApiError> {
    explain(&context, &Subject::consumer(consumer.as_str()), cost).await.map(Json)
}

/// Explains whether a request of a subject would be allowed, and why
///
/// Charges nothing.
#[utoipa::path(get, path = "/management/subjects/{REALM}/{SUBJECT_ID}/explain", tag = "subjects",
    params(SubjectParams, Cost),
    responses((status = OK, body = Explanation), ErrorResponses))]
pub(super) async fn subject(
    State(context): State<Arc<Context>>,
    _: Allowed<CanGetRateLimits>,
    SubjectParams(subject): SubjectParams,
    QueryParams(Cost { cost }): QueryParams<Cost>,
) -> Result<Json<Explanation>, ApiError> {
    explain(&context, &subject, cost).await.map(Json)
}

async fn explain(context: &Context, subject: &Subject, cost: u64) -> Result<Explanation, ApiError> {
    let active = match (subject.realm(), subject.id().as_text()) {
        (Realm::Consumer, Some(id)) => {
            Some(context.records.active_limits(id, context.now()).await?)
        }
        _ => None,
    };
    let decision = context.limiter.peek(subject, cost).await;
    let source = match &active {
        None => Source::Service,
        Some(active) if active.tier().is_some() => Source::Tier,
        Some(active) if active.is_default() => Source::Defaults,
        Some(active) if active.is_blocked() => Source::Block,
        Some(_) => Source::Records,
    };
    let records = active.as_ref().map_or(&[][..], ActiveLimits::contributions);
    let is_alone = context.is_stand_alone;
    let (limits, unknown) = usages(context, subject, &decision).await;
    let notes = is_alone.then(|| OTHER_PROGRAM.to_owned()).into_iter().chain(unknown);
    let notes: Vec<String> = notes.collect();
    Ok(Explanation {
        subject: format!("{}/{}", subject.realm().as_str(), subject.id()),
        allowed: decision.is_forwarded(),
        reason: reason(&decision, source, &limits),
        cost,
        decided_by: decision.origin().as_str(),
        source,
        tier: active.as_ref().and_then(|active| active.tier().map(ToOwned::to_owned)),
        considered: records.iter().map(Considered::of).collect(),
        policy: policy_text(&decision),
        policies_of: if is_alone { PoliciesOf::ThisServer } else { PoliciesOf::Service },
        note: (!notes.is_empty()).then(|| notes.join(" ")),
        limits,
        retry_in_seconds: seconds_of(decision.retry_after()),
    })
}

/// Returns the usage of each limit, and a note if the usage is not fully known.
///
/// A denial by the policy alone reads no counter, so the usage is read in a separate call.
async fn usages(
    context: &Context,
    subject: &Subject,
    decision: &Decision,
) -> (Vec<LimitUsage>, Option<String>) {
    let of_decision = || decision.limits().map(LimitUsage::of).collect();
    if decision.origin() != Origin::Policy {
        return (of_decision(), None);
    }
    match context.limiter.usage(subject).await {
        Ok(usage) => (LimitUsage::of_denial(&usage, decision), None),
        Err(error) => (of_decision(), Some(unread_counters(error.kind()))),
    }
}

fn unread_counters(kind: FailureKind) -> String {
    format!(
        "The counters cannot be read ({}): the usage is unknown and reported as 0.",
        kind.as_str()
    )
}

fn reason(decision: &Decision, source: Source, limits: &[LimitUsage]) -> String {
    match decision.origin() {
        Origin::Disabled => "the limiter is switched off: every request is allowed".to_owned(),
        Origin::Unlimited => unlimited(source),
        Origin::FailedOpen(kind) => {
            format!("no decision can be made ({}): requests are allowed", kind.as_str())
        }
        Origin::FailedClosed(kind) => {
            format!("no decision can be made ({}): requests are rejected", kind.as_str())
        }
        Origin::Shadow => "the limiter is in shadow mode: it counts and denies nothing".to_owned(),
        _ if decision.is_allowed() && !is_limited(decision) => unlimited(source),
        _ if decision.is_allowed() => "every limit has enough capacity left".to_owned(),
        _ if source == Source::Block => "the consumer is blocked".to_owned(),
        _ => denials(decision, limits),
    }
}

fn unlimited(source: Source) -> String {
    match source {
        Source::Defaults => "there is no active record, and the defaults have no limit".to_owned(),
        _ => "no limit applies".to_owned(),
    }
}

/// Returns the limits that deny the request, as a text.
fn denials(decision: &Decision, limits: &[LimitUsage]) -> String {
    if decision.retry_after() == RetryAfter::Now {
        return "the request is denied".to_owned();
    }
    let denying = limits.iter().filter_map(LimitUsage::denial);
    denying.collect::<Vec<_>>().join("; ")
}
