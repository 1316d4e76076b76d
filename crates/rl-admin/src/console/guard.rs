//! What stands in front of every page: who is asking, from where, and with what headers it is answered.

use axum::body::{Body, to_bytes};
use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{self, HeaderName, HeaderValue};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use maud::html;
use rl_core::Subject;
use rl_records::ChangeError;

use super::Console;
use super::failure::Failure;
use super::fields::{Fields, link};
use super::page::{Tab, page};
use super::session::{Found, Visitor};
use crate::read::{Asked, LONGEST};
use crate::{Role, audit};

/// The largest form.
const LARGEST: usize = 64 * 1024;

/// The name of the field that holds the token of the session.
pub(super) const FORM_TOKEN: &str = "form_token";

/// Nothing is loaded from elsewhere, nothing inline runs, no other site shows these pages in a frame
/// or learns where they are. `same-origin` and no stricter: browsers that may not tell where a form
/// came from say `Origin: null`, which is refused.
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

/// Lets through who is logged in and may look, and forms that were written here; draws what failed.
pub(super) async fn guard(
    State(console): State<Console>,
    request: Request,
    next: Next,
) -> Response {
    let visitor = console.visitor(&request);
    let mut response = match console.admit(request, visitor.as_ref()).await {
        Ok(request) => next.run(request).await,
        Err(refused) => refused,
    };
    if let Some(Failure { status, title, message }) = response.extensions_mut().remove() {
        let main = html! {
            h1 { (title) }
            p.problem { (message) }
            @if visitor.as_ref().is_none_or(sees_pages) {
                p { a href=(console.path()) { "To the consumers" } }
            }
        };
        let drawn = page(&console, visitor.as_ref(), title, Tab::None, main);
        response = (status, drawn).into_response();
    }
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

impl Console {
    /// The request, if it may go on, with its visitor and the form that it brings.
    async fn admit(
        &self,
        request: Request,
        visitor: Option<&Visitor>,
    ) -> Result<Request, Response> {
        let path = self.within(&request).to_owned();
        let (mut parts, body) = request.into_parts();
        let is_open = matches!(&*path, "/login" | "/console.css" | "/console.js" | "/icon.svg");
        let is_read = matches!(parts.method, Method::GET | Method::HEAD);
        if !is_read && !self.is_from_here(&parts) {
            return Err(Failure::foreign().into_response());
        }
        match visitor {
            _ if is_open || path == "/logout" => {}
            Some(visitor) => may_look(visitor).map_err(IntoResponse::into_response)?,
            None if is_read && path != "/usage" => {
                let here = parts.uri.path_and_query().map_or("", |here| here.as_str());
                let login = link(&format!("{}/login", self.path()), &[("next", here)]);
                return Err(Redirect::to(&login).into_response());
            }
            None => return Err(logged_out().into_response()),
        }
        let mut visitor = visitor.cloned();
        if !is_read {
            let body = tokio::time::timeout(LONGEST, to_bytes(body, LARGEST)).await;
            let body = body.map_err(|_| too_slow().into_response())?;
            let body = body.map_err(|_| too_large().into_response())?;
            let form = Fields::read(&body);
            let wrote = |visitor: &Visitor| visitor.wrote(form.raw(FORM_TOKEN));
            let is_own = visitor.as_ref().is_none_or(wrote);
            if !is_own && path != "/login" {
                return Err(Failure::foreign().into_response());
            }
            if let Some(visitor) = &mut visitor {
                visitor.asked.subject = consumer_of(&form).or(visitor.asked.subject.take());
            }
            parts.extensions.insert(form);
        }
        if let Some(visitor) = visitor {
            parts.extensions.insert(visitor);
        }
        Ok(Request::from_parts(parts, Body::empty()))
    }

    /// The path, without the part that all have.
    fn within<'a>(&self, request: &'a Request) -> &'a str {
        request.uri().path().strip_prefix(self.path()).unwrap_or_default()
    }

    /// Finds who is logged in, by the cookie. What a page asks by itself is no click.
    fn visitor(&self, request: &Request) -> Option<Visitor> {
        let id = self.session_id(request.headers())?;
        let is_click = self.within(request) != "/usage";
        let found = self.inner.sessions.find(id, self.admin().now(), is_click)?;
        let Found { actor, form_token } = found;
        Some(Visitor { actor, form_token, admin: self.admin().clone(), asked: asked(request) })
    }

    /// Whether a browser says that a form was written on one of these pages. All of them say so.
    fn is_from_here(&self, parts: &Parts) -> bool {
        let text = |name: &str| {
            let line = parts.headers.get(name);
            line.map(|value| value.to_str().unwrap_or_default().to_ascii_lowercase())
        };
        let host = text("host").or_else(|| parts.uri.authority().map(ToString::to_string));
        let is_same = |origin: &str| match &self.inner.origin {
            Some(own) => origin == own,
            None => {
                let (_, asked) = origin.split_once("://").unwrap_or_default();
                !asked.is_empty() && host.as_deref() == Some(asked)
            }
        };
        match (text("sec-fetch-site").as_deref(), text("origin")) {
            (Some("same-origin") | None, Some(origin)) => is_same(&origin),
            (Some("same-origin"), None) => true,
            _ => false,
        }
    }
}

