//! A client that opens streams, and calls the service until it is denied.

use std::error::Error;
use std::net::SocketAddr;

use http::uri::PathAndQuery;
use tonic::client::Grpc;
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use crate::greeter::Strings;

pub(crate) async fn run(server: SocketAddr) -> Result<(), Box<dyn Error>> {
    let channel = Endpoint::from_shared(format!("http://{server}"))?.connect().await?;
    let mut grpc = Grpc::new(channel);

    let mut first = count(&mut grpc).await?;
    println!("first stream: {}", first.message().await?.unwrap_or_default());
    match count(&mut grpc).await {
        Ok(_) => println!("second stream: open"),
        Err(status) => print_denial("second stream", &status),
    }
    // Four of five calls are left. The denied stream was not charged.
    for call in 2..=6 {
        grpc.ready().await?;
        let request = Request::new("Ada".to_owned());
        let path = PathAndQuery::from_static("/hello.Greeter/Hello");
        match grpc.unary(request, path, Strings::default()).await {
            Ok(response) => {
                let left = text(response.metadata(), "x-rate-limit-remaining");
                println!("call {call}: {}, {left} left", response.get_ref());
            }
            Err(status) => print_denial(&format!("call {call}"), &status),
        }
    }
    Ok(())
}

async fn count(grpc: &mut Grpc<Channel>) -> Result<tonic::Streaming<String>, Status> {
    grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let path = PathAndQuery::from_static("/hello.Greeter/Count");
    let streaming = grpc.server_streaming(Request::new("Ada".to_owned()), path, Strings::default());
    Ok(streaming.await?.into_inner())
}

/// Prints the code, the message, and the time after which a denied call may be repeated.
fn print_denial(call: &str, status: &Status) {
    println!("{call}: {:?}: {}", status.code(), status.message());
    println!("  repeat after {} ms", text(status.metadata(), "grpc-retry-pushback-ms"));
}

fn text<'a>(metadata: &'a MetadataMap, name: &str) -> &'a str {
    metadata.get(name).and_then(|value| value.to_str().ok()).unwrap_or("?")
}
