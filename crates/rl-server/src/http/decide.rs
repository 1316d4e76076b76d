//! `/decide` and `/authz/…`: decisions for gateways that ask a web service whether a request may
//! pass.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use rl_core::denial::Denial;
use rl_core::store::Mode;
use utoipa::IntoResponses;

use super::access::trusted_peer;
use super::gateway_call::CallHeaders;
use super::problem::Problem;
use super::settings::HttpState;
use crate::service::Reply;

/// Decides the request that X-Forwarded-Method, -Uri, -Host and -For describe
///
/// The peer has to be one of the setting `proxies`. An allowed request gets 200 with the rate limit
/// headers, and a denied one the response for the client. The body and the query are ignored.
#[utoipa::path(
    method(get, head, post),
    path = "/decide",
    tag = "gateways",
    responses(DecideResponses)
)]
pub(super) async fn by_forwarded(
    State(state): State<Arc<HttpState>>,
    request: Request,
) -> Result<Response, Problem> {
    decide(&state, request, CallHeaders::Forwarded, Denials::AsTheyAre).await
}

/// Decides like `/decide`, with 403 in place of the status of any denial, for nginx
#[utoipa::path(
    method(get, head, post),
    path = "/decide/403",
    tag = "gateways",
    responses(DecideResponses)
)]
pub(super) async fn by_forwarded_with_403(
    State(state): State<Arc<HttpState>>,
    request: Request,
) -> Result<Response, Problem> {
    decide(&state, request, CallHeaders::Forwarded, Denials::With403).await
}

/// Decides the request that X-Original-Method, X-Original-URI and X-Forwarded-For describe
///
/// The host is that of the call. Apart from this, it is like `/decide`.
#[utoipa::path(
    method(get, head, post),
    path = "/decide/original",
    tag = "gateways",
    responses(DecideResponses)
)]
pub(super) async fn by_original(
    State(state): State<Arc<HttpState>>,
    request: Request,
) -> Result<Response, Problem> {
    decide(&state, request, CallHeaders::Original, Denials::AsTheyAre).await
}

/// Decides like `/decide/original`, with 403 in place of the status of any denial, for nginx
#[utoipa::path(
    method(get, head, post),
    path = "/decide/original/403",
    tag = "gateways",
    responses(DecideResponses)
)]
pub(super) async fn by_original_with_403(
    State(state): State<Arc<HttpState>>,
    request: Request,
) -> Result<Response, Problem> {
    decide(&state, request, CallHeaders::Original, Denials::With403).await
}

/// Decides the request whose method, path and headers are those of the call, behind `/authz`.
pub(super) async fn under_authz(
    State(state): State<Arc<HttpState>>,
    request: Request,
) -> Result<Response, Problem> {
    decide(&state, request, CallHeaders::Own, Denials::AsTheyAre).await
}

/// The responses of `/decide`, for the OpenAPI document.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "only the document needs it")]
pub(super) enum DecideResponses {
    /// The request may pass
    #[response(status = 200)]
    Allowed,
    /// A header of the gateway is missing or occurs twice, X-Forwarded-For does not end with an
    /// address, or the key of the client is ambiguous
    #[response(status = 400)]
    Ambiguous,
    /// The client has no key
    #[response(status = 403)]
    MissingKey,
    /// The request is denied
    #[response(status = 429)]
    Denied,
    /// The peer is not one of the setting `proxies`
    #[response(status = 500)]
    Untrusted,
    /// The request could not be decided, and is rejected then
    #[response(status = 503)]
    Undecided,
}

/// The status of denials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Denials {
    AsTheyAre,
    /// nginx passes on only 401 and 403. It treats any other status except 2xx as a failure of the
    /// call, after which its configuration may let the request pass.
    With403,
}

async fn decide(
    state: &HttpState,
    request: Request,
    headers: CallHeaders,
    denials: Denials,
) -> Result<Response, Problem> {
    // The body is not read, because the decision does not depend on it.
    let (call, _) = request.into_parts();
    let peer = trusted_peer(state, &call.extensions)?;
    let is_head = call.method == Method::HEAD;
    let request = headers.request(call, peer)?;
    let reply = state.service.decide(&request, Mode::Check).await;
    Ok(response(reply, is_head, denials))
}

/// Returns the response to a gateway.
fn response(reply: Reply, is_head: bool, denials: Denials) -> Response {
    let status = match &reply.denial {
        None => StatusCode::OK,
        Some(_) if denials == Denials::With403 => StatusCode::FORBIDDEN,
        Some(denial) => status_of(denial),
    };
    let (body, content_type) = match reply.denial {
        Some(denial) if !is_head => (Body::from(denial.body.into_owned()), denial.content_type),
        Some(denial) => (Body::empty(), denial.content_type),
        None => (Body::empty(), None),
    };
    let mut response = (status, body).into_response();
    let headers = response.headers_mut();
    // A cache of the gateway must not repeat a decision.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.remove(header::CONTENT_TYPE);
    if let Some(content_type) = content_type {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    }
    for (name, value) in reply.headers {
        let Ok(value) = HeaderValue::try_from(value) else { continue };
        if name == header::CACHE_CONTROL.as_str() {
            headers.insert(name, value);
        } else {
            headers.append(name, value);
        }
    }
    response
}

/// Returns the status of a denial.
///
/// A denial of a gRPC call has the status 200, with which a gateway would let the request pass, and
/// any client can make its request look like one. The status of such a denial is that of its code.
pub(super) fn status_of(denial: &Denial) -> StatusCode {
    let status = StatusCode::from_u16(denial.status).unwrap_or(StatusCode::FORBIDDEN);
    if status.is_client_error() || status.is_server_error() {
        return status;
    }
    let grpc = denial.headers.iter().find(|(name, _)| *name == "grpc-status");
    match grpc.map(|(_, code)| &**code) {
        Some("3") => StatusCode::BAD_REQUEST,
        Some("7") => StatusCode::FORBIDDEN,
        Some("13") => StatusCode::INTERNAL_SERVER_ERROR,
        Some("14") => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::TOO_MANY_REQUESTS,
    }
}
