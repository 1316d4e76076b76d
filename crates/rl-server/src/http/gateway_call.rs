//! Reads the request of a client from the call of a gateway.

use std::net::IpAddr;

use axum::http::request::Parts;
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use rl_core::client_ip::{ClientIp, IpSource};

use super::problem::Problem;
use crate::request::{GatewayRequest, text_of};

/// The prefix of the paths of `/authz/…`.
const AUTHZ: &str = "/authz";

/// Headers of the call itself, which do not describe the request of the client.
const CALL_HEADERS: [HeaderName; 9] = [
    header::HOST,
    header::CONTENT_LENGTH,
    header::CONNECTION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// The header in which the limiter finds the address of the client.
const FORWARDED_FOR: &str = "x-forwarded-for";

/// The headers in which a gateway describes the request of a client.
///
/// Only one family is read: the gateway replaces the headers of its own family, and passes on those
/// of the other that a client has added. The path of the call selects the family. The query cannot
/// select it, because some gateways append the query of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallHeaders {
    /// `X-Forwarded-Method`, `X-Forwarded-Uri` and `X-Forwarded-Host`.
    Forwarded,
    /// `X-Original-Method` and `X-Original-URI`; the host is that of the call.
    Original,
    /// None: the method, path and host are those of the call, with `/authz` before the path.
    Own,
}

impl CallHeaders {
    /// Returns the request that a call describes.
    ///
    /// # Errors
    ///
    /// Returns 400 if a header is missing or occurs twice, or if it names no address of the client.
    pub(super) fn request(self, call: Parts, peer: IpAddr) -> Result<GatewayRequest, Problem> {
        let headers = &call.headers;
        check_address(headers, peer)?;
        let (method, target, host) = match self {
            Self::Forwarded => (
                required(headers, "X-Forwarded-Method")?,
                required(headers, "X-Forwarded-Uri")?,
                optional(headers, "X-Forwarded-Host")?,
            ),
            Self::Original => (
                required(headers, "X-Original-Method")?,
                required(headers, "X-Original-URI")?,
                host_of(&call)?,
            ),
            Self::Own => {
                let target = call.uri.path_and_query().map_or("", PathAndQuery::as_str);
                let target = target.strip_prefix(AUTHZ).unwrap_or(target);
                (call.method.as_str().to_owned(), target.to_owned(), host_of(&call)?)
            }
        };
        let (path, query) = match target.split_once('?') {
            Some((path, query)) => (path.to_owned(), Some(query.to_owned())),
            None => (target, None),
        };
        Ok(described(GatewayRequest { method, path, query, host, ..of(call, peer) }))
    }
}

fn of(call: Parts, peer: IpAddr) -> GatewayRequest {
    GatewayRequest { headers: call.headers, peer: Some(peer), ..GatewayRequest::default() }
}

/// Removes the headers of the call, so that rules see only the headers of the client.
fn described(mut request: GatewayRequest) -> GatewayRequest {
    let is_of_call = |name: &&HeaderName| {
        let is_forwarded = name.as_str().starts_with("x-forwarded-") && *name != FORWARDED_FOR;
        is_forwarded || name.as_str().starts_with("x-original-") || CALL_HEADERS.contains(name)
    };
    let names: Vec<HeaderName> = request.headers.keys().filter(is_of_call).cloned().collect();
    for name in names {
        request.headers.remove(name);
    }
    request
}

/// Checks that the gateway names the address of the client, as the last of `X-Forwarded-For`.
/// Otherwise the limiter would count all clients as one: the gateway.
fn check_address(headers: &HeaderMap, peer: IpAddr) -> Result<(), Problem> {
    let lines: Vec<_> = headers.get_all(FORWARDED_FOR).iter().map(HeaderValue::as_bytes).collect();
    let last = ClientIp::with_hops(1).resolve(Some(peer), &lines);
    if last.is_some_and(|last| last.source() == IpSource::Header) {
        return Ok(());
    }
    let message = "X-Forwarded-For: expected the address of the client as the last one";
    Err(Problem::invalid("X-Forwarded-For", message))
}

fn host_of(call: &Parts) -> Result<Option<String>, Problem> {
    match call.uri.authority() {
        Some(authority) => Ok(Some(authority.as_str().to_owned())),
        None => optional(&call.headers, "Host"),
    }
}

fn required(headers: &HeaderMap, name: &str) -> Result<String, Problem> {
    let value = optional(headers, name)?;
    value.ok_or_else(|| Problem::invalid(name, format!("{name}: expected one line, found none")))
}

/// Returns the value of a header, `None` if it is missing or empty.
fn optional(headers: &HeaderMap, name: &str) -> Result<Option<String>, Problem> {
    let mut lines = headers.get_all(name).iter();
    let value = match (lines.next(), lines.next()) {
        (None, _) => return Ok(None),
        (Some(line), None) => line.as_bytes().to_vec(),
        (Some(_), Some(_)) => {
            return Err(Problem::invalid(name, format!("{name}: expected one line, found two")));
        }
    };
    // The client chooses the value. Bytes that are not UTF-8 must not be an error, because some
    // gateways let requests pass when the call fails.
    let text = text_of(value);
    Ok((!text.is_empty()).then_some(text))
}
