//! Log lines about requests that are rejected without a decision.

use tracing::field::display;

use super::RequestIds;

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
