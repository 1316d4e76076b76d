//! Faults T6 and T7 of `README.md`: bodies of every type must work, and the middleware must not
//! read them.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt::Debug;
use std::pin::Pin;
use std::task::{Context, Poll};

use actix_web::{App, web as actix};
use axum::Router;
use axum::body::{Body as AxumBody, Bytes};
use axum::routing::post;
use futures::{StreamExt, stream};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::combinators::{BoxBody, UnsyncBoxBody};
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use rl_actix::RateLimit;
use rl_core::RateLimiter;
use rl_tests::web::{self, Fetch, Site, limiter, new_year};
use tower::{Layer, service_fn};

use super::{RecordingService, ScriptedStore, call, layer};

fn one_per_minute() -> RateLimiter {
    limiter(&new_year(), &["1/minute"])
}

/// A response as it was received: status, data and trailers.
type Arrived = (u16, Vec<u8>, Option<HeaderMap>);

/// Sends two requests to a limited service that responds with the bodies that `make` creates. The
/// second request is denied.
async fn arrived<B>(make: impl Fn() -> B + Clone) -> [Arrived; 2]
where
    B: Body<Data: From<Vec<u8>>, Error: Debug>,
{
    let inside = service_fn(move |_: Request<String>| {
        std::future::ready(Ok::<_, Infallible>(Response::new(make())))
    });
    let mut limited = layer(&one_per_minute()).layer(inside);
    let mut next = async || {
        let response = call(&mut limited, Request::new(String::new())).await.await.unwrap();
        let (status, said) = (response.status().as_u16(), response.body().size_hint().exact());
        let body = response.into_body().collect().await.unwrap();
        let (trailers, data) = (body.trailers().cloned(), body.to_bytes().to_vec());
        assert!(said.is_none_or(|said| said == data.len() as u64), "{said:?} {data:?}");
        (status, data, trailers)
    };
    [next().await, next().await]
}

/// Some middlewares require one type of body, or a body that can be created from their error. Such
/// a middleware works with only one framework. Ours requires only that the data of a body can be
/// created from bytes, so that it can create the body of a denial.
#[tokio::test]
async fn t06_every_body_type_is_taken() {
    fn expect([allowed, denied]: [Arrived; 2], body: &str) {
        let denial = r#"{"code":429,"message":"Too many requests: 1 per minute. Try again in 60 seconds.","limit":"minute"}"#;
        assert_eq!(allowed, (200, body.into(), None));
        assert_eq!(denied, (429, denial.into(), None));
    }
    expect(arrived(|| Full::<Bytes>::from("full")).await, "full");
    expect(arrived(Empty::<Bytes>::new).await, "");
    expect(arrived(|| AxumBody::from("axum")).await, "axum");
    expect(arrived(|| BoxBody::new(Full::<Bytes>::from("boxed"))).await, "boxed");
    expect(arrived(|| UnsyncBoxBody::new(Full::<Bytes>::from("unsync"))).await, "unsync");
    // The data of this body is not `Bytes`.
    expect(arrived(|| Full::new(VecDeque::from(*b"deque"))).await, "deque");
}

/// The trailers of a gRPC response carry its status.
#[tokio::test]
async fn t06_frames_and_trailers_pass_through() {
    let trailers = HeaderMap::from_iter([(http::header::ETAG, "\"7\"".parse().unwrap())]);
    let after = trailers.clone();
    let [allowed, denied] = arrived(move || {
        let data = ["one ", "two"].map(|data| Frame::data(Bytes::from(data)));
        let frames = data.into_iter().chain([Frame::trailers(after.clone())]);
        StreamBody::new(stream::iter(frames.map(Ok::<_, Infallible>)))
    })
    .await;
    assert_eq!(allowed, (200, "one two".into(), Some(trailers)));
    assert_eq!((denied.0, denied.2), (429, None));
}

/// A body that panics when it is read.
struct Untouched;

impl Body for Untouched {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        panic!("the body of the request is read");
    }
}

/// Some middlewares read the whole body of a request before they decide. This delays uploads, needs
/// memory for the largest body, and breaks streams.
#[tokio::test]
async fn t07_the_body_of_a_request_is_not_read() {
    let mut in_memory = layer(&one_per_minute()).layer(RecordingService::default());
    for status in [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS] {
        let answer = call(&mut in_memory, Request::new(Untouched)).await;
        assert_eq!(answer.await.unwrap().status(), status);
    }

    let store = ScriptedStore::default();
    let mut elsewhere = layer(&store.limiter()).layer(RecordingService::default());
    let granted = call(&mut elsewhere, Request::new(Untouched)).await;
    let denied = call(&mut elsewhere, Request::new(Untouched)).await;
    assert!(store.grant() && store.deny());
    assert_eq!(granted.await.unwrap().status(), StatusCode::OK);
    assert_eq!(denied.await.unwrap().status(), StatusCode::TOO_MANY_REQUESTS);
}

/// Over a real connection, the limiter does not read the body either. The body never ends, but the
/// handler gets its beginning, and the client gets the response, while the body is still being
/// sent.
#[tokio::test]
async fn t07_an_endless_body_reaches_the_handler_as_it_comes() {
    async fn contract(site: Site) {
        let endless = || {
            let begun = stream::iter([Ok::<_, Infallible>("the beginning")]);
            site.post("/").body(reqwest::Body::wrap_stream(begun.chain(stream::pending())))
        };
        let answer = endless().fetch().await;
        assert_eq!((answer.standing().as_str(), &*answer.body), ("200 1-0-60", "the beginning"));
        assert_eq!(endless().fetch().await.standing(), "429 1-0-60, retry 60");
    }

    async fn on_axum(body: AxumBody) -> Bytes {
        body.into_data_stream().next().await.unwrap().unwrap()
    }
    let app = Router::new().route("/", post(on_axum));
    contract(web::axum::serve(app.layer(layer(&one_per_minute())))).await;

    async fn on_actix(mut body: actix::Payload) -> actix::Bytes {
        body.next().await.unwrap().unwrap()
    }
    let limit = RateLimit::new(one_per_minute());
    let app = move || App::new().wrap(limit.clone()).route("/", actix::post().to(on_actix));
    contract(web::actix::serve(app)).await;
}
