//! Decides requests whose limiter has rules.

use std::sync::Arc;

use super::degrade::degraded;
use super::settings::Settings;
use crate::decision::Decision;
use crate::key::RequestInfo;
use crate::limiter::RateLimiter;
use crate::maybe_ready::MaybeReady;
use crate::rules::{OverLimit, RequestParts};

/// Decides a request under all rules that match it.
#[inline(never)]
pub(super) fn decide(
    settings: &Settings,
    request: &dyn RequestInfo,
    parts: &Arc<RequestParts>,
) -> MaybeReady<Decision> {
    let reserves = settings.settles_cost() || parts.settles_cost();
    // `default` applies to rules without a setting of their own.
    let default = settings.over_limit(request);
    let decision = settings.limiter.decide_rules(parts, default, reserves);
    if !parts.may(default, |over_limit| over_limit == OverLimit::Degrade) {
        return decision;
    }
    let (parts, limiter) = (Arc::clone(parts), settings.limiter.clone());
    decision.map(move |decision| degrade(&limiter, &parts, decision, default))
}

/// Degrades a denied request if the rules that deny it are set to degrade it.
fn degrade(
    limiter: &RateLimiter,
    parts: &RequestParts,
    decision: Decision,
    default: OverLimit,
) -> Decision {
    match parts.on_over_limit(decision.denying_parts(), default) {
        OverLimit::Degrade => degraded(limiter, decision),
        OverLimit::Wait { .. } | OverLimit::Reject => decision,
    }
}
