//! The middleware of every page: authentication, the origin of forms, and the headers of responses.

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{self, HeaderName, HeaderValue};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use maud::html;
use rl_core::Subject;

use super::failure::Failure;
use super::fields::Fields;
use super::page::{FORM_TOKEN, Tab, page};
use super::scope::{self, CONSUMER_FIELDS};
use super::session::Session;
use super::site::Site;
use super::visitor::Visitor;
use crate::audit::RequestSummary;
use crate::read::BODY_TIMEOUT;

/// The size limit of a form, in bytes.
const MAX_FORM: usize = 64 * 1024;

/// The security headers. Pages load nothing from other hosts, run no inline scripts, and cannot be
/// framed.
///
/// The referrer policy is `same-origin`. With a stricter policy, browsers send `Origin: null` with
/// forms, which the console refuses.
const HEADERS: [(HeaderName, &str); 7] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; \
         connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "same-origin"),
    (header::CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// Checks a request before its page runs. The visitor must have the roles for reading, except for
/// the login, the logout and the assets. A form must come from this console. If a check or the page
/// fails, renders a page about the failure.
pub(super) async fn guard(State(site): State<Arc<Site>>, request: Request, next: Next) -> Response {
    let visitor = visitor(&site, &request).await;
    let mut response = match check(&site, request, visitor.as_ref()).await {
        Ok(request) => next.run(request).await,
        Err(refusal) => refusal,
    };
    if let Some(failure) = response.extensions_mut().remove() {
        let cookies = response.headers_mut().remove(header::SET_COOKIE);
        response = draw(&site, visitor.as_ref(), failure);
        response.headers_mut().extend(cookies.map(|cookie| (header::SET_COOKIE, cookie)));
    }
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

/// Renders the page of a failure, and records the dependency that caused it.
fn draw(site: &Site, visitor: Option<&Visitor>, failure: Failure) -> Response {
    let Failure { status, title, message, dependency } = failure;
    if let Some(dependency) = dependency {
        site.context.outages.note(&dependency);
    }
    let main = html! {
        h1 { (title) }
        p.problem { (message) }
        @if visitor.is_none_or(Visitor::can_read) {
            p { a href=(site.path()) { "To the start page" } }
        }
    };
    (status, page(site, visitor, title, Tab::None, main)).into_response()
}

/// Checks a request. Returns it with its visitor and its form as extensions, or else the response
/// that refuses it.
async fn check(
    site: &Site,
    request: Request,
    visitor: Option<&Visitor>,
) -> Result<Request, Response> {
    let path = path_within(site, &request).to_owned();
    let (mut parts, body) = request.into_parts();
    let is_open = matches!(&*path, "/console.css" | "/console.js" | "/icon.svg")
        || path == "/login"
        || path.starts_with("/login/");
    let is_read = matches!(parts.method, Method::GET | Method::HEAD);
    if !is_read && !has_own_origin(site, &parts) {
        return Err(Failure::foreign_form().into_response());
    }
    match visitor {
        _ if is_open || path == "/logout" => {}
        Some(visitor) => visitor.require_reading().map_err(IntoResponse::into_response)?,
        None if is_read && !is_refresh(&path) => {
            let here = parts.uri.path_and_query().map_or("", |here| here.as_str());
            return Err(Redirect::to(&site.link("/login", &[("next", here)])).into_response());
        }
        None => return Err(logged_out().into_response()),
    }
    let mut visitor = visitor.cloned();
    let query = Fields::of_query(&parts.uri);
    let mut form = Fields::default();
    if !is_read {
        let body = tokio::time::timeout(BODY_TIMEOUT, to_bytes(body, MAX_FORM)).await;
        let body = body.map_err(|_| form_timed_out().into_response())?;
        let body = body.map_err(|_| form_too_large().into_response())?;
        form = Fields::parse(&body);
        let token = form.raw(FORM_TOKEN);
        let has_token = visitor.as_ref().is_none_or(|visitor| visitor.has_form_token(token));
        if !has_token && path != "/login" {
            return Err(Failure::foreign_form().into_response());
        }
        if let Some(visitor) = &mut visitor {
            visitor.request.subject = consumer_of(&form).or(visitor.request.subject.take());
        }
    }
    if let Some(visitor) = visitor.as_ref().filter(|_| !is_open && path != "/logout") {
        let checked = scope::check(site, visitor, &path, [&query, &form]).await;
        checked.map_err(IntoResponse::into_response)?;
    }
    if !is_read {
        parts.extensions.insert(form);
    }
    if let Some(visitor) = visitor {
        parts.extensions.insert(visitor);
    }
    Ok(Request::from_parts(parts, Body::empty()))
}

/// Returns the path of a request relative to the path of the console.
fn path_within<'a>(site: &Site, request: &'a Request) -> &'a str {
    request.uri().path().strip_prefix(site.path()).unwrap_or_default()
}

