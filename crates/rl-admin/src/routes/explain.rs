use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use rl_core::key::{CountedAs, RequestInfo};
use rl_core::rules::CountingRule;
use rl_core::{Decision, FailureKind, Origin, RetryAfter, Subject};
use rl_records::ActiveLimits;
use serde::Serialize;
use utoipa::ToSchema;

use crate::context::Context;
use crate::error::ApiError;
use crate::error::ErrorResponses;
use crate::read::{
    Allowed, CanGetRateLimits, ConsumerId, ExplainQuery, ExplainedRequest, PathParam, QueryParams,
    SubjectParams,
};
use crate::subject_rules::{
    check_rule, check_tier, limits_of_database, name_of, note_on_tiers, request, tier_of,
};
use crate::wire::{
    Considered, LimitUsage, PoliciesOf, UNKNOWN_FAILURE_POLICY, is_limited, joined, policy_text,
    seconds_of,
};

/// The explanation of a decision.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Explanation {
    /// The subject in the form in which the limiter counts it; for an IPv6 address, this is its
    /// network.
    #[schema(example = "consumer/abc123")]
    subject: String,
    /// Whether the request would be allowed now, as far as `rules` decide; `null` if that is
    /// unknown, as it is if only rules of `pairs` may deny it.
    pub(crate) allowed: Option<bool>,
    /// The reason as a text.
    pub(crate) reason: String,
    /// The cost of the request under rules that set none.
    cost: u64,
    /// The source of the records' limits under the rule of the query, or under the only rule of
    /// `rules`. Otherwise records under one rule are left out.
    source: Source,
    /// The tier of the consumer; `null` if it has none, or if records replace it.
    tier: Option<String>,
    /// The records from which the limits were computed, ordered by `from_date`.
    considered: Vec<Considered>,
    /// The program whose policies these are.
    policies_of: PoliciesOf,
    /// A restriction that applies to this answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
    /// The decision of each rule that counts the request. A limiter without rules has one entry.
    pub(crate) rules: Vec<RuleExplanation>,
    /// The rules that count the subject only together with another one, such as each consumer on
    /// each route. Their decisions are unknown.
    pairs: Vec<String>,
    /// The other rules that are not included: they do not match the request, or count other
    /// subjects than this one, the address of the query, and all requests together.
    pub(crate) other_rules: Vec<String>,
    /// The seconds after which the request would be allowed, rounded up. 0 if it is allowed now,
    /// and `null` if waiting does not help, or if it is unknown whether the request is allowed.
    pub(crate) retry_in_seconds: Option<u64>,
}

/// The decision of one rule.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RuleExplanation {
    /// The name of the rule; `null` if the limiter has no rules.
    #[schema(example = "consumers")]
    pub(crate) rule: Option<String>,
    /// The subject that the rule counts.
    #[schema(example = "consumer/abc123")]
    subject: String,
    /// Whether the rule would allow the request; `null` if that is unknown. A rule in shadow denies
    /// nothing.
    pub(crate) allowed: Option<bool>,
    /// The reason as a text.
    pub(crate) reason: String,
    /// The cost of the request under this rule.
    cost: u64,
    /// The component that decided: `store`, `local_deny`, `leased`, `policy`, `unlimited`,
    /// `disabled`, `shadow`, `fallback`, `failed_open` or `failed_closed`. `policy` is a denial
    /// that needs no counter: a block, a limit of 0, or a cost that the limits never grant.
    decided_by: &'static str,
    /// Whether the rule is in shadow.
    pub(crate) is_shadow: bool,
    /// The tier of the rule whose limits these are; `null` for the limits of requests without a
    /// tier.
    #[schema(required = true, example = "pro")]
    tier: Option<String>,
    /// The policy that the limiter enforces, as text, or `unlimited`; `null` if it is unknown.
    #[schema(example = "second=10/second, minute=100/minute")]
    pub(crate) policy: Option<String>,
    /// The usage of each limit, and whether the limit denies the request.
    limits: Vec<LimitUsage>,
    /// The seconds after which the rule would allow the request, rounded up. 0 if it allows it now,
    /// and `null` if waiting does not help, or if it is unknown whether the request is allowed.
    pub(crate) retry_in_seconds: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum Source {
    /// Records of the subject.
    Records,
    /// A record that blocks the subject.
    Block,
    /// The tier of the consumer, which has no active record.
    Tier,
    /// The configured defaults: the consumer has neither an active record nor a tier.
    Defaults,
    /// The policies of the service: the subject is not a consumer, and has no active record.
    Service,
}

