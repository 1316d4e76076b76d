//! The answer to a client that is turned away, and what every response tells.

use std::borrow::Cow;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
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
        inner: Option<B>,
        denial: Option<Vec<u8>>,
        // Goes when the body has ended, or is given up.
        permit: Option<Permit>,
    }
}

impl<B> ResponseBody<B> {
    const fn inner(body: B, permit: Option<Permit>) -> Self {
        Self { inner: Some(body), denial: None, permit }
    }

    fn denial(body: Cow<'static, str>) -> Self {
        let denial = if body.is_empty() { None } else { Some(body.into_owned().into_bytes()) };
        Self { inner: None, denial, permit: None }
    }
}

impl<B> Body for ResponseBody<B>
where
    B: Body<Data: From<Vec<u8>>>,
{
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.project();
        match this.inner.as_pin_mut() {
            Some(body) => {
                let frame = ready!(body.poll_frame(cx));
                if frame.is_none() {
                    this.permit.take();
                }
                Poll::Ready(frame)
            }
            None => Poll::Ready(this.denial.take().map(|body| Ok(Frame::data(body.into())))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().map_or(self.denial.is_none(), Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let denial_len = || self.denial.as_ref().map_or(0, Vec::len) as u64;
        self.inner.as_ref().map_or_else(|| SizeHint::with_exact(denial_len()), Body::size_hint)
    }
}

/// A denial has its own lines, those of a family, when to come back, and its length: more than a map has
/// room for until it grows.
const DENIAL_LINES: usize = 8;

/// Makes a response of a denial.
pub(crate) fn from_denial<B>(denial: Denial) -> Response<ResponseBody<B>> {
    with_body(denial, ResponseBody::denial)
}

/// Makes a response of a denial, with its text as a body of another type.
pub(crate) fn with_body<B>(
    denial: Denial,
    body: impl FnOnce(Cow<'static, str>) -> B,
) -> Response<B> {
    let mut response = Response::new(body(denial.body));
    *response.status_mut() =
        StatusCode::from_u16(denial.status).unwrap_or(StatusCode::TOO_MANY_REQUESTS);
    let headers = response.headers_mut();
    headers.reserve(DENIAL_LINES);
    if let Some(content_type) = denial.content_type {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
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
            headers.insert(name, value);
        }
    }
    response
}

/// The response of the inner service, whose body holds the permit.
pub(crate) fn holding<B>(
    permit: Option<Permit>,
    response: Response<B>,
) -> Response<ResponseBody<B>> {
    response.map(|body| ResponseBody::inner(body, permit))
}

/// Finds in the head of the response what the request did cost.
pub(crate) fn read_cost<B>(response: &Response<B>, rules: &ResponseRules, permit: &Permit) {
    rules.read_cost(permit, &HttpResponse(response));
}

/// A response of `http` as the limiter sees it.
struct HttpResponse<'a, B>(&'a Response<B>);

impl<B> ResponseInfo for HttpResponse<'_, B> {
    fn status(&self) -> u16 {
        self.0.status().as_u16()
    }

    fn header_lines<'a>(&'a self, name: &str, each: &mut dyn FnMut(&'a [u8])) {
        self.0.headers().get_all(name).iter().for_each(|value| each(value.as_bytes()));
    }
}

/// Adds the header lines, and leaves the stricter decision in the extensions for outer layers, if they
/// are told.
pub(crate) fn tell<B>(
    response: &mut Response<B>,
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
