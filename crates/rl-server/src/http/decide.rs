//! `/decide` and `/authz/…`: decisions for gateways that ask a web service whether a request may
//! pass.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use rl_core::denial::Denial;
use rl_core::store::Mode;

use super::access::trusted_peer;
use super::gateway_call::{CallHeaders, request_under_authz};
use super::problem::Problem;
use super::settings::HttpState;
use crate::service::Reply;

/// Decides the request that X-Forwarded-… or X-Original-… headers describe
///
/// The peer has to be one of the setting `proxies`. An allowed request gets 200 with the rate limit
/// headers, and a denied one the response for the client. A body is ignored.
#[utoipa::path(method(get, head, post), path = "/decide", tag = "gateways",
    params(
        ("headers" = Option<String>, Query, description = "`original` reads X-Original-Method and X-Original-URI. The default, `forwarded`, reads X-Forwarded-Method, X-Forwarded-Uri and X-Forwarded-Host."),
        ("deny" = Option<u16>, Query, description = "`403` answers 403 in place of any other denial, for nginx."),
    ),
    responses(
        (status = 200, description = "The request may pass"),
        (status = 400, description = "A header of the gateway is missing or occurs twice, or the key of the client is ambiguous"),
        (status = 403, description = "The peer is not one of the setting `proxies`, the client has no key, or `deny=403` is set"),
        (status = 429, description = "The request is denied"),
        (status = 503, description = "The request could not be decided, and is rejected then"),
    ))]
pub(super) async fn decide(
    State(state): State<Arc<HttpState>>,
    request: Request,
) -> Result<Response, Problem> {
    // The body is not read: the decision does not depend on it.
    let (call, _) = request.into_parts();
    let peer = trusted_peer(&state, &call.extensions)?;
    let is_head = call.method == Method::HEAD;
    let query = DecideQuery::parse(call.uri.query())?;
    let request = query.headers.request(call, peer)?;
    let reply = state.service.decide(&request, Mode::Check).await;
    Ok(response(reply, is_head, query.denies_with_403))
}

/// Decides the request whose method, path and headers are those of the call, behind `/authz`.
pub(super) async fn authorize(
    State(state): State<Arc<HttpState>>,
    request: Request,
) -> Result<Response, Problem> {
    let (call, _) = request.into_parts();
    let peer = trusted_peer(&state, &call.extensions)?;
    let is_head = call.method == Method::HEAD;
    let request = request_under_authz(call, peer)?;
    let reply = state.service.decide(&request, Mode::Check).await;
    Ok(response(reply, is_head, false))
}

/// The parameters of `/decide`.
#[derive(Debug, Default)]
struct DecideQuery {
    headers: CallHeaders,
    denies_with_403: bool,
}

impl DecideQuery {
    fn parse(query: Option<&str>) -> Result<Self, Problem> {
        let (mut headers, mut denies_with_403) = (None, None);
        for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let is_second = match name {
                "headers" => headers
                    .replace(match value {
                        "forwarded" => CallHeaders::Forwarded,
                        "original" => CallHeaders::Original,
                        _ => return Err(Problem::unexpected(name, value, "forwarded or original")),
                    })
                    .is_some(),
                "deny" => denies_with_403
                    .replace(match value {
                        "403" => true,
                        "429" => false,
                        _ => return Err(Problem::unexpected(name, value, "403 or 429")),
                    })
                    .is_some(),
                _ => return Err(Problem::unexpected("parameter", name, "headers or deny")),
            };
            if is_second {
                return Err(Problem::invalid(
                    name,
                    format!("{name}: expected one value, found two"),
                ));
            }
        }
        Ok(Self {
            headers: headers.unwrap_or_default(),
            denies_with_403: denies_with_403.unwrap_or_default(),
        })
    }
}

/// Returns the response to a gateway.
fn response(reply: Reply, is_head: bool, denies_with_403: bool) -> Response {
    let status = match &reply.denial {
        None => StatusCode::OK,
        // nginx passes only 401 and 403 on. It treats any other status as a failure of the call,
        // after which a request may pass.
        Some(_) if denies_with_403 => StatusCode::FORBIDDEN,
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
/// Denials of gRPC calls have the status 200, with which a gateway would let the request pass. A
/// client chooses whether its request is one of gRPC.
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
