//! Responses of `http`: their bodies, denials, and the access of the limiter to them.

use std::borrow::Cow;
use std::pin::Pin;
use std::sync::LazyLock;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::{BoxBody, UnsyncBoxBody};
use http_body_util::{Empty, Full, StreamBody};
use pin_project_lite::pin_project;
use rl_core::adapter::{Extensions, ResponseHead};
use rl_core::denial::Denial;
use rl_core::headers::{FieldName, HeaderLines};
use rl_core::{Permit, ResponseInfo};

use crate::request::HttpExtensions;

/// A body of responses that a limiter accepts from the inner service.
///
/// With the features `axum` and `tonic`, these are the bodies of axum and tonic. They can box any
/// other body, so a limiter returns them as they are, and boxes one only if it has to hold a permit.
///
/// The bodies of `http-body-util` become a [`ResponseBody`], without an allocation. Any other body
/// is accepted as a `ResponseBody` too, into which a layer inside the limiter converts it:
///
/// ```
/// use rl_tower::{Limit, RateLimitLayer, RateLimiter, ResponseBody};
/// use tower::ServiceBuilder;
/// # type OtherBody = Box<String>;
///
/// let limiter = RateLimiter::builder().limit(Limit::per_minute(100)).build()?;
/// let stack = ServiceBuilder::new()
///     .layer(RateLimitLayer::new(limiter))
///     .map_response(|response: http::Response<OtherBody>| response.map(ResponseBody::from));
/// # Ok::<(), rl_tower::BuildError>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "a limiter does not accept the body `{Self}`",
    note = "convert it inside the limiter, by `map_response` with \
            `response.map(rl_tower::ResponseBody::from)`",
    note = "the bodies of axum and tonic are accepted with the features `axum` and `tonic`"
)]
pub trait LimitedBody: Sized {
    /// The body of the responses that the limiter returns: that of the inner service, perhaps with
    /// the permit of its request, or that of a denial.
    type Limited: From<Self> + From<ResponseBody<Self>>;
}

#[cfg(feature = "axum")]
impl LimitedBody for axum::body::Body {
    type Limited = Self;
}

#[cfg(feature = "axum")]
impl From<ResponseBody<Self>> for axum::body::Body {
    fn from(body: ResponseBody<Self>) -> Self {
        Self::new(body)
    }
}

#[cfg(feature = "tonic")]
impl LimitedBody for tonic::body::Body {
    type Limited = Self;
}

#[cfg(feature = "tonic")]
impl From<ResponseBody<Self>> for tonic::body::Body {
    fn from(body: ResponseBody<Self>) -> Self {
        Self::new(body)
    }
}

impl<D, E> LimitedBody for BoxBody<D, E> {
    type Limited = ResponseBody<Self>;
}

impl<D, E> LimitedBody for UnsyncBoxBody<D, E> {
    type Limited = ResponseBody<Self>;
}

impl<D> LimitedBody for Full<D> {
    type Limited = ResponseBody<Self>;
}

impl<D> LimitedBody for Empty<D> {
    type Limited = ResponseBody<Self>;
}

impl<S> LimitedBody for StreamBody<S> {
    type Limited = ResponseBody<Self>;
}

impl LimitedBody for String {
    type Limited = ResponseBody<Self>;
}

impl<B> LimitedBody for ResponseBody<B> {
    type Limited = ResponseBody<Self>;
}

pin_project! {
    /// A body of the inner service, which may hold the permit of its request, or that of a denial.
    #[derive(Debug)]
    pub struct ResponseBody<B> {
        #[pin]
        inner: Option<B>,
        denial: Option<Vec<u8>>,
        // Released when the body ends or is dropped.
        permit: Option<Permit>,
    }
}

/// Converts a body of the inner service into one that holds `permit` until it ends.
pub(crate) fn limited_body<B: LimitedBody>(body: B, permit: Option<Permit>) -> B::Limited {
    match permit {
        None => body.into(),
        permit => ResponseBody { inner: Some(body), denial: None, permit }.into(),
    }
}

impl<B> ResponseBody<B> {
    fn denial(body: Cow<'static, str>) -> Self {
        let denial = if body.is_empty() { None } else { Some(body.into_owned().into_bytes()) };
        Self { inner: None, denial, permit: None }
    }
}

impl<B> From<B> for ResponseBody<B> {
    fn from(body: B) -> Self {
        Self { inner: Some(body), denial: None, permit: None }
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

/// The capacity for the headers of a denied response: those of the [`Denial`] itself, those of one
/// header family, `Retry-After` and the length. With the default capacity, the map would have to
/// grow.
const DENIAL_HEADERS: usize = 8;

/// Creates the response to a rejected request.
pub(crate) fn from_denial<B: LimitedBody>(denial: Denial) -> Response<B::Limited> {
    with_body(denial, |text| ResponseBody::<B>::denial(text).into())
}

/// Creates the response to a rejected request, with the body that `body` creates from the text.
pub(crate) fn with_body<B>(
    denial: Denial,
    body: impl FnOnce(Cow<'static, str>) -> B,
) -> Response<B> {
    let mut response = Response::new(body(denial.body));
    *response.status_mut() =
        StatusCode::from_u16(denial.status).unwrap_or(StatusCode::TOO_MANY_REQUESTS);
    let headers = response.headers_mut();
    headers.reserve(DENIAL_HEADERS);
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
        // The responder of an application may return an invalid header, which is omitted.
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), value) {
            headers.insert(name, value);
        }
    }
    response
}

/// The names of all header fields that a limiter writes. A look-up in this table is cheaper than
/// validating a name.
static NAMES: LazyLock<[HeaderName; FieldName::ALL.len()]> =
    LazyLock::new(|| FieldName::ALL.map(HeaderName::from_static));

/// The limiter's view of a response.
pub(crate) struct HttpResponse<'a, B>(pub(crate) &'a mut Response<B>);

impl<B> ResponseInfo for HttpResponse<'_, B> {
    fn status(&self) -> u16 {
        self.0.status().as_u16()
    }

    fn header_lines<'a>(&'a self, name: &str, each: &mut dyn FnMut(&'a [u8])) {
        self.0.headers().get_all(name).iter().for_each(|value| each(value.as_bytes()));
    }
}

impl<B> ResponseHead for HttpResponse<'_, B> {
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
        HttpExtensions(self.0.extensions_mut())
    }
}
