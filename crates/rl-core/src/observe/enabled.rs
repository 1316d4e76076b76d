//! Log lines through `tracing`.

use std::error::Error;

use tracing::level_filters::LevelFilter;

use crate::store::StoreError;
use crate::{Decision, Follow, LimitReport, Subject};

/// Whether somebody may listen to [`decided`]: one look, which nearly always says no.
#[inline]
pub(crate) fn may_decisions_be_logged() -> bool {
    LevelFilter::current() >= LevelFilter::DEBUG
}

pub(crate) fn decided(subject: &Subject, decision: &Decision) {
    // The fields are computed only if somebody listens.
    if !tracing::enabled!(target: "rl_core", tracing::Level::DEBUG) {
        return;
    }
    let governing = decision.governing(Follow::ShortestActive);
    tracing::debug!(
        target: "rl_core",
        realm = subject.realm().as_str(),
        subject = %subject.redacted(),
        allowed = decision.is_allowed(),
        origin = decision.origin().as_str(),
        limit = governing.map(|limit| limit.name()),
        used = governing.map(|limit| limit.used()),
        "decided",
    );
}

pub(crate) fn would_deny(subject: &Subject, limit: &LimitReport<'_>, is_first: bool) {
    let (subject, name, max, used) = (subject.redacted(), limit.name(), limit.max(), limit.used());
    if is_first {
        tracing::warn!(
            target: "rl_core", %subject, limit = name, max, used,
            "a limit in shadow would deny; others in the same window are logged at level debug",
        );
    } else {
        tracing::debug!(target: "rl_core", %subject, limit = name, max, used, "a limit in shadow would deny");
    }
}

pub(crate) fn store_failed(error: &StoreError, consequence: &str) {
    let cause = error.source().map(tracing::field::display);
    if error.kind().is_configuration() {
        tracing::error!(target: "rl_core", kind = error.kind().as_str(), cause, "{error}; {consequence}");
    } else {
        tracing::warn!(target: "rl_core", kind = error.kind().as_str(), cause, "{error}; {consequence}");
    }
}

pub(crate) fn store_recovered() {
    tracing::info!(target: "rl_core", "the store answers again; limits hold");
}

pub(crate) fn source_failed(error: &StoreError, consequence: &str) {
    let cause = error.source().map(tracing::field::display);
    tracing::warn!(
        target: "rl_core", kind = error.kind().as_str(), cause,
        "no policy can be looked up: {error}; {consequence}",
    );
}

pub(crate) fn source_recovered() {
    tracing::info!(target: "rl_core", "policies are found again");
}

pub(crate) fn too_many_states(detail: &str) {
    tracing::error!(
        target: "rl_core",
        "request rejected: {detail}; further rejections for this reason are not logged",
    );
}

pub(crate) fn fallback_failed(error: &StoreError, consequence: &str) {
    let cause = error.source().map(tracing::field::display);
    tracing::warn!(
        target: "rl_core", kind = error.kind().as_str(), cause,
        "the fallback failed: {error}; {consequence}",
    );
}

pub(crate) fn overloaded(most: usize, consequence: &str) {
    tracing::warn!(target: "rl_core", most, "too many decisions wait for the store; {consequence}");
}

pub(crate) fn caught_up() {
    tracing::info!(target: "rl_core", "there is room again for decisions that wait for the store");
}

#[cfg(feature = "redis")]
pub(crate) fn healed(counters: u64) {
    tracing::warn!(target: "rl_core", counters, "counters without expiry were found and given one");
}

#[cfg(feature = "redis")]
pub(crate) fn not_connected(error: &StoreError) {
    tracing::warn!(target: "rl_core", kind = error.kind().as_str(), "starting without the store: {error}");
}

#[cfg(feature = "redis")]
pub(crate) fn can_evict(policy: &str) {
    tracing::warn!(
        target: "rl_core", maxmemory_policy = policy,
        "Redis deletes keys when its memory is full: counters are forgotten and limits do not hold. \
         Set maxmemory-policy to noeviction",
    );
}

pub(crate) fn missing_key() {
    tracing::warn!(
        target: "rl_core",
        "a request does not say who is counted and is turned away; requests like it are not \
         logged again. If clients are counted by address, serve with \
         `into_make_service_with_connect_info::<SocketAddr>()` in axum",
    );
}

pub(crate) fn ambiguous_key() {
    tracing::warn!(
        target: "rl_core",
        "a request whose key is given twice, or can be read in two ways, is rejected with 400; requests \
         like it are not logged again",
    );
}
