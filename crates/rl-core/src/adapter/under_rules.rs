//! Decides requests whose limiter has rules.

use std::sync::Arc;

use super::settings::Settings;
use crate::decision::Decision;
use crate::key::RequestInfo;
use crate::maybe_ready::MaybeReady;
use crate::model::Mode;
use crate::rules::{OverLimit, RequestParts};

/// Decides a request under all rules that match it.
#[inline(never)]
pub(super) fn decide(
    settings: &Settings,
    request: &dyn RequestInfo,
    parts: &Arc<RequestParts>,
) -> MaybeReady<Decision> {
    let (limiter, reserves) = (&settings.limiter, settings.settles_cost());
    // The setting of the layer applies to rules that have none of their own.
    let default = settings.over_limit(request);
    if !parts.may(default, |over_limit| over_limit != OverLimit::Reject) {
        return limiter.decide_parts(&parts.parts(), Mode::Check, reserves);
    }
    // A request that may wait enters the queue behind earlier ones before it is decided.
    let decision = if parts.may(default, |over_limit| matches!(over_limit, OverLimit::Wait { .. }))
    {
        limiter.decide_rules_or_wait(parts, default, reserves)
    } else {
        limiter.decide_parts(&parts.parts(), Mode::Check, reserves)
    };
    let parts = Arc::clone(parts);
    decision.map(move |decision| degrade(&parts, decision, default))
}

/// Degrades a denied request if the rules that deny it are set so.
fn degrade(parts: &RequestParts, decision: Decision, default: OverLimit) -> Decision {
    match parts.on_over_limit(decision.denying_parts(), default) {
        OverLimit::Degrade => decision.degraded_if_denied(),
        OverLimit::Wait { .. } | OverLimit::Reject => decision,
    }
}
