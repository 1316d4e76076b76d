//! Authentication, and the limits that apply before it and count by client address.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use rl_tower::client_ip::ClientIp;
use rl_tower::{Decision, RateLimiter, RetryAfter, Subject};

use crate::CONSUMERS;
use crate::self_service::{Outcome, SelfService, Window, tightest};

/// The state that the handlers and layers of the service share.
#[derive(Debug)]
pub(crate) struct Access {
    pub(crate) client_ip: ClientIp,
    /// Counts wrong tokens by client address.
    pub(crate) failures: RateLimiter,
    pub(crate) signup: SelfService,
}

impl Access {
    /// Returns the address of the client, or the network of an IPv6 address. Returns `None` if the
    /// address is unknown.
    fn address(&self, request: &Request) -> Option<String> {
        let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
        let peer = peer.map(|ConnectInfo(peer)| peer.ip());
        let name = self.client_ip.header_from(peer);
        let lines = name.map(|name| request.headers().get_all(name).iter());
        let lines: Vec<_> = lines.into_iter().flatten().map(HeaderValue::as_bytes).collect();
        self.client_ip.resolve(peer, &lines).map(|client| client.to_string())
    }
}

/// Puts the consumer into the request's extensions, where the limiter reads it.
///
/// A request with a wrong token is rejected; one without a token is an anonymous call. Wrong tokens
/// are counted by address, after their look-up. A correct token is accepted only if its address has
/// an attempt left at that time. Parallel guesses therefore gain nothing over sequential ones.
pub(crate) async fn authenticate(
    State(access): State<Arc<Access>>,
    mut request: Request,
    next: Next,
) -> Response {
    let consumer = match token(request.headers()) {
        Ok(None) => return next.run(request).await,
        Ok(Some(token)) => CONSUMERS.iter().find(|(known, _)| *known == token),
        Err(message) => return answer(StatusCode::BAD_REQUEST, message),
    };
    let address = Subject::new(rl_tower::Realm::Ip, &access.address(&request).unwrap_or_default());
    let attempt = match consumer {
        Some(_) => access.failures.peek(&address, 1).await,
        None => access.failures.check(&address, 1).await,
    };
    if !attempt.is_allowed() {
        let seconds = wait(&attempt);
        let message = format!(
            "OBP-10061: Too Many Requests. Too many failed authentications from this address. \
             Try again in {seconds} seconds."
        );
        return with(answer(StatusCode::TOO_MANY_REQUESTS, &message), &[("retry-after", seconds)]);
    }
    let Some((_, consumer)) = consumer else {
        let mut response = answer(StatusCode::UNAUTHORIZED, "OBP-20001: User not logged in.");
        let bearer = HeaderValue::from_static("Bearer");
        response.headers_mut().insert(header::WWW_AUTHENTICATE, bearer);
        return response;
    };
    request.extensions_mut().insert(Subject::consumer(consumer));
    next.run(request).await
}

/// Returns the bearer token, or `None` without an `Authorization` header. The token is empty if the
/// header has another scheme.
fn token(headers: &HeaderMap) -> Result<Option<&str>, &'static str> {
    let mut lines = headers.get_all(header::AUTHORIZATION).iter();
    let Some(line) = lines.next() else { return Ok(None) };
    if lines.next().is_some() {
        return Err("OBP-10001: Authorization: expected one line.");
    }
    let parts = line.to_str().ok().and_then(|line| line.split_once(' '));
    let token = parts.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("Bearer"));
    Ok(Some(token.map_or("", |(_, token)| token.trim_matches(' '))))
}

/// Signs a user up, unless the self-service limiter rejects the request.
pub(crate) async fn sign_up(State(access): State<Arc<Access>>, request: Request) -> Response {
    let address = access.address(&request);
    let signed_up = || answer_json(StatusCode::CREATED, "{\"user\":\"created\"}\n".to_owned());
    match access.signup.check(address.as_deref()).await {
        Outcome::Skipped => signed_up(),
        Outcome::Allowed(windows) => match tightest(&windows) {
            Some(window) => with(signed_up(), &standing(&window)),
            None => signed_up(),
        },
        Outcome::Warned(window) => {
            let mut response = with(signed_up(), &standing(&window));
            let warning = HeaderValue::try_from(access.signup.warning(&window));
            if let Ok(warning) = warning {
                response.headers_mut().insert("x-rate-limit-warning", warning);
            }
            response
        }
        Outcome::Blocked(window) => {
            let message = access.signup.rejection(&window);
            let response = answer(StatusCode::TOO_MANY_REQUESTS, &message);
            let response = with(response, &standing(&window));
            // Under a limit of 0, waiting does not help.
            if window.limit == 0 {
                response
            } else {
                with(response, &[("retry-after", window.reset)])
            }
        }
    }
}

const fn standing(window: &Window) -> [(&'static str, u64); 3] {
    [
        ("x-rate-limit-limit", window.limit),
        ("x-rate-limit-remaining", window.remaining),
        ("x-rate-limit-reset", window.reset),
    ]
}

/// Returns the wait in whole seconds.
fn wait(decision: &Decision) -> u64 {
    match decision.retry_after() {
        RetryAfter::In(wait) => wait.as_secs() + u64::from(wait.subsec_nanos() > 0),
        RetryAfter::Now | RetryAfter::Never => 60,
    }
}

fn with(mut response: Response, lines: &[(&'static str, u64)]) -> Response {
    for (name, value) in lines {
        response.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from(*value));
    }
    response
}

/// Returns a response in the form of the Open Bank Project.
fn answer(status: StatusCode, message: &str) -> Response {
    answer_json(status, format!("{{\"code\":{},\"message\":\"{message}\"}}\n", status.as_u16()))
}

/// Returns a response whose body is JSON.
pub(crate) fn answer_json(status: StatusCode, body: String) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}