impl Source {
    /// Returns the source of the limits in `active`. `None` means that the service sets them.
    fn of(active: Option<&ActiveLimits>) -> Self {
        match active {
            None => Self::Service,
            Some(active) if active.tier().is_some() => Self::Tier,
            Some(active) if active.is_default() => Self::Defaults,
            Some(active) if active.is_blocked() => Self::Block,
            Some(_) => Self::Records,
        }
    }
}

/// Explains whether a request of a consumer would be allowed, and why
///
/// Charges nothing. With `path`, only the rules that match the request decide.
#[utoipa::path(get, path = "/management/consumers/{CONSUMER_ID}/explain", tag = "subjects",
    params(PathParam<ConsumerId>, ExplainQuery), responses((status = OK, body = Explanation), ErrorResponses))]
pub(super) async fn consumer(
    State(context): State<Arc<Context>>,
    _: Allowed<CanGetRateLimits>,
    PathParam(ConsumerId(consumer)): PathParam<ConsumerId>,
    QueryParams(query): QueryParams<ExplainQuery>,
) -> Result<Json<Explanation>, ApiError> {
    explain(&context, Subject::consumer(consumer.as_str()), query).await.map(Json)
}

/// Explains whether a request of a subject would be allowed, and why
///
/// Charges nothing. With `path`, only the rules that match the request decide.
#[utoipa::path(get, path = "/management/subjects/{REALM}/{SUBJECT_ID}/explain", tag = "subjects",
    params(SubjectParams, ExplainQuery),
    responses((status = OK, body = Explanation), ErrorResponses))]
pub(super) async fn subject(
    State(context): State<Arc<Context>>,
    _: Allowed<CanGetRateLimits>,
    SubjectParams(subject): SubjectParams,
    QueryParams(query): QueryParams<ExplainQuery>,
) -> Result<Json<Explanation>, ApiError> {
    explain(&context, subject, query).await.map(Json)
}

/// Explains the decision on a request.
///
/// # Errors
///
/// Returns an error that names the parameter of the query that is invalid, or 503 if the database
/// fails.
pub(crate) async fn explain(
    context: &Context,
    subject: Subject,
    query: ExplainQuery,
) -> Result<Explanation, ApiError> {
    check_rule(&context.limiter, query.rule.as_deref())?;
    let (selected, tier) = (query.rule.clone(), query.tier.clone());
    let cost = query.cost;
    let request = ExplainedRequest::read(context, subject.clone(), query)?;
    let found = FoundRules::find(context, &request, selected.as_deref());
    check_tier(found.rules.iter().flatten(), tier.as_deref())?;
    let peeked = PeekedRequest { subject: &subject, tier: tier.as_deref(), cost };
    let by_rule = context.records.active_limits_by_rule(&subject, context.now()).await?;
    let active_under = |rule: Option<&str>| limits_of_database(&by_rule, &subject, rule);
    let mut rules = Vec::with_capacity(found.rules.len());
    let mut notes = vec![context.note_on_services()];
    for rule in &found.rules {
        let source = Source::of(active_under(rule.as_ref().map(|rule| &*rule.name)));
        let (explained, note) = explain_rule(context, &peeked, rule.as_ref(), source).await;
        notes.push(note);
        rules.push(explained);
    }
    notes.push(found.note(request.has_path(), tier.as_deref()));
    let allowed = found.allowed(&rules);
    let only = match &rules[..] {
        [only] => only.rule.as_deref(),
        _ => None,
    };
    let active = active_under(selected.as_deref().or(only));
    let records = active.map_or(&[][..], ActiveLimits::contributions);
    Ok(Explanation {
        subject: name_of(&subject),
        allowed,
        reason: found.reason(&rules),
        cost,
        source: Source::of(active),
        tier: active.and_then(|active| active.tier().map(ToOwned::to_owned)),
        considered: records.iter().map(Considered::of).collect(),
        policies_of: PoliciesOf::of(context.is_stand_alone),
        note: joined(notes),
        retry_in_seconds: allowed.and_then(|_| longest_wait(&rules)),
        pairs: found.pairs.into_iter().map(|rule| rule.name).collect(),
        other_rules: found.others,
        rules,
    })
}

