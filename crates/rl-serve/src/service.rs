//! The services that a server can serve.

use std::convert::Infallible;
use std::error::Error;

use axum::body::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use crate::request::RequestBody;

/// A service that [`HttpServer`](crate::HttpServer) can serve, such as an axum `Router`. It is
/// implemented for every service of requests that never fails.
///
/// The default value of the body has to be empty.
pub trait HttpService:
    Service<
        Request<RequestBody>,
        Response = Response<Self::Body>,
        Error = Infallible,
        Future: Send + 'static,
    > + Clone
    + Send
    + Sync
    + 'static
{
    /// The body of responses.
    type Body: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>>
        + Default
        + Send
        + 'static;
}

impl<S, B> HttpService for S
where
    S: Service<
            Request<RequestBody>,
            Response = Response<B>,
            Error = Infallible,
            Future: Send + 'static,
        > + Clone
        + Send
        + Sync
        + 'static,
    B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Default + Send + 'static,
{
    type Body = B;
}