/// Returns what a request asks for, as a refusal of it is written.
fn asked(request: &Request) -> Asked {
    let uri = request.uri();
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    Asked {
        method: request.method().to_string(),
        // The query of a page has what an API has in its path.
        path: uri.path_and_query().map_or_else(|| uri.path().to_owned(), ToString::to_string),
        route: route.unwrap_or_default(),
        subject: consumer_of(&Fields::read(uri.query().unwrap_or_default().as_bytes())),
    }
}

/// Returns the consumer that a form or a query is about, under any of the names that pages give it.
fn consumer_of(fields: &Fields) -> Option<Subject> {
    let id = ["consumer_id", "consumer", "id"].into_iter().find_map(|name| fields.given(name));
    id.map(Subject::consumer)
}

impl Visitor {
    /// Refuses a visitor who does not have the role. The refusal is written into the history.
    pub(super) fn needs(&self, role: Role) -> Result<(), Failure> {
        if self.actor.has(role) {
            return Ok(());
        }
        audit::refuse(&self.admin, &self.actor, role, &self.asked);
        let message = format!(
            "{} does not have the role {role}. Nothing was changed. Whoever hands out the tokens can \
             add it.",
            self.actor.name()
        );
        Err(Failure::new(StatusCode::FORBIDDEN, "Not allowed", message))
    }
}

impl Visitor {
    /// Makes the page for a change that failed, where there is no form to show again.
    pub(super) fn refused<T>(&self, error: ChangeError<T>) -> Failure {
        let role = match error {
            ChangeError::MayNotBlock => Role::CanCreateRateLimits,
            ChangeError::MayNotUnblock => Role::CanDeleteRateLimits,
            error => return error.into(),
        };
        self.needs(role).err().unwrap_or_else(|| error.into())
    }
}

/// The roles without which no page is shown.
const READING: [Role; 2] = [Role::CanReadCallLimits, Role::CanGetRateLimits];

fn sees_pages(visitor: &Visitor) -> bool {
    READING.iter().all(|role| visitor.actor.has(*role))
}

fn may_look(visitor: &Visitor) -> Result<(), Failure> {
    let Some(role) = READING.into_iter().find(|role| !visitor.actor.has(*role)) else {
        return Ok(());
    };
    audit::refuse(&visitor.admin, &visitor.actor, role, &visitor.asked);
    let message = format!(
        "The token of {} does not have the role {role}, which every page needs. Log out, and log in with \
         another token, or ask your administrator to add the role.",
        visitor.actor.name()
    );
    Err(Failure::new(StatusCode::FORBIDDEN, "Not allowed", message))
}

fn logged_out() -> Failure {
    let message = "You are logged out, and nothing was changed. Log in in another tab, then go back: \
                   what you wrote is still there.";
    Failure::new(StatusCode::UNAUTHORIZED, "Logged out", message)
}

fn too_slow() -> Failure {
    let message = "The form did not arrive within 10 seconds. Nothing was changed.";
    Failure::new(StatusCode::REQUEST_TIMEOUT, "Too slow", message)
}

fn too_large() -> Failure {
    let message = "The form is larger than 64 KiB. Nothing was changed.";
    Failure::new(StatusCode::PAYLOAD_TOO_LARGE, "Too large", message)
}
