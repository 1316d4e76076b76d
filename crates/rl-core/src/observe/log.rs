//! Log lines through `tracing`.

use std::error::Error;
use std::time::Duration;

use tracing::field::display;
use tracing::level_filters::LevelFilter;

#[cfg(feature = "redis")]
use super::Ended;
use super::{DecisionEvent, Event, EventKind, EventLocation, Observer, RequestIds};
use crate::decision::GoverningLimit;
use crate::model::{Limit, OnFailure, StoreError};

/// Returns whether any subscriber may record the lines of decisions.
///
/// This is one atomic load, and nearly always `false`.
pub(crate) fn may_decisions_be_logged() -> bool {
    LevelFilter::current() >= LevelFilter::DEBUG
}

/// The observer that writes the log lines of decisions and of conditions.
#[derive(Debug)]
pub(crate) struct LogObserver;

impl Observer for LogObserver {
    fn decided(&self, event: &DecisionEvent<'_>) {
        // The fields are computed only if a subscriber records the event.
        if !tracing::enabled!(target: "rl_core", tracing::Level::DEBUG) {
            return;
        }
        let DecisionEvent { location, subject, decision, duration, .. } = *event;
        let EventLocation { limiter, rule, store } = location;
        let governing = decision.governing(GoverningLimit::ShortestActive);
        tracing::debug!(
            target: "rl_core",
            limiter, rule, store,
            realm = subject.realm().as_str(),
            subject = %subject.redacted(),
            allowed = decision.is_allowed(),
            origin = decision.origin().as_str(),
            limit = governing.map(|limit| limit.name()),
            used = governing.map(|limit| limit.used()),
            duration_us = duration.map(micros),
            "decided",
        );
    }

