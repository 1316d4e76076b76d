//! The answer to a client that is turned away, and what every response tells.

use actix_web::HttpResponse;
use actix_web::http::StatusCode;
use actix_web::http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use rl_core::denial::Denial;
use rl_core::key::KeyExtractor;
use rl_core::{Decision, Gate};

use crate::headers;

/// A denial as a response.
pub(crate) fn from_denial(denial: Denial) -> HttpResponse {
    let status = StatusCode::from_u16(denial.status).unwrap_or(StatusCode::TOO_MANY_REQUESTS);
    let mut response = HttpResponse::new(status).set_body(denial.body.into_owned());
    if let Some(content_type) = denial.content_type {
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    }
    for (name, value) in denial.headers {
        // A responder of the user's may have made a value that cannot stand in a header.
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(&*value))
        {
            response.headers_mut().insert(name, value);
        }
    }
    response.map_into_boxed_body()
}

/// Adds the header lines, and leaves the stricter decision in the extensions for outer layers.
pub(crate) fn tell<B, K: KeyExtractor>(
    response: &mut HttpResponse<B>,
    gate: &Gate<K>,
    decision: Decision,
) {
    let inner = response.extensions_mut().remove::<Decision>();
    let lines = response.headers_mut();
    let stricter = gate.write_headers(decision, inner, &mut |line| headers::add(lines, line));
    response.extensions_mut().insert(stricter);
}
