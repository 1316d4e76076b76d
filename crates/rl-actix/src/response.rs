//! The answer to a client that is turned away, and what every response tells.

use std::borrow::Cow;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use actix_web::HttpResponse;
use actix_web::body::{BodySize, BoxBody, EitherBody, MessageBody};
use actix_web::dev::ServiceResponse;
use actix_web::http::StatusCode;
use actix_web::http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use actix_web::web::Bytes;
use pin_project_lite::pin_project;
use rl_core::denial::Denial;
use rl_core::gate::{ResponseInfo, ResponseRules};
use rl_core::{Decision, Permit};

use crate::headers;

pin_project! {
    /// The body of the inner service's response, or that of a denial.
    #[derive(Debug)]
    pub struct ResponseBody<B> {
        #[pin]
        body: EitherBody<B>,
        // Goes when the body has ended, or is given up.
        permit: Option<Permit>,
    }
}

impl<B: MessageBody + 'static> MessageBody for ResponseBody<B> {
    type Error = <EitherBody<B> as MessageBody>::Error;

    fn size(&self) -> BodySize {
        self.body.size()
    }

    fn poll_next(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Self::Error>>> {
        let this = self.project();
        let chunk = ready!(this.body.poll_next(cx));
        if chunk.is_none() {
            this.permit.take();
        }
        Poll::Ready(chunk)
    }
}

/// Makes a response of a denial.
pub(crate) fn from_denial<B>(denial: Denial) -> HttpResponse<ResponseBody<B>> {
    boxed(denial).map_body(|_, body| ResponseBody { body: EitherBody::right(body), permit: None })
}

/// Makes a response of a denial for a handler, which has no response of its own to replace.
pub(crate) fn boxed(denial: Denial) -> HttpResponse {
    let status = status_of(&denial);
    let mut response = HttpResponse::with_body(status, BoxBody::new(denial.body.into_owned()));
    if let Some(content_type) = denial.content_type {
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    }
    for (name, value) in denial.headers {
        let value = match value {
            Cow::Borrowed(value) => {
                HeaderValue::from_maybe_shared(Bytes::from_static(value.as_bytes()))
            }
            Cow::Owned(value) => HeaderValue::from_maybe_shared(Bytes::from(value)),
        };
        // A responder of the user's may have made a value that cannot stand in a header.
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), value) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

pub(crate) fn status_of(denial: &Denial) -> StatusCode {
    StatusCode::from_u16(denial.status).unwrap_or(StatusCode::TOO_MANY_REQUESTS)
}

/// The response of the inner service, whose body holds the permit.
pub(crate) fn holding<B>(
    permit: Option<Permit>,
    response: ServiceResponse<B>,
) -> ServiceResponse<ResponseBody<B>> {
    response.map_body(|_, body| ResponseBody { body: EitherBody::left(body), permit })
}

/// Finds in the head of the response what the request did cost.
pub(crate) fn read_cost<B>(response: &ServiceResponse<B>, rules: &ResponseRules, permit: &Permit) {
    rules.read_cost(permit, &ActixResponse(response.response()));
}

/// A response of actix-web as the limiter sees it.
struct ActixResponse<'a, B>(&'a HttpResponse<B>);

impl<B> ResponseInfo for ActixResponse<'_, B> {
    fn status(&self) -> u16 {
        self.0.status().as_u16()
    }

    fn header_lines<'a>(&'a self, name: &str, each: &mut dyn FnMut(&'a [u8])) {
        self.0.headers().get_all(name).for_each(|value| each(value.as_bytes()));
    }
}

/// Adds the header lines, and leaves the stricter decision in the extensions for outer layers, if they
/// are told.
pub(crate) fn tell<B>(
    response: &mut HttpResponse<B>,
    rules: &ResponseRules,
    decision: &mut Option<Decision>,
) {
    let Some(told) = decision else { return };
    let inner = response.extensions_mut().remove::<Decision>();
    let lines = response.headers_mut();
    if rules.write_headers(told, inner, &mut |line| headers::add(lines, line)) {
        let left = || decision.take().expect("it is told");
        response.extensions_mut().get_or_insert_with(left);
    }
}
