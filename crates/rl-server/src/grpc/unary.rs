//! Runs a method of a gRPC service: decodes its message, and encodes the response.

use std::convert::Infallible;

use http::{Request, Response};
use http_body::Body;
use prost::Message;
use tonic::body::Body as TonicBody;
use tonic::codegen::StdError;
use tonic::server::Grpc;
use tonic::{Code, Status};
use tonic_prost::ProstCodec;

/// The largest message that the services read, in bytes. Envoy limits all headers of a request to
/// 60 KiB, and may send one of them in each of sixteen descriptors. A larger message is an error,
/// after which it may let the request pass.
const MAX_MESSAGE: usize = 1 << 20;

/// Decodes the message of a call, and encodes the message that `handle` returns.
pub(super) async fn unary<B, In, Out, Fut>(
    request: Request<B>,
    handle: impl Fn(In) -> Fut + Clone + Send,
) -> Response<TonicBody>
where
    B: Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
    In: Message + Default + Send + 'static,
    Out: Message + Send + 'static,
    Fut: Future<Output = Result<Out, Status>> + Send,
{
    let call = tower::service_fn(move |request: tonic::Request<In>| {
        let answer = handle(request.into_inner());
        async { answer.await.map(tonic::Response::new) }
    });
    let codec = ProstCodec::<Out, In>::default();
    Grpc::new(codec).max_decoding_message_size(MAX_MESSAGE).unary(call, request).await
}

/// Returns the response to a method that the service does not have.
#[expect(clippy::unnecessary_wraps, reason = "the error type of a service")]
pub(super) fn unimplemented() -> Result<Response<TonicBody>, Infallible> {
    Ok(Status::new(Code::Unimplemented, "no such method").into_http())
}
