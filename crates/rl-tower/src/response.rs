//! Responses of `http`: their bodies, denials, and the access of the limiter to them.

use std::borrow::Cow;
use std::pin::Pin;
use std::sync::LazyLock;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use rl_core::adapter::{CountedRequest, Extensions, ResponseHead};
use rl_core::denial::Denial;
use rl_core::headers::{FieldName, HeaderLines};
use rl_core::{Permit, ResponseInfo};

use crate::request::HttpExtensions;

pin_project! {
    /// The body of the inner service's response, or of a denial.
    #[derive(Debug)]
    pub struct ResponseBody<B> {
        #[pin]
        content: Content<B>,
    }
}

pin_project! {
    #[derive(Debug)]
    #[project = ContentProj]
    enum Content<B> {
        // The permit is released when the body ends or is dropped.
        Inner { #[pin] body: B, permit: Option<Permit> },
        Denial { text: Option<Vec<u8>> },
    }
}

impl<B> ResponseBody<B> {
    pub(crate) const fn inner(body: B, permit: Option<Permit>) -> Self {
        Self { content: Content::Inner { body, permit } }
    }

    fn denial(body: Cow<'static, str>) -> Self {
        let text = if body.is_empty() { None } else { Some(body.into_owned().into_bytes()) };
        Self { content: Content::Denial { text } }
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
        match self.project().content.project() {
            ContentProj::Inner { body, permit } => {
                let frame = body.poll_frame(cx);
                if matches!(frame, Poll::Ready(None)) {
                    *permit = None;
                }
                frame
            }
            ContentProj::Denial { text } => {
                Poll::Ready(text.take().map(|text| Ok(Frame::data(text.into()))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Inner { body, .. } => body.is_end_stream(),
            Content::Denial { text } => text.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Inner { body, .. } => body.size_hint(),
            Content::Denial { text } => {
                SizeHint::with_exact(text.as_ref().map_or(0, Vec::len) as u64)
            }
        }
    }
}

/// The capacity for the headers of a denied response: those of the [`Denial`] itself, those of one
/// header family, `Retry-After` and the length. With the default capacity, the map would have to
/// grow.
const DENIAL_HEADERS: usize = 8;

/// Creates the response to a rejected request.
pub(crate) fn from_denial<B>(denial: Denial) -> Response<ResponseBody<B>> {
    with_body(denial, ResponseBody::denial)
}

/// Creates the response to a counted request that its decision denies.
pub(crate) fn denied<B>(counted: CountedRequest, denial: Denial) -> Response<ResponseBody<B>> {
    let mut response = from_denial(denial);
    counted.finish(&mut HttpResponse(&mut response));
    response
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
        let (headers, names) = (self.0.headers_mut(), &*NAMES);
        for line in lines.iter() {
            let name = &names[line.name.index()];
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
