//! What stands in front of every page: who is asking, from where, and with what headers it is answered.

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::{self, HeaderName, HeaderValue};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use maud::html;
use rl_records::ChangeError;

use super::Console;
use super::failure::Failure;
use super::fields::{Fields, link};
use super::page::{Tab, page};
use super::session::Visitor;
use crate::read::LONGEST;
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
        if !is_read {
            let body = tokio::time::timeout(LONGEST, to_bytes(body, LARGEST)).await;
            let body = body.map_err(|_| too_slow().into_response())?;
            let body = body.map_err(|_| too_large().into_response())?;
            let form = Fields::read(&body);
            let is_own = visitor.is_none_or(|visitor| visitor.wrote(form.raw(FORM_TOKEN)));
            if !is_own && path != "/login" {
                return Err(Failure::foreign().into_response());
            }
            parts.extensions.insert(form);
        }
        if let Some(visitor) = visitor {
            parts.extensions.insert(visitor.clone());
        }
        Ok(Request::from_parts(parts, Body::empty()))
    }

    /// The path, without the part that all have.
    fn within<'a>(&self, request: &'a Request) -> &'a str {
        request.uri().path().strip_prefix(self.path()).unwrap_or_default()
    }

    /// Who is logged in, by the cookie. What a page asks by itself is no click.
    fn visitor(&self, request: &Request) -> Option<Visitor> {
        let id = self.session_id(request.headers())?;
        let is_click = self.within(request) != "/usage";
        self.inner.sessions.find(id, self.admin().now(), is_click)
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

impl Visitor {
    /// Refuses whoever does not have the role.
    pub(super) fn needs(&self, role: Role) -> Result<(), Failure> {
        if self.actor.has(role) {
            return Ok(());
        }
        audit::refused(&self.actor, role);
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
    audit::refused(&visitor.actor, role);
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
