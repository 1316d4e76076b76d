//! Clients over HTTP/1 and HTTP/2, which know whether a request was sent.

use std::error::Error;
use std::net::SocketAddr;

use axum::body::Body;
use http_body_util::BodyExt;
use hyper::client::conn::{http1, http2};
use hyper::{Request, Response, body::Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// A connection of a client.
pub(crate) enum Connection {
    Http1(http1::SendRequest<Body>),
    Http2(http2::SendRequest<Body>),
}

/// The result of a request.
#[derive(Debug)]
pub(crate) enum Sent {
    /// The body of the response, and whether the response announces the end of the connection.
    Answered(String, bool),
    /// The connection had ended before the request was sent, or the server has refused it because
    /// it stops.
    ConnectionEnded,
    /// The request was sent, and no complete response came.
    Lost(String),
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr, is_http2: bool) -> std::io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        Ok(Self::over(stream, is_http2).await.expect("a client writes its preface at once"))
    }

    pub(crate) async fn over<S>(stream: S, is_http2: bool) -> hyper::Result<Self>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let stream = TokioIo::new(stream);
        if is_http2 {
            let (client, connection) = http2::handshake(TokioExecutor::new(), stream).await?;
            tokio::spawn(connection);
            Ok(Self::Http2(client))
        } else {
            let (client, connection) = http1::handshake(stream).await?;
            tokio::spawn(connection);
            Ok(Self::Http1(client))
        }
    }

    /// Sends one request, and reads its response.
    pub(crate) async fn get(&mut self, path: &str) -> Sent {
        let uri = match self {
            Self::Http1(_) => path.to_owned(),
            Self::Http2(_) => format!("http://localhost{path}"),
        };
        let request =
            Request::builder().uri(uri).header("host", "localhost").body(Body::empty()).unwrap();
        let sent = match self {
            Self::Http1(client) => match client.ready().await {
                Ok(()) => client.try_send_request(request).await,
                Err(_) => return Sent::ConnectionEnded,
            },
            Self::Http2(client) => match client.ready().await {
                Ok(()) => client.try_send_request(request).await,
                Err(_) => return Sent::ConnectionEnded,
            },
        };
        match sent {
            Ok(response) => read(response).await,
            // The client gives a request back that it has not sent.
            Err(mut error) => match error.take_message() {
                Some(_) => Sent::ConnectionEnded,
                None if is_refused(error.error()) => Sent::ConnectionEnded,
                None => Sent::Lost(format!("{:?}", error.error())),
            },
        }
    }
}

/// Returns whether a server that stops has refused the request: it names the last request that it
/// processes, so the client may send later ones again (RFC 9113, section 6.8).
fn is_refused(error: &hyper::Error) -> bool {
    let source = error.source().and_then(|source| source.downcast_ref::<h2::Error>());
    source.is_some_and(|error| {
        error.is_go_away() && error.is_remote() && error.reason() == Some(h2::Reason::NO_ERROR)
    })
}

async fn read(response: Response<Incoming>) -> Sent {
    let closes = response.headers().get("connection").is_some_and(|value| value == "close");
    match response.into_body().collect().await {
        Ok(body) => Sent::Answered(String::from_utf8(body.to_bytes().to_vec()).unwrap(), closes),
        Err(error) => Sent::Lost(error.to_string()),
    }
}
