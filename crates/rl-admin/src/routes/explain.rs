use axum::Json;
use axum::extract::State;
use rl_core::{Decision, FailureKind, Origin, Realm, RetryAfter, Subject};
use rl_records::ActiveLimits;
use serde::Serialize;
use utoipa::ToSchema;

use crate::error::Refusals;
use crate::read::{Allowed, ConsumerId, Cost, In, OfSubject, Parameters, ToGet};
use crate::wire::{
    Considered, OTHER_PROGRAM, PoliciesOf, Standing, is_limited, policy_text, seconds_of,
};
use crate::{Admin, ApiError};

/// Why a request would pass or not.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Explanation {
    /// The subject as the limiter counts it: an IPv6 address by its network.
    #[schema(example = "consumer/abc123")]
    subject: String,
    /// Whether it would pass now.
    allowed: bool,
    /// Why, in words.
    reason: String,
    /// The units it takes.
    cost: u64,
    /// Where the decision comes from: `store`, `local_deny`, `leased`, `policy`, `unlimited`, `disabled`,
    /// `shadow`, `fallback`, `failed_open` or `failed_closed`. `policy` is a denial that needs no counter:
    /// a block, a limit of 0, or a cost that the limits never grant.
    decided_by: &'static str,
    /// Where the limits come from.
    source: Source,
    /// The tier that the consumer is in; `null` if it is in none, or if records put it aside.
    tier: Option<String>,
    /// The records behind them, in the order in which they begin.
    considered: Vec<Considered>,
    /// The policy that the limiter enforces, as text, or `unlimited`; `null` if it could not be found out.
    #[schema(example = "second=10/second, minute=100/minute")]
    policy: Option<String>,
    /// Whose policies these are.
    policies_of: PoliciesOf,
    /// A restriction of this answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    /// Each limit of it: what is used, and whether it denies.
    limits: Vec<Standing>,
    /// The seconds after which the request would pass, rounded up; 0 if it passes, `null` if waiting does
    /// not help.
    retry_in_seconds: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum Source {
    /// Records of the consumer.
    Records,
    /// A record that blocks the consumer.
    Block,
    /// There is no record: the tier that the consumer is in.
    Tier,
    /// There is no record and no tier: the configured defaults.
    Defaults,
    /// It is no consumer: the policies of the service.
    Service,
}

/// Why a request of a consumer would pass or not
///
/// Nothing is charged.
#[utoipa::path(get, path = "/management/consumers/{CONSUMER_ID}/explain", tag = "subjects",
    params(In<ConsumerId>, Cost), responses((status = OK, body = Explanation), Refusals))]
pub(super) async fn consumer(
    State(admin): State<Admin>,
    _: Allowed<ToGet>,
    In(ConsumerId(consumer)): In<ConsumerId>,
    Parameters(Cost { cost }): Parameters<Cost>,
) -> Result<Json<Explanation>, ApiError> {
    explain(&admin, &Subject::consumer(consumer.as_str()), cost).await.map(Json)
}

/// Why a request of a subject would pass or not
///
/// Nothing is charged.
#[utoipa::path(get, path = "/management/subjects/{REALM}/{SUBJECT_ID}/explain", tag = "subjects",
    params(OfSubject, Cost),
    responses((status = OK, body = Explanation), Refusals))]
pub(super) async fn subject(
    State(admin): State<Admin>,
    _: Allowed<ToGet>,
    OfSubject(subject): OfSubject,
    Parameters(Cost { cost }): Parameters<Cost>,
) -> Result<Json<Explanation>, ApiError> {
    explain(&admin, &subject, cost).await.map(Json)
}

async fn explain(admin: &Admin, subject: &Subject, cost: u64) -> Result<Explanation, ApiError> {
    let active = match (subject.realm(), subject.id().as_text()) {
        (Realm::Consumer, Some(id)) => Some(admin.records().active_limits(id, admin.now()).await?),
        _ => None,
    };
    let decision = admin.limiter().peek(subject, cost).await;
    let source = match &active {
        None => Source::Service,
        Some(active) if active.tier().is_some() => Source::Tier,
        Some(active) if active.is_default() => Source::Defaults,
        Some(active) if active.is_blocked() => Source::Block,
        Some(_) => Source::Records,
    };
    let records = active.as_ref().map_or(&[][..], ActiveLimits::contributions);
    let is_alone = admin.is_stand_alone();
    let (limits, unknown) = standings(admin, subject, &decision).await;
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

/// Returns where the subject stands under each limit, and a note if that is not fully known.
///
/// A denial by the policy alone reads no counter: what is used is looked up for it.
async fn standings(
    admin: &Admin,
    subject: &Subject,
    decision: &Decision,
) -> (Vec<Standing>, Option<String>) {
    let of_decision = || decision.limits().map(Standing::of).collect();
    if decision.origin() != Origin::Policy {
        return (of_decision(), None);
    }
    match admin.limiter().usage(subject).await {
        Ok(usage) => (Standing::of_denial(&usage, decision), None),
        Err(error) => (of_decision(), Some(not_read(error.kind()))),
    }
}

fn not_read(kind: FailureKind) -> String {
    format!(
        "The counters cannot be read ({}): what is used is not known, and reported as 0.",
        kind.as_str()
    )
}

fn reason(decision: &Decision, source: Source, limits: &[Standing]) -> String {
    match decision.origin() {
        Origin::Disabled => "the limiter is switched off: every request passes".to_owned(),
        Origin::Unlimited => unlimited(source),
        Origin::FailedOpen(kind) => {
            format!("no decision can be made ({}): requests pass", kind.as_str())
        }
        Origin::FailedClosed(kind) => {
            format!("no decision can be made ({}): requests are turned away", kind.as_str())
        }
        Origin::Shadow => "the limiter is in shadow: it decides, and denies nothing".to_owned(),
        _ if decision.is_allowed() && !is_limited(decision) => unlimited(source),
        _ if decision.is_allowed() => "every limit has enough left".to_owned(),
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

/// Returns each limit that denies, in words.
fn denials(decision: &Decision, limits: &[Standing]) -> String {
    if decision.retry_after() == RetryAfter::Now {
        return "the request is denied".to_owned();
    }
    let denying = limits.iter().filter_map(Standing::denial);
    denying.collect::<Vec<_>>().join("; ")
}
