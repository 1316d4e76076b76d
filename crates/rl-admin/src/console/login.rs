use std::net::Ipv4Addr;
use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::{self, HeaderMap, HeaderValue};
use axum::http::uri::Authority;
use axum::response::{IntoResponse, Redirect, Response};
use maud::html;

use super::failure::Failure;
use super::fields::Fields;
use super::page::{Tab, page};
use super::site::Site;
use super::visitor::Visitor;
use crate::access::Actor;

const WRONG_TOKEN: &str = "This token is not known here.";

/// Shows the login form.
pub(super) async fn form(State(site): State<Arc<Site>>, request: Request) -> Response {
    let fields = Fields::of_query(request.uri());
    login_page(&site, own_page(&site, fields.get("next")), None).into_response()
}

/// Begins a session for the actor with the token that was typed.
pub(super) async fn log_in(
    State(site): State<Arc<Site>>,
    Extension(form): Extension<Fields>,
    request: Request,
) -> Response {
    let next = own_page(&site, form.get("next"));
    if site.is_local && !is_local(&request) {
        return Failure::login_through_proxy().into_response();
    }
    let refuse =
        |status, problem: &str| (status, login_page(&site, next, Some(problem))).into_response();
    let Ok(token) = HeaderValue::try_from(format!("Bearer {}", form.get("token"))) else {
        return refuse(StatusCode::UNAUTHORIZED, WRONG_TOKEN);
    };
    // The token is authenticated like a request of the API, so that wrong tokens are counted in one
    // place.
    let (mut parts, _) = request.into_parts();
    parts.headers.insert(header::AUTHORIZATION, token);
    match site.context.actor(&parts).await {
        Ok(actor) => {
            let cookie = [(header::SET_COOKIE, begin_session(&site, &parts.headers, actor).await)];
            (cookie, Redirect::to(next)).into_response()
        }
        Err(error) if error.status() == StatusCode::UNAUTHORIZED => {
            refuse(StatusCode::UNAUTHORIZED, WRONG_TOKEN)
        }
        Err(error) if error.status() == StatusCode::TOO_MANY_REQUESTS => {
            let seconds = error.retry_after().unwrap_or(60);
            let problem = format!("Too many wrong tokens. Try again in {seconds} seconds.");
            let mut response = refuse(StatusCode::TOO_MANY_REQUESTS, &problem);
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
            response
        }
        Err(error) => Failure::from(error).into_response(),
    }
}

/// Begins a session for an actor, in place of the session of this browser. Returns its cookie.
pub(super) async fn begin_session(site: &Site, headers: &HeaderMap, actor: Actor) -> HeaderValue {
    let now = site.context.now();
    if let Some(before) = site.session_id(headers) {
        site.sessions.end(before, now).await;
    }
    tracing::info!(target: "rl_admin", by = actor.name(), "logged in to the console");
    let id = site.sessions.begin(actor, now).await;
    site.set_session(headers, &id, "")
}

/// Ends the session of the visitor.
pub(super) async fn log_out(
    State(site): State<Arc<Site>>,
    visitor: Option<Extension<Visitor>>,
    request: Request,
) -> Response {
    if visitor.is_some()
        && let Some(id) = site.session_id(request.headers())
    {
        site.sessions.end(id, site.context.now()).await;
    }
    let cookie = [(header::SET_COOKIE, site.set_session(request.headers(), "", "; Max-Age=0"))];
    (cookie, Redirect::to(&site.link("/login", &[]))).into_response()
}

fn login_page(site: &Site, next: &str, problem: Option<&str>) -> impl IntoResponse {
    let main = html! {
        div.login {
            h1 { "Log in" }
            @if let Some(problem) = problem {
                p.problem #problem role="alert" { (problem) }
            }
            @if let Some(provider) = &site.provider {
                p {
                    a.button.main #sign-in href=(site.link("/login/oidc", &[("next", next)])) {
                        "Log in with " (provider.oidc().name())
                    }
                }
                p.hint { "Or with a token:" }
            }
            form method="post" action=(site.link("/login", &[])) {
                input type="hidden" name="next" value=(next);
                div.field {
                    label for="token" { "Token" }
                    input #token type="password" name="token" required autofocus
                        autocomplete="current-password" autocapitalize="off" spellcheck="false"
                        aria-invalid=[problem.map(|_| "true")]
                        aria-describedby=(if problem.is_some() { "problem token-hint" } else { "token-hint" });
                    p.hint #token-hint { "The one that programs send as " code { "Authorization: Bearer" } "." }
                }
                button.main type="submit" { "Log in" }
            }
        }
    };
    page(site, None, "Log in", Tab::None, main)
}

/// Returns `next` if it is a page of this console other than the login. Otherwise returns the first
/// page.
pub(super) fn own_page<'a>(site: &'a Site, next: &'a str) -> &'a str {
    let rest = next.strip_prefix(site.path());
    let is_own = rest.is_some_and(|rest| {
        let is_page = rest.is_empty() || rest.starts_with(['/', '?']);
        is_page && !rest.starts_with("/login") && rest.bytes().all(|byte| byte.is_ascii_graphic())
    });
    if is_own { next } else { site.path() }
}

/// Returns whether the browser and the console are on the same machine, judging by the `Host` of
/// the request.
pub(super) fn is_local(request: &Request) -> bool {
    let line = request.headers().get(header::HOST);
    let host = line.and_then(|line| Authority::try_from(line.as_bytes()).ok());
    let host = host.as_ref().or_else(|| request.uri().authority().filter(|_| line.is_none()));
    host.is_some_and(|host| match host.host() {
        "[::1]" => true,
        name if name.eq_ignore_ascii_case("localhost") => true,
        name => name.parse().is_ok_and(|address: Ipv4Addr| address.is_loopback()),
    })
}