/// Returns the visitor of a request, if its cookie contains the id of a session.
///
/// The session ends if its token is not known any more, or has other roles or applications.
fn visitor<'a>(
    site: &'a Site,
    request: &Request,
) -> impl Future<Output = Option<Visitor>> + use<'a> {
    // A body cannot be shared among threads, so the request is read before the wait.
    let id = site.session_id(request.headers()).map(ToOwned::to_owned);
    let is_click = !is_refresh(path_within(site, request));
    let request = summary(request);
    async move {
        let (id, now) = (id?, site.context.now());
        let Session { actor, form_token } = site.sessions.find(&id, now, is_click).await?;
        if !site.still_accepts(&actor) {
            site.sessions.end(&id, now).await;
            return None;
        }
        Some(Visitor { actor, form_token, context: site.context.clone(), request })
    }
}

/// Returns whether scripts request this path every few seconds, which must not keep a session
/// alive.
fn is_refresh(path: &str) -> bool {
    matches!(path, "/usage" | "/now")
}

/// Returns whether the browser declares that a form comes from this console. Every current browser
/// sends such a declaration.
fn has_own_origin(site: &Site, parts: &Parts) -> bool {
    let text = |name: &str| {
        let line = parts.headers.get(name);
        line.map(|value| value.to_str().unwrap_or_default().to_ascii_lowercase())
    };
    let host = text("host").or_else(|| parts.uri.authority().map(ToString::to_string));
    let is_own = |origin: &str| match &site.origin {
        Some(own) => origin == own,
        None => {
            let (_, origin_host) = origin.split_once("://").unwrap_or_default();
            !origin_host.is_empty() && host.as_deref() == Some(origin_host)
        }
    };
    match (text("sec-fetch-site").as_deref(), text("origin")) {
        (Some("same-origin") | None, Some(origin)) => is_own(&origin),
        (Some("same-origin"), None) => true,
        _ => false,
    }
}

/// Summarizes a request for the history, in case the request is refused.
fn summary(request: &Request) -> RequestSummary {
    let uri = request.uri();
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    RequestSummary {
        method: request.method().to_string(),
        // The query is included, because it names the consumer, record or tier. In the API, the
        // path names it.
        path: uri.path_and_query().map_or_else(|| uri.path().to_owned(), ToString::to_string),
        route: route.unwrap_or_default(),
        subject: consumer_of(&Fields::parse(uri.query().unwrap_or_default().as_bytes())),
    }
}

/// Returns the consumer that a form or a query names, in any of the fields that the pages use.
fn consumer_of(fields: &Fields) -> Option<Subject> {
    if !matches!(fields.get("realm"), "" | "consumer") {
        return None;
    }
    let id = CONSUMER_FIELDS.into_iter().find_map(|name| fields.non_empty(name));
    id.map(Subject::consumer)
}

fn logged_out() -> Failure {
    let message = "You are logged out, and nothing was changed. Log in in another tab, then go back: \
                   what you wrote is still there.";
    Failure::new(StatusCode::UNAUTHORIZED, "Logged out", message)
}

fn form_timed_out() -> Failure {
    let message = "The form did not arrive within 10 seconds. Nothing was changed.";
    Failure::new(StatusCode::REQUEST_TIMEOUT, "Too slow", message)
}

fn form_too_large() -> Failure {
    let message = "The form is larger than 64 KiB. Nothing was changed.";
    Failure::new(StatusCode::PAYLOAD_TOO_LARGE, "Too large", message)
}
