//! The responses of `/v1/check`, `peek`, `charge` and `acquire`.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use rl_core::{Decision, Origin, RetryAfter};
use serde::Serialize;
use utoipa::ToSchema;

use super::decide::status_of;
use crate::service::Reply;

/// A decision.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct CheckAnswer {
    /// Whether the request is allowed. If not, nothing was charged.
    allowed: bool,
    /// The seconds after which the request may be allowed; `null` if it is allowed, or if no wait
    /// helps.
    #[schema(required = true)]
    retry_after: Option<u64>,
    /// Why the request is denied, or allowed without a decision; `null` if the limits allow it.
    #[schema(required = true)]
    reason: Option<ReasonAnswer>,
    /// The limits of all rules that count the request.
    limits: Vec<LimitAnswer>,
    /// The rate limit headers for the client.
    headers: BTreeMap<&'static str, String>,
    #[serde(skip)]
    status: StatusCode,
}

/// Why a request is denied, or allowed without a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum ReasonAnswer {
    /// Denied: the cost exceeds what a limit has left.
    OverLimit,
    /// Denied without reading the counters: the subject is blocked, the limit is 0, or the limits
    /// never allow the cost.
    Policy,
    /// Denied: no decision could be made, and the failure policy rejects requests then.
    Unavailable,
    /// Denied: a rule needs a key that the request does not have.
    MissingKey,
    /// Denied: the key of the request can be read in several ways.
    AmbiguousKey,
    /// Denied: more than eight rules count the request.
    TooManyRules,
    /// Denied: a rule counts addresses, and the request has none.
    UnknownAddress,
    /// Allowed: no rule counts the request.
    NotCounted,
    /// Allowed: no decision could be made, and the failure policy allows requests then.
    FailedOpen,
}

/// A limit after a decision.
#[derive(Debug, Serialize, ToSchema)]
struct LimitAnswer {
    /// The name of the rule.
    #[schema(required = true)]
    rule: Option<String>,
    /// The name of the limit in its rule.
    #[schema(example = "minute")]
    name: String,
    /// The units that can be used at once.
    limit: u64,
    /// The remaining units; `null` if the counter was not read.
    #[schema(required = true)]
    remaining: Option<u64>,
    /// The seconds until the whole limit is available again; `null` if the counter was not read.
    #[schema(required = true)]
    reset: Option<u64>,
    /// Whether the limit denies the request, or would if it were not in shadow.
    over: bool,
    /// Whether the limit is in shadow, and denies nothing.
    shadow: bool,
}

impl CheckAnswer {
    pub(super) fn new(reply: &Reply) -> Self {
        let mut headers = BTreeMap::new();
        for (name, value) in &reply.headers {
            let line: &mut String = headers.entry(*name).or_default();
            if !line.is_empty() {
                line.push_str(", ");
            }
            line.push_str(value);
        }
        headers.remove(header::CACHE_CONTROL.as_str());
        let decision = reply.decision.as_ref();
        let allowed = reply.is_allowed();
        let reason = reason(reply);
        let status = match reason {
            _ if allowed => StatusCode::OK,
            Some(ReasonAnswer::Unavailable) => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::TOO_MANY_REQUESTS,
        };
        let retry_after = decision.filter(|_| !allowed).map(Decision::retry_hint);
        Self {
            allowed,
            retry_after: retry_after.and_then(|wait| match wait {
                RetryAfter::Now => Some(1),
                RetryAfter::In(wait) => Some(seconds(wait).max(1)),
                RetryAfter::Never => None,
            }),
            reason,
            limits: decision.map_or_else(Vec::new, limits),
            headers,
            status,
        }
    }

    /// Returns the status of the response: 200 if the request is allowed, 503 if it could not be
    /// decided and is rejected, 429 if it is denied for another reason.
    pub(super) const fn status(&self) -> StatusCode {
        self.status
    }
}

impl IntoResponse for CheckAnswer {
    fn into_response(self) -> Response {
        (self.status(), Json(self)).into_response()
    }
}

fn limits(decision: &Decision) -> Vec<LimitAnswer> {
    let parts = decision.parts().flat_map(|part| {
        part.limits().map(move |limit| LimitAnswer {
            rule: part.rule().map(ToOwned::to_owned),
            name: limit.name().to_owned(),
            limit: limit.max(),
            remaining: limit.is_known().then(|| limit.remaining()),
            reset: limit.is_known().then(|| seconds(limit.reset_after())),
            over: limit.is_over(),
            shadow: part.is_shadow() || limit.limit().is_shadow(),
        })
    });
    parts.collect()
}

fn reason(reply: &Reply) -> Option<ReasonAnswer> {
    let Some(denial) = &reply.denial else {
        return match reply.decision.as_ref().map(Decision::origin) {
            None => Some(ReasonAnswer::NotCounted),
            Some(Origin::FailedOpen(_)) => Some(ReasonAnswer::FailedOpen),
            Some(_) => None,
        };
    };
    Some(match (reply.decision.as_ref().map(Decision::origin), status_of(denial)) {
        (Some(Origin::FailedClosed(_)), _) => ReasonAnswer::Unavailable,
        (Some(Origin::Policy), _) => ReasonAnswer::Policy,
        (Some(_), _) => ReasonAnswer::OverLimit,
        (None, StatusCode::BAD_REQUEST) => ReasonAnswer::AmbiguousKey,
        (None, StatusCode::INTERNAL_SERVER_ERROR) => ReasonAnswer::UnknownAddress,
        (None, StatusCode::SERVICE_UNAVAILABLE) => ReasonAnswer::TooManyRules,
        (None, _) => ReasonAnswer::MissingKey,
    })
}

/// Returns a time in whole seconds, rounded up, so that a client that waits for it does not call too
/// early.
fn seconds(time: Duration) -> u64 {
    time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0))
}
