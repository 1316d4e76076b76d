//! Decides requests whose limiter has rules.

use std::sync::Arc;

use super::settings::Settings;
use crate::decision::Decision;
use crate::key::RequestInfo;
use crate::limiter::{RateLimiter, Wait};
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
    let decision = limiter.decide_parts(&parts.parts(), Mode::Check, reserves);
    if !parts.may_wait_or_degrade(default) {
        return decision;
    }
    match decision {
        MaybeReady::Ready(Some(decision)) => {
            wait_or_degrade(limiter, parts, decision, default, reserves)
        }
        later => {
            let (limiter, parts) = (limiter.clone(), Arc::clone(parts));
            MaybeReady::later(async move {
                let decision = later.await;
                wait_or_degrade(&limiter, &parts, decision, default, reserves).await
            })
        }
    }
}

/// Applies the settings of the rules that deny a request.
#[inline(never)]
fn wait_or_degrade(
    limiter: &RateLimiter,
    parts: &RequestParts,
    decision: Decision,
    default: OverLimit,
    reserves: bool,
) -> MaybeReady<Decision> {
    if decision.is_allowed() || !decision.origin().enforces() {
        return MaybeReady::ready(decision);
    }
    let denies = |place: usize| {
        let part = decision.parts().nth(place);
        part.is_some_and(|part| part.is_over() && !part.is_shadow())
    };
    let denying = (0..decision.parts().len()).filter(|place| denies(*place));
    match parts.on_over_limit(denying, default) {
        OverLimit::Wait { at_most, queue } => {
            limiter.decide_parts_or_wait(&parts.parts(), Wait { at_most, queue, reserves })
        }
        OverLimit::Degrade => MaybeReady::ready(decision).map(Decision::degraded_if_denied),
        OverLimit::Reject => MaybeReady::ready(decision),
    }
}
