//! The service `hello.Greeter`, written by hand, so that the example needs no protobuf compiler.
//!
//! Its messages are strings: the wrapper type `google.protobuf.StringValue`. In a real service,
//! `tonic-prost-build` generates this code:
//!
//! ```proto
//! service Greeter {
//!   rpc Hello(google.protobuf.StringValue) returns (google.protobuf.StringValue);
//!   rpc Count(google.protobuf.StringValue) returns (stream google.protobuf.StringValue);
//! }
//! ```

use std::convert::Infallible;
use std::task::{Context, Poll};

use futures::future::{BoxFuture, FutureExt};
use futures::stream;
use tonic::body::Body;
use tonic::server::{Grpc, NamedService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower::{Service, service_fn};

/// The codec of all messages.
pub(crate) type Strings = ProstCodec<String, String>;

#[derive(Clone, Copy)]
pub(crate) struct Greeter;

impl NamedService for Greeter {
    const NAME: &'static str = "hello.Greeter";
}

impl Service<http::Request<Body>> for Greeter {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        async move {
            let mut grpc = Grpc::new(Strings::default());
            Ok(match request.uri().path() {
                "/hello.Greeter/Hello" => grpc.unary(service_fn(hello), request).await,
                "/hello.Greeter/Count" => grpc.server_streaming(service_fn(count), request).await,
                _ => Status::unimplemented("the method is unknown").into_http(),
            })
        }
        .boxed()
    }
}

async fn hello(request: Request<String>) -> Result<Response<String>, Status> {
    Ok(Response::new(format!("hello, {}", request.into_inner())))
}

/// Streams three greetings, and leaves the stream open until the client ends it.
async fn count(
    request: Request<String>,
) -> Result<Response<stream::BoxStream<'static, Result<String, Status>>>, Status> {
    use stream::StreamExt;

    let name = request.into_inner();
    let greetings = (1..=3).map(move |count| Ok(format!("hello {count}, {name}")));
    Ok(Response::new(stream::iter(greetings).chain(stream::pending()).boxed()))
}
