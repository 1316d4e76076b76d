use std::net::Ipv4Addr;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::{self, HeaderMap, HeaderValue};
use axum::http::uri::Authority;
use axum::response::{IntoResponse, Redirect, Response};
use maud::html;

use super::Console;
use super::failure::Failure;
use super::fields::Fields;
use super::page::{Tab, page};
use super::session::Visitor;

impl Console {
    /// Returns the name of the cookie. With TLS it makes browsers take the cookie from this host alone,
    /// and for all its paths. Without TLS it has the port: browsers share cookies between the ports of a
    /// host, and a second console would log people out of the first.
    fn cookie(&self, headers: &HeaderMap) -> String {
        if self.inner.is_secure {
            return "__Host-rl-console".to_owned();
        }
        let host = headers.get(header::HOST).map(HeaderValue::as_bytes);
        let port = host.and_then(|host| Authority::try_from(host).ok()?.port_u16());
        port.map_or_else(|| "rl-console".to_owned(), |port| format!("rl-console-{port}"))
    }

    fn cookie_line(&self, headers: &HeaderMap, id: &str, end: &str) -> HeaderValue {
        let (name, secure) =
            (self.cookie(headers), if self.inner.is_secure { "; Secure" } else { "" });
        let line = format!("{name}={id}; Path=/; HttpOnly; SameSite=Strict{secure}{end}");
        HeaderValue::try_from(line).expect("ids are hexadecimal digits")
    }

    /// What the cookie of the session says.
    pub(super) fn session_id<'a>(&self, headers: &'a HeaderMap) -> Option<&'a str> {
        let lines = headers.get_all(header::COOKIE).iter();
        let pairs = lines.filter_map(|line| line.to_str().ok()).flat_map(|line| line.split(';'));
        let mut pairs = pairs.filter_map(|pair| pair.trim().split_once('='));
        let own = self.cookie(headers);
        pairs.find(|(name, _)| *name == own).map(|(_, value)| value)
    }

    /// Where to go after the login: a page of this console, whatever an address says.
    fn next<'a>(&'a self, asked: &'a str) -> &'a str {
        let rest = asked.strip_prefix(self.path());
        let is_ours = rest.is_some_and(|rest| {
            let is_page = rest.is_empty() || rest.starts_with(['/', '?']);
            is_page
                && !rest.starts_with("/login")
                && rest.bytes().all(|byte| byte.is_ascii_graphic())
        });
        if is_ours { asked } else { self.path() }
    }

    fn login_page(&self, next: &str, problem: Option<&str>) -> impl IntoResponse {
        let main = html! {
            div.login {
                h1 { "Log in" }
                @if let Some(problem) = problem {
                    p.problem #problem role="alert" { (problem) }
                }
                form method="post" action={ (self.path()) "/login" } {
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
        page(self, None, "Log in", Tab::None, main)
    }
}

pub(super) async fn form(State(console): State<Console>, request: Request) -> Response {
    let fields = Fields::read(request.uri().query().unwrap_or_default().as_bytes());
    console.login_page(console.next(fields.get("next")), None).into_response()
}

pub(super) async fn log_in(
    State(console): State<Console>,
    Extension(form): Extension<Fields>,
    request: Request,
) -> Response {
    let next = console.next(form.get("next"));
    if console.inner.is_local && !is_local(&request) {
        return Failure::through_a_proxy().into_response();
    }
    let refuse =
        |status, problem: &str| (status, console.login_page(next, Some(problem))).into_response();
    let Ok(token) = HeaderValue::try_from(format!("Bearer {}", form.get("token"))) else {
        return refuse(StatusCode::UNAUTHORIZED, WRONG);
    };
    // Checked like a call of the API, so that one place knows tokens, and one counts wrong ones.
    let (mut parts, _) = request.into_parts();
    let before = console.session_id(&parts.headers).map(ToOwned::to_owned);
    parts.headers.insert(header::AUTHORIZATION, token);
    match console.admin().actor(&parts).await {
        Ok(actor) => {
            if let Some(before) = before {
                console.inner.sessions.end(&before);
            }
            tracing::info!(target: "rl_admin", by = actor.name(), "logged in to the console");
            let id = console.inner.sessions.begin(actor, console.admin().now());
            let cookie = [(header::SET_COOKIE, console.cookie_line(&parts.headers, &id, ""))];
            (cookie, Redirect::to(next)).into_response()
        }
        Err(error) if error.status() == StatusCode::UNAUTHORIZED => {
            refuse(StatusCode::UNAUTHORIZED, WRONG)
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

const WRONG: &str = "This token is not known here.";

/// Whether the browser sees the console on its own machine.
fn is_local(request: &Request) -> bool {
    let line = request.headers().get(header::HOST);
    let host = line.and_then(|line| Authority::try_from(line.as_bytes()).ok());
    let host = host.as_ref().or_else(|| request.uri().authority().filter(|_| line.is_none()));
    host.is_some_and(|host| match host.host() {
        "[::1]" => true,
        name if name.eq_ignore_ascii_case("localhost") => true,
        name => name.parse().is_ok_and(|address: Ipv4Addr| address.is_loopback()),
    })
}

pub(super) async fn log_out(
    State(console): State<Console>,
    visitor: Option<Extension<Visitor>>,
    request: Request,
) -> Response {
    if visitor.is_some()
        && let Some(id) = console.session_id(request.headers())
    {
        console.inner.sessions.end(id);
    }
    let cookie = [(header::SET_COOKIE, console.cookie_line(request.headers(), "", "; Max-Age=0"))];
    (cookie, Redirect::to(&format!("{}/login", console.path()))).into_response()
}
