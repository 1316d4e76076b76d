//! Responses of actix-web: their bodies, denials, and the limiter's access to them.

use std::borrow::Cow;
use std::pin::Pin;
use std::sync::LazyLock;
use std::task::{Context, Poll, ready};

use actix_web::HttpResponse;
use actix_web::body::{BodySize, BoxBody, EitherBody, MessageBody};
use actix_web::http::StatusCode;
use actix_web::http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use actix_web::web::Bytes;
use pin_project_lite::pin_project;
use rl_core::adapter::{Extensions, ResponseHead};
use rl_core::denial::Denial;
use rl_core::headers::{FieldName, HeaderLines};
use rl_core::{Permit, ResponseInfo};

use crate::request::ActixExtensions;

pin_project! {
    /// The body of the inner service's response, or of a denial.
    #[derive(Debug)]
    pub struct ResponseBody<B> {
        #[pin]
        body: EitherBody<B>,
        // Released when the body ends or is dropped.
        permit: Option<Permit>,
    }
}

impl<B> ResponseBody<B> {
    pub(crate) fn inner(body: B, permit: Option<Permit>) -> Self {
        Self { body: EitherBody::left(body), permit }
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

/// Creates the response to a rejected request.
pub(crate) fn from_denial<B>(denial: Denial) -> HttpResponse<ResponseBody<B>> {
    boxed(denial).map_body(|_, body| ResponseBody { body: EitherBody::right(body), permit: None })
}

/// Creates the response to a request that a handler rejects.
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
        // The responder of an application may return an invalid header, which is omitted.
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), value) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

/// Returns the status of a denial.
pub(crate) fn status_of(denial: &Denial) -> StatusCode {
    StatusCode::from_u16(denial.status).unwrap_or(StatusCode::TOO_MANY_REQUESTS)
}

/// The names of all rate limit headers. A look-up in this table is cheaper than validating a name.
static NAMES: LazyLock<[HeaderName; FieldName::ALL.len()]> =
    LazyLock::new(|| FieldName::ALL.map(HeaderName::from_static));

/// Gives the limiter access to a response.
pub(crate) struct ActixResponse<'a, B>(pub(crate) &'a mut HttpResponse<B>);

impl<B> ResponseInfo for ActixResponse<'_, B> {
    fn status(&self) -> u16 {
        self.0.status().as_u16()
    }

    fn header_lines<'a>(&'a self, name: &str, each: &mut dyn FnMut(&'a [u8])) {
        self.0.headers().get_all(name).for_each(|value| each(value.as_bytes()));
    }
}

impl<B> ResponseHead for ActixResponse<'_, B> {
    fn add_headers(&mut self, lines: &HeaderLines) {
        let headers = self.0.headers_mut();
        for line in lines.iter() {
            let name = NAMES[line.name.index()].clone();
            let value = HeaderValue::from_maybe_shared(line.value)
                .expect("values are visible ASCII and spaces");
            if line.is_list {
                headers.append(name, value);
            } else {
                headers.insert(name, value);
            }
        }
    }

    fn extensions(&mut self) -> impl Extensions {
        ActixExtensions(self.0.extensions_mut())
    }
}
