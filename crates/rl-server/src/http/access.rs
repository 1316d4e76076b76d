//! Which peers may call which paths.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::uri::{Authority, Uri};
use axum::http::{Extensions, HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::problem::Problem;
use super::settings::HttpState;

/// Headers that a proxy adds. A request with one of them may come from another machine, even if the
/// proxy runs on this one.
const PROXY_HEADERS: [&str; 4] = ["forwarded", "via", "x-forwarded-for", "x-real-ip"];

/// Returns the peer of the connection, if it is a gateway that may describe requests. Any other peer
/// could choose the address under which it is counted.
///
/// # Errors
///
/// Returns 500 for any other peer. Gateways take it for an outage, and allow or reject requests as
/// they are configured; as a denial, one missing setting would turn all clients away.
pub(super) fn trusted_peer(state: &HttpState, extensions: &Extensions) -> Result<IpAddr, Problem> {
    let peer = peer(extensions);
    let trusted = peer.filter(|peer| state.settings.proxies.contains(*peer));
    trusted.ok_or_else(|| {
        let peer = peer.map_or_else(|| "a peer without an address".into(), |peer| peer.to_string());
        let message = format!("{peer} may not describe requests: expected a peer in proxies");
        // Gateways show this answer to no operator.
        if !state.has_refused_peer.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                target: "rl_server", peer,
                "peer refused: it may not describe requests unless it is one of proxies (logged once)"
            );
        }
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    })
}

/// Lets callers pass that have the token. If there is no token, lets callers on this machine pass
/// that are no pages in a browser.
pub(super) async fn require_caller(
    State(state): State<Arc<HttpState>>,
    request: Request,
    next: Next,
) -> Response {
    match check_caller(&state, request.extensions(), request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

/// Lets trusted gateways pass, and the callers that [`require_caller`] lets pass.
pub(super) async fn require_gateway_or_caller(
    State(state): State<Arc<HttpState>>,
    request: Request,
    next: Next,
) -> Response {
    let peer = peer(request.extensions());
    if peer.is_some_and(|peer| state.settings.proxies.contains(peer)) {
        return next.run(request).await;
    }
    require_caller(State(state), request, next).await
}

fn check_caller(
    state: &HttpState,
    extensions: &Extensions,
    uri: &Uri,
    headers: &HeaderMap,
) -> Result<(), Problem> {
    let Some(token) = &state.settings.token else {
        let is_local = peer(extensions).is_some_and(|peer| peer.to_canonical().is_loopback());
        if !is_local || PROXY_HEADERS.iter().any(|name| headers.contains_key(*name)) {
            let message = "without server.token, only callers on this machine are answered: set \
                           server.token, and send Authorization: Bearer TOKEN";
            return Err(Problem::new(StatusCode::FORBIDDEN, message));
        }
        let authority = uri.authority().map(Authority::as_str).map(str::as_bytes);
        let hosts = headers.get_all(header::HOST).iter().map(HeaderValue::as_bytes);
        if headers.contains_key(header::ORIGIN)
            || !authority.into_iter().chain(hosts).all(is_local_host)
        {
            let message = "without server.token, calls of browsers are not answered: expected no \
                           Origin, and an IP address or localhost as Host";
            return Err(Problem::new(StatusCode::FORBIDDEN, message));
        }
        return Ok(());
    };
    let mut lines = headers.get_all(header::AUTHORIZATION).iter();
    let given = match (lines.next(), lines.next()) {
        (Some(line), None) => bearer(line.as_bytes()),
        _ => None,
    };
    if given.is_some_and(|given| token.is(given)) {
        return Ok(());
    }
    let message = "Authorization: expected one line, Bearer TOKEN, with the token of server.token";
    Err(Problem::new(StatusCode::UNAUTHORIZED, message))
}

/// Returns whether a host is none that another site could resolve to this machine (DNS rebinding),
/// so that its page in a browser is of the same origin.
fn is_local_host(host: &[u8]) -> bool {
    Authority::try_from(host).is_ok_and(|host| {
        let name = host.host();
        let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
        name.eq_ignore_ascii_case("localhost") || address.unwrap_or(name).parse::<IpAddr>().is_ok()
    })
}

fn bearer(line: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = line.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| token.trim_ascii())
}

/// Returns the address of the peer of the connection.
pub(super) fn peer(extensions: &Extensions) -> Option<IpAddr> {
    extensions.get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(address)| address.ip())
}
