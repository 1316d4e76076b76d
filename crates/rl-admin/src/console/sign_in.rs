//! The login with a provider of OpenID Connect.
//!
//! ```text
//! /login ─► /login/oidc ─► the provider ─► /login/oidc/return ─► the requested page
//!              │ sets the cookie                │ reads and removes it
//! ```
//!
//! The cookie contains the secrets of the login that has begun, so any instance can finish it. The
//! secret of the client, which all instances know, signs it.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header;
use axum::response::{AppendHeaders, IntoResponse, Redirect, Response};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use maud::html;
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use subtle::ConstantTimeEq;

use super::failure::Failure;
use super::fields::Fields;
use super::login::{begin_session, is_local, own_page};
use super::page::{Tab, page};
use super::site::Site;
use crate::error::ApiError;
use crate::oidc::{Pending, Provider, SignInError};

/// The name of the cookie of a login that has begun.
const COOKIE: &str = "rl-oidc";

/// The time for a login at the provider, in seconds.
const TIME: u64 = 600;

/// The longest address of a page that the cookie contains, in bytes. Browsers limit the size of a
/// cookie.
const LONGEST_NEXT: usize = 1_000;

/// The content of the cookie.
#[derive(Serialize, Deserialize)]
struct Begun {
    pending: Pending,
    /// The requested page.
    next: String,
    /// The time until which the cookie is valid, in seconds since 1970.
    until: u64,
}

/// Sends the browser to the provider.
pub(super) async fn begin(State(site): State<Arc<Site>>, request: Request) -> Response {
    let (provider, headers) = match checked(&site, &request) {
        Ok(provider) => (provider, request.headers()),
        Err(failure) => return failure.into_response(),
    };
    let fields = Fields::of_query(request.uri());
    let next = own_page(&site, fields.get("next"));
    let next = if next.len() > LONGEST_NEXT { site.path() } else { next }.to_owned();
    let now = site.context.now();
    match provider.begin(&return_to(&site, &request), now).await {
        Ok((url, pending)) => {
            let until = now.as_secs_ceil() + TIME;
            let cookie = sealed(&Begun { pending, next, until }, provider.oidc().secret());
            let attributes = format!("; Max-Age={TIME}");
            let cookie = site.set_cookie(headers, COOKIE, &cookie, "Lax", &attributes);
            ([(header::SET_COOKIE, cookie)], Redirect::to(&url)).into_response()
        }
        Err(error) => failure(provider, &error).into_response(),
    }
}

/// Begins a session for the person whom the provider has sent back.
pub(super) async fn finish(State(site): State<Arc<Site>>, request: Request) -> Response {
    match finished(&site, request).await {
        Ok(response) => response,
        Err(failure) => failure.into_response(),
    }
}

async fn finished(site: &Site, request: Request) -> Result<Response, Failure> {
    let provider = checked(site, &request)?;
    let return_to = return_to(site, &request);
    let fields = Fields::of_query(request.uri());
    let (parts, _) = request.into_parts();
    let (headers, now) = (&parts.headers, site.context.now());
    let begun =
        site.cookie(headers, COOKIE).and_then(|cookie| opened(cookie, provider.oidc().secret()));
    let begun = begun.filter(|begun| now.as_secs_ceil() < begun.until).ok_or_else(not_begun)?;
    if !bool::from(begun.pending.state.as_bytes().ct_eq(fields.raw("state").as_bytes())) {
        return Err(not_begun());
    }
    // A failed login removes the cookie too, because the provider accepts a code only once.
    let forget = site.set_cookie(headers, COOKIE, "", "Lax", "; Max-Age=0");
    let answer = async {
        if !fields.get("error").is_empty() || !provider.oidc().is_issuer(fields.non_empty("iss")) {
            return Err(declined(provider, fields.get("error")));
        }
        let attempts = &site.context.attempts;
        let client = attempts.client(&parts);
        let too_many = |error| Failure::from(ApiError::too_many_attempts(error));
        attempts.check(client.as_ref()).await.map_err(too_many)?;
        let code = fields.raw("code").to_owned();
        let actor = match provider.finish(begun.pending, code, &return_to, now).await {
            Ok(actor) => actor,
            Err(error) => {
                if let SignInError::Refused(_) = error {
                    attempts.fail(client.as_ref()).await.map_err(too_many)?;
                }
                return Err(failure(provider, &error));
            }
        };
        let cookie = begin_session(site, headers, actor).await;
        Ok(([(header::SET_COOKIE, cookie)], continue_page(site, &begun.next)))
    };
    let forget = AppendHeaders([(header::SET_COOKIE, forget)]);
    Ok(match answer.await {
        Ok(page) => (forget, page).into_response(),
        Err(failure) => (forget, failure).into_response(),
    })
}