    fn observe(&self, event: &Event<'_>) {
        let EventLocation { limiter, rule, store } = event.location;
        match event.kind {
            EventKind::WouldDeny { subject, limit, is_first } => {
                let (subject, max, used) = (subject.redacted(), limit.max(), limit.used());
                let limit = limit.name();
                if is_first {
                    tracing::warn!(
                        target: "rl_core", limiter, rule, store, %subject, limit, max, used,
                        "limit in shadow would deny; others in the same window are logged at level debug",
                    );
                } else {
                    tracing::debug!(
                        target: "rl_core", limiter, rule, store, %subject, limit, max, used,
                        "limit in shadow would deny",
                    );
                }
            }
            EventKind::StoreFailing { error, on_failure } => {
                let (kind, cause) = (error.kind().as_str(), cause(error));
                let consequence = on_failure.consequence();
                if error.kind().is_configuration() {
                    tracing::error!(
                        target: "rl_core", limiter, store, kind, cause, consequence,
                        "store failing",
                    );
                } else {
                    tracing::warn!(
                        target: "rl_core", limiter, store, kind, cause, consequence,
                        "store failing",
                    );
                }
            }
            EventKind::StoreRecovered { lasted, undecided } => {
                let outage_ms = millis(lasted);
                tracing::info!(
                    target: "rl_core", limiter, store, outage_ms, undecided,
                    "store recovered",
                );
            }
            EventKind::StoreOverloaded { in_flight, bound, on_failure } => {
                let consequence = on_failure.consequence();
                tracing::warn!(
                    target: "rl_core", limiter, store, in_flight, bound, consequence,
                    "store overloaded",
                );
            }
            EventKind::StoreOverloadEnded { lasted, refused } => {
                let lasted_ms = millis(lasted);
                tracing::info!(
                    target: "rl_core", limiter, store, lasted_ms, refused,
                    "store overload ended",
                );
            }
            EventKind::StoreOutOfMemory { error, on_failure } => {
                let (cause, consequence) = (cause(error), on_failure.consequence());
                tracing::error!(
                    target: "rl_core", limiter, store, cause, consequence,
                    "store out of memory",
                );
            }
            EventKind::StoreOutOfMemoryEnded { lasted, undecided } => {
                let lasted_ms = millis(lasted);
                tracing::info!(
                    target: "rl_core", limiter, store, lasted_ms, undecided,
                    "store charges requests again",
                );
            }
            EventKind::PolicyUnsupported { error, on_failure } => {
                let (cause, consequence) = (cause(error), on_failure.consequence());
                tracing::error!(
                    target: "rl_core", limiter, store, cause, consequence,
                    "policy not supported by the store",
                );
            }
            EventKind::PolicyUnsupportedEnded { lasted, requests } => {
                let lasted_ms = millis(lasted);
                tracing::info!(
                    target: "rl_core", limiter, store, lasted_ms, requests,
                    "unsupported policies ended",
                );
            }
            EventKind::ValueDamaged { subject: Some(subject), error, on_failure } => {
                let (realm, subject) = (subject.realm().as_str(), subject.redacted());
                let (cause, consequence) = (cause(error), consequence_of_damage(on_failure));
                tracing::error!(
                    target: "rl_core", limiter, store, realm, %subject, cause, consequence,
                    "stored value damaged",
                );
            }
            EventKind::ValueDamaged { subject: None, on_failure, .. } => {
                let consequence = consequence_of_damage(on_failure);
                tracing::error!(
                    target: "rl_core", limiter, store, consequence,
                    "many stored values damaged: further subjects are not named",
                );
            }
            EventKind::ValueRecovered { subject, lasted, requests } => {
                let lasted_ms = millis(lasted);
                tracing::info!(
                    target: "rl_core", limiter, store, %subject, lasted_ms, requests,
                    "stored value recovered",
                );
            }
            EventKind::FallbackFailing { error, on_failure } => {
                let (kind, cause) = (error.kind().as_str(), cause(error));
                let consequence = on_failure.consequence();
                tracing::warn!(
                    target: "rl_core", limiter, store, kind, cause, consequence,
                    "fallback failing",
                );
            }
            EventKind::FallbackRecovered { lasted, undecided } => {
                let lasted_ms = millis(lasted);
                tracing::info!(
                    target: "rl_core", limiter, store, lasted_ms, undecided,
                    "fallback recovered",
                );
            }
            EventKind::LookupsFailing { error, on_failure } => {
                let (kind, cause) = (error.kind().as_str(), cause(error));
                let consequence = on_failure.consequence();
                tracing::warn!(
                    target: "rl_core", limiter, kind, cause, consequence,
                    "policy look-ups failing",
                );
            }
            EventKind::LookupsRecovered { lasted, undecided } => {
                let lasted_ms = millis(lasted);
                tracing::info!(
                    target: "rl_core", limiter, lasted_ms, undecided,
                    "policy look-ups recovered",
                );
            }
            EventKind::LookupsOverloaded { on_failure } => {
                let for_overload = "the policy for overload applies";
                let consequence = on_failure.map_or(for_overload, OnFailure::consequence);
                tracing::warn!(
                    target: "rl_core", limiter, consequence,
                    "policy look-ups overloaded",
                );
            }
            EventKind::LookupsOverloadEnded { lasted, refused } => {
                let lasted_ms = millis(lasted);
                tracing::info!(
                    target: "rl_core", limiter, lasted_ms, refused,
                    "policy look-up overload ended",
                );
            }
            EventKind::PolicyUnreadable { subject: Some(subject), error, on_failure } => {
                let (kind, cause) = (error.kind().as_str(), cause(error));
                let (realm, subject) = (subject.realm().as_str(), subject.redacted());
                let consequence = on_failure.consequence();
                tracing::error!(
                    target: "rl_core", limiter, realm, %subject, kind, cause, consequence,
                    "policy of subject unreadable",
                );
            }
            EventKind::PolicyUnreadable { subject: None, on_failure, .. } => {
                let consequence = on_failure.consequence();
                tracing::error!(
                    target: "rl_core", limiter, consequence,
                    "many policies unreadable: further subjects are not named",
                );
            }
            EventKind::PolicyReadable { subject, lasted, requests } => {
                let lasted_ms = millis(lasted);
                tracing::info!(
                    target: "rl_core", limiter, %subject, lasted_ms, requests,
                    "policy of subject readable again",
                );
            }
            EventKind::LeaseLapsed { subject, is_retaken, is_first: true } => {
                let subject = subject.redacted();
                tracing::warn!(
                    target: "rl_core", limiter, rule, store, %subject, is_retaken,
                    "concurrency lease lapsed while its request is in flight",
                );
            }
            EventKind::LapsesEnded { lasted, leases } => {
                let lasted_ms = millis(lasted);
                tracing::info!(
                    target: "rl_core", limiter, store, lasted_ms, leases,
                    "concurrency leases no longer lapse",
                );
            }
            EventKind::RulesApplied { path, version, .. } => {
                tracing::info!(target: "rl_core", path = %path.display(), version, "rules applied");
            }
            EventKind::RulesRefused { path, error, .. } => {
                let consequence = "the last valid rules continue to apply";
                tracing::error!(
                    target: "rl_core", path = %path.display(), %error, consequence,
                    "rules refused",
                );
            }
            // These events are for metrics. Other events report the same conditions to operators.
            EventKind::NearLimit { .. }
            | EventKind::Settled { .. }
            | EventKind::StoreCallFailed { .. }
            | EventKind::BreakerOpened { .. }
            | EventKind::BreakerClosed { .. }
            | EventKind::FailurePolicyBegan { .. }
            | EventKind::FailurePolicyEnded { .. }
            | EventKind::LookupFailed { .. }
            | EventKind::LeaseLapsed { is_first: false, .. }
            | EventKind::PoliciesChanged { .. } => {}
        }
    }
}