/// The request whose decisions are explained.
struct PeekedRequest<'a> {
    subject: &'a Subject,
    /// The tier in its extensions.
    tier: Option<&'a str>,
    /// Its cost under rules that set none.
    cost: u64,
}

/// The rules that decide a request.
struct FoundRules {
    /// The rule of a limiter without rules is `None`.
    rules: Vec<Option<CountingRule>>,
    /// The rules that count the subject only together with another one.
    pairs: Vec<CountingRule>,
    others: Vec<String>,
    /// The name of the only rule that the query asks for.
    selected: Option<String>,
}

impl FoundRules {
    /// Finds the rules that may count the request; only the rule called `selected`, if there is a
    /// name.
    fn find(context: &Context, request: &ExplainedRequest, selected: Option<&str>) -> Self {
        let limiter = &context.limiter;
        let selected = selected.map(ToOwned::to_owned);
        let Some(names) = limiter.rule_names() else {
            return Self { rules: vec![None], pairs: Vec::new(), others: Vec::new(), selected };
        };
        let view = request.has_path().then_some(request as &dyn RequestInfo);
        let found = limiter.rules_of(&request.subjects(), view).into_iter();
        let found = found.filter(|rule| selected.as_ref().is_none_or(|name| *name == rule.name));
        let (pairs, rules): (Vec<_>, Vec<_>) =
            found.partition(|rule| rule.counted_as == CountedAs::Pair);
        let is_other = |name: &String| rules.iter().chain(&pairs).all(|rule| rule.name != *name);
        let others = names.into_iter().filter(is_other).collect();
        Self { rules: rules.into_iter().map(Some).collect(), pairs, others, selected }
    }

    /// Returns whether all rules allow the request. `None` if that is unknown.
    fn allowed(&self, rules: &[RuleExplanation]) -> Option<bool> {
        if rules.iter().any(|rule| rule.allowed == Some(false)) {
            return Some(false);
        }
        let is_undecided = rules.is_empty() && self.selected.is_some();
        let may_deny = |rule: &CountingRule| !rule.is_shadow;
        let is_known = !is_undecided && !self.pairs.iter().any(may_deny);
        (is_known && rules.iter().all(|rule| rule.allowed == Some(true))).then_some(true)
    }

    /// Returns the reasons of the rules that deny, each after the name of its rule.
    fn reason(&self, rules: &[RuleExplanation]) -> String {
        let named = |rule: &RuleExplanation| match &rule.rule {
            Some(name) => format!("{name}: {}", rule.reason),
            None => rule.reason.clone(),
        };
        let not_allowing = rules.iter().filter(|rule| rule.allowed != Some(true));
        let not_allowing: Vec<_> = not_allowing.map(named).collect();
        let pairs = self.pairs.iter().filter(|rule| !rule.is_shadow);
        let pairs: Vec<_> = pairs.map(|rule| &*rule.name).collect();
        match (rules, &not_allowing[..], &pairs[..]) {
            (_, [], [_, ..]) => format!(
                "what the rules {} decide is unknown: they count the subject only together with another one",
                pairs.join(", ")
            ),
            ([], ..) => match &self.selected {
                Some(selected) => {
                    format!("rule {selected} does not match the request, or counts another subject")
                }
                None => "no rule counts the request".to_owned(),
            },
            ([one], ..) => named(one),
            (_, [], []) => "each of these rules allows the request".to_owned(),
            (_, not_allowing, _) => not_allowing.join("; "),
        }
    }

    /// Returns the sentences about what the request may change.
    fn note(&self, has_path: bool, tier: Option<&str>) -> Option<String> {
        let named = |is_named: fn(&CountingRule) -> bool| {
            let named = self.rules.iter().flatten().filter(|rule| is_named(rule));
            named.map(|rule| &*rule.name).collect::<Vec<_>>().join(", ")
        };
        let matching = if has_path { String::new() } else { named(|rule| rule.has_match) };
        let matching = (!matching.is_empty()).then(|| {
            format!(
                "Rules that count only requests that match them: {matching}. Add path and method."
            )
        });
        let tiers = match tier {
            None => note_on_tiers(self.rules.iter().flatten()),
            Some(_) => None,
        };
        joined([matching, tiers])
    }
}