/// Returns the provider, if there is one and the browser may log in.
fn checked<'a>(site: &'a Site, request: &Request) -> Result<&'a Provider, Failure> {
    let provider = site.provider.as_ref().ok_or_else(Failure::no_page)?;
    if site.is_local && !is_local(request) {
        return Err(Failure::login_through_proxy());
    }
    Ok(provider)
}

/// Returns the address to which the provider sends the browser.
fn return_to(site: &Site, request: &Request) -> String {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let host = host.or_else(|| request.uri().authority().map(|authority| authority.as_str()));
    let scheme = if site.is_secure { "https" } else { "http" };
    let origin = match &site.origin {
        Some(origin) => origin.clone(),
        None => format!("{scheme}://{}", host.unwrap_or_default()),
    };
    format!("{origin}{}/login/oidc/return", site.path())
}

/// Renders the page that goes to `next` by itself.
///
/// Browsers do not send the session cookie after a redirect that began at another site, so this page
/// has to make the next request.
fn continue_page(site: &Site, next: &str) -> impl IntoResponse {
    let main = html! {
        h1 { "Logged in" }
        p { a href=(next) { "Continue" } }
    };
    ([("refresh", format!("0; url={next}"))], page(site, None, "Logged in", Tab::None, main))
}

/// Returns the signed text of a login that has begun.
fn sealed(begun: &Begun, secret: &str) -> String {
    let text = serde_json::to_vec(begun).expect("texts and a number");
    let text = BASE64_URL_SAFE_NO_PAD.encode(text);
    let signature = BASE64_URL_SAFE_NO_PAD.encode(mac(&text, secret).finalize().into_bytes());
    format!("{text}.{signature}")
}

/// Reads the text of a login that has begun, if its signature is right.
fn opened(cookie: &str, secret: &str) -> Option<Begun> {
    let (text, signature) = cookie.split_once('.')?;
    let signature = BASE64_URL_SAFE_NO_PAD.decode(signature).ok()?;
    mac(text, secret).verify_slice(&signature).ok()?;
    serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(text).ok()?).ok()
}

fn mac(text: &str, secret: &str) -> Hmac<Sha256> {
    let mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("keys have any length");
    mac.chain_update("login that has begun: ").chain_update(text)
}

fn not_begun() -> Failure {
    let message = "This login was not begun in this browser, was begun more than ten minutes ago, or \
                   was overtaken by another one. Go to the start page, and log in again.";
    Failure::new(StatusCode::BAD_REQUEST, "Not logged in", message)
}

fn declined(provider: &Provider, error: &str) -> Failure {
    let name = provider.oidc().name();
    let is_word = |char: char| char.is_ascii_lowercase() || char == '_';
    let reason = match error {
        "" => "is not from the configured issuer".to_owned(),
        error if error.len() <= 40 && error.chars().all(is_word) => format!("is {error}"),
        _ => "is an error".to_owned(),
    };
    let message = format!(
        "The answer of {name} {reason}. Go to the start page and log in again, or ask your administrator \
         whether {name} lets you use this console."
    );
    Failure::new(StatusCode::FORBIDDEN, "Not logged in", message)
}

/// Returns the page with the reason for which a person was not signed in.
fn failure(provider: &Provider, error: &SignInError) -> Failure {
    let (name, claim) = (provider.oidc().name(), provider.oidc().claim_name());
    match error {
        SignInError::Unavailable(_) => {
            let message = format!(
                "{name} cannot be reached, or does not answer as expected. Try again in a few seconds, \
                 or log in with a token. Administrators find the cause in the log."
            );
            Failure::new(StatusCode::SERVICE_UNAVAILABLE, "Not available at present", message)
        }
        SignInError::Refused(_) => {
            let message = format!(
                "The answer of {name} is not valid, or was used before. Go to the start page, and log in \
                 again. Administrators find the cause in the log."
            );
            Failure::new(StatusCode::FORBIDDEN, "Not logged in", message)
        }
        SignInError::NoName => {
            let message = format!(
                "{name} gives you an id that is longer than the history can store, or has characters \
                 that it cannot store. Ask your administrator."
            );
            Failure::new(StatusCode::FORBIDDEN, "Not allowed", message)
        }
        SignInError::NoRoles { name: person } => {
            let message = format!(
                "{name} knows you as {person}, but none of your {claim} may use this console. Ask your \
                 administrator to put you into one that may."
            );
            Failure::new(StatusCode::FORBIDDEN, "Not allowed", message)
        }
    }
}