/// Returns the consequence for the requests of a subject with a damaged value.
const fn consequence_of_damage(on_failure: OnFailure) -> &'static str {
    match on_failure {
        OnFailure::Allow => "requests of this subject are allowed without limits",
        OnFailure::Reject => "requests of this subject are rejected with 503, others are decided",
        OnFailure::Fallback => "the fallback decides requests of this subject",
    }
}

/// Returns why a store or a source failed: the detail of the error, and the text of its cause.
fn cause(error: &StoreError) -> Option<String> {
    match (error.detail(), error.source()) {
        (Some(detail), Some(source)) => Some(format!("{detail}: {source}")),
        (Some(detail), None) => Some(detail.to_owned()),
        (None, source) => source.map(ToString::to_string),
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

pub(crate) fn shared_counters(EventLocation { limiter, store, .. }: EventLocation<'_>) {
    tracing::warn!(
        target: "rl_core", limiter, store,
        "two limiters with different limits share counters: they use one store and one namespace, so \
         each counts the other's requests; give one of them another namespace",
    );
}

pub(crate) fn share_raised(
    EventLocation { limiter, rule, store }: EventLocation<'_>,
    limit: &str,
    configured: Limit,
    cost: u64,
    instances: u32,
) {
    tracing::warn!(
        target: "rl_core", limiter, rule, store, limit, %configured, cost, instances,
        "share of a limit raised to the cost of one request: while the fallback decides, all instances \
         together may admit more than the limit",
    );
}

pub(crate) fn unknown_rule(limiter: &str, rule: &str) {
    let rule: String = rule.chars().take(80).collect();
    tracing::warn!(
        target: "rl_core", limiter, rule,
        "cost not set: expected the name of a rule; further costs of unknown rules are not logged",
    );
}

pub(crate) fn too_many_states(detail: &str) {
    tracing::error!(
        target: "rl_core", store = "memory", cause = detail,
        "requests rejected; further rejections for this reason are not logged",
    );
}

#[cfg(feature = "redis")]
pub(crate) fn healed(store: &str, counters: u64) {
    tracing::warn!(
        target: "rl_core", store, counters,
        "counters without expiry found, and given one",
    );
}

#[cfg(feature = "redis")]
pub(crate) fn healing_ended(store: &str, Ended { lasted, count }: Ended) {
    let (lasted_ms, counters) = (millis(lasted), count);
    tracing::info!(target: "rl_core", store, lasted_ms, counters, "no more counters without expiry");
}

#[cfg(feature = "redis")]
pub(crate) fn give_back_failed(store: &str, error: &StoreError) {
    let cause = cause(error);
    tracing::warn!(
        target: "rl_core", store, cause,
        consequence = "it counts until it expires",
        "charge not given back",
    );
}

#[cfg(feature = "redis")]
pub(crate) fn give_back_recovered(store: &str, Ended { lasted, count }: Ended) {
    let (lasted_ms, charges) = (millis(lasted), count);
    tracing::info!(
        target: "rl_core", store, lasted_ms, charges,
        "charges given back again",
    );
}

#[cfg(feature = "redis")]
pub(crate) fn not_connected(store: &str, error: &StoreError) {
    let (kind, cause) = (error.kind().as_str(), cause(error));
    let consequence = "the failure policy decides requests until the store replies";
    tracing::warn!(target: "rl_core", store, kind, cause, consequence, "starting without the store");
}

#[cfg(feature = "redis")]
pub(crate) fn can_evict(store: &str, policy: &str) {
    tracing::warn!(
        target: "rl_core", store, maxmemory_policy = policy,
        "Redis may evict counters: when its memory is full, limits do not hold. \
         Set maxmemory-policy to noeviction",
    );
}

/// Logs the warnings about a rule file.
#[cfg(feature = "rules-file")]
pub(crate) fn rules_warned(path: &std::path::Path, warnings: &[String]) {
    for warning in warnings {
        tracing::warn!(target: "rl_core", path = %path.display(), %warning, "rules warning");
    }
}

pub(crate) fn missing_key(limiter: &str, rule: Option<&str>, ids: &RequestIds) {
    let RequestIds { request, trace, .. } = ids;
    let (request_id, trace_id) = (request.as_ref().map(display), trace.as_ref().map(display));
    tracing::warn!(
        target: "rl_core", limiter, rule, request_id, trace_id,
        "request without a known key rejected with 403; further ones are not logged",
    );
}

pub(crate) fn unknown_address(limiter: &str, RequestIds { request, trace, .. }: &RequestIds) {
    let (request_id, trace_id) = (request.as_ref().map(display), trace.as_ref().map(display));
    tracing::error!(
        target: "rl_core", limiter, request_id, trace_id,
        "client address unknown: the server does not report the peer of the connection, so requests that are \
         counted by address are rejected with 500; further ones are not logged. In axum, serve with \
         `into_make_service_with_connect_info::<SocketAddr>()`. With tonic, activate the feature `tonic` of \
         rl-tower. Elsewhere, insert the peer's `SocketAddr` into the extensions of each request. On a Unix socket \
         behind a proxy, set `ClientIp::trust_local`",
    );
}

pub(crate) fn ambiguous_key(limiter: &str, RequestIds { request, trace, .. }: &RequestIds) {
    let (request_id, trace_id) = (request.as_ref().map(display), trace.as_ref().map(display));
    tracing::warn!(
        target: "rl_core", limiter, request_id, trace_id,
        "request with an ambiguous key rejected with 400: its key is given twice, or can be read in two \
         ways; further ones are not logged",
    );
}

/// Logs the names of rules that match one request, although a decision cannot apply all of them.
pub(crate) fn too_many_rules(
    limiter: &str,
    rules: &str,
    consequence: &str,
    RequestIds { request, trace, .. }: &RequestIds,
) {
    let (request_id, trace_id) = (request.as_ref().map(display), trace.as_ref().map(display));
    tracing::error!(
        target: "rl_core", limiter, rules, consequence, request_id, trace_id,
        "more than eight rules match a request; further requests are logged after a minute without one",
    );
}