/// Explains the decision of one rule. Also returns a note if the usage is not fully known.
async fn explain_rule(
    context: &Context,
    peeked: &PeekedRequest<'_>,
    rule: Option<&CountingRule>,
    source: Source,
) -> (RuleExplanation, Option<String>) {
    let subject = rule.map_or(peeked.subject, |rule| &rule.subject);
    let cost = rule.and_then(|rule| rule.cost).map_or(peeked.cost, |cost| cost.units());
    let is_shadow = rule.is_some_and(|rule| rule.is_shadow);
    let source = match rule {
        Some(rule) if !rule.has_source => Source::Service,
        _ => source,
    };
    let limiter = &context.limiter;
    let name = rule.map(|rule| &*rule.name);
    let decision = request(limiter, subject, name, peeked.tier).cost(cost).peek().await;
    let (limits, note) = usages(context, subject, rule, peeked.tier, &decision).await;
    // The standalone server does not know how the services decide in an outage.
    let is_outage = context.is_stand_alone && decision.origin().is_failure();
    let knows_limits = context.knows_limits(subject, &decision);
    let is_known = !is_outage && knows_limits;
    let reason = match (is_outage, knows_limits) {
        (true, _) => UNKNOWN_FAILURE_POLICY.to_owned(),
        (_, false) => "the program of each service sets the limits of this subject".to_owned(),
        _ => reason(&decision, source, &limits, is_shadow),
    };
    let allowed = is_known.then(|| decision.is_forwarded());
    let retry_in_seconds = match allowed {
        Some(true) => Some(0),
        Some(false) => seconds_of(decision.retry_after()),
        None => None,
    };
    let explained = RuleExplanation {
        rule: rule.map(|rule| rule.name.clone()),
        subject: name_of(subject),
        allowed,
        reason,
        cost,
        decided_by: decision.origin().as_str(),
        is_shadow,
        tier: rule.and_then(|rule| tier_of(rule, peeked.tier)),
        policy: policy_text(&decision).filter(|_| knows_limits),
        limits,
        retry_in_seconds,
    };
    (explained, note)
}

/// Returns the longest wait of the rules that deny.
fn longest_wait(rules: &[RuleExplanation]) -> Option<u64> {
    let denying = rules.iter().filter(|rule| rule.allowed != Some(true));
    denying.map(|rule| rule.retry_in_seconds).try_fold(0, |longest, wait| Some(longest.max(wait?)))
}

/// Returns the usage of each limit, and a note if the usage is not fully known.
///
/// A denial by the policy alone reads no counter, so the usage is read in a separate call.
async fn usages(
    context: &Context,
    subject: &Subject,
    rule: Option<&CountingRule>,
    tier: Option<&str>,
    decision: &Decision,
) -> (Vec<LimitUsage>, Option<String>) {
    let is_shadow = rule.is_some_and(|rule| rule.is_shadow);
    let of_decision = || {
        let limits = decision.parts().flat_map(|part| part.limits());
        limits.map(|limit| LimitUsage::of(limit, is_shadow)).collect()
    };
    if decision.origin() != Origin::Policy {
        return (of_decision(), None);
    }
    let limiter = &context.limiter;
    let name = rule.map(|rule| &*rule.name);
    let usage = request(limiter, subject, name, tier).usage().await;
    match usage {
        Ok(usage) => (LimitUsage::of_denial(&usage, decision, is_shadow), None),
        Err(error) => (of_decision(), Some(unread_counters(error.kind()))),
    }
}

fn unread_counters(kind: FailureKind) -> String {
    format!("The counters cannot be read ({}), so the usage is unknown.", kind.as_str())
}

fn reason(decision: &Decision, source: Source, limits: &[LimitUsage], is_shadow: bool) -> String {
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
        _ if is_shadow => "the rule is in shadow: it counts and denies nothing".to_owned(),
        _ if decision.is_allowed() && !is_limited(decision) => unlimited(source),
        _ if decision.is_allowed() => "every limit has enough capacity left".to_owned(),
        _ if source == Source::Block => "the subject is blocked".to_owned(),
        _ => denials(decision, limits),
    }
}

fn unlimited(source: Source) -> String {
    match source {
        Source::Defaults => {
            "there are no own limits now, and the defaults have no limit".to_owned()
        }
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
