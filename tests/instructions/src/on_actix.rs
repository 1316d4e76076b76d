//! A service on actix-web, called in the same way as by a server. The middleware around it is ours,
//! one that adds three header lines, or none.

use std::net::SocketAddr;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use actix_web::body::MessageBody;
use actix_web::dev::{Service, ServiceResponse};
use actix_web::http::header::{HeaderName, HeaderValue};
use actix_web::test::{TestRequest, init_service};
use actix_web::{App, Error, rt, web};
use rl_actix::RateLimit;

use crate::Around;

/// Sends `times` requests, after one request that is not counted.
pub(crate) fn send(around: Around, times: u64) {
    let hello = || web::get().to(async || "Hello");
    let request = || {
        let peer = SocketAddr::from(([192, 0, 2, 7], 50_000));
        TestRequest::default().peer_addr(peer).to_request()
    };
    rt::System::new().block_on(async {
        match around {
            Around::Nothing => {
                let app = App::new().route("/", hello());
                repeat(&init_service(app).await, request, times);
            }
            Around::Lines => {
                let app = App::new().wrap_fn(|request, service| {
                    let answer = service.call(request);
                    async {
                        let mut response = answer.await?;
                        for name in &LINES {
                            let value = HeaderValue::from_static("1000");
                            response.headers_mut().insert(name.clone(), value);
                        }
                        Ok(response)
                    }
                });
                repeat(&init_service(app.route("/", hello())).await, request, times);
            }
            Around::Limiter(limiter) => {
                let app = App::new().wrap(RateLimit::new(limiter)).route("/", hello());
                repeat(&init_service(app).await, request, times);
            }
        }
    });
}

static LINES: [HeaderName; 3] = [
    HeaderName::from_static("x-rate-limit-limit"),
    HeaderName::from_static("x-rate-limit-remaining"),
    HeaderName::from_static("x-rate-limit-reset"),
];

fn repeat<S, R, B>(service: &S, request: fn() -> R, times: u64)
where
    S: Service<R, Response = ServiceResponse<B>, Error = Error>,
    B: MessageBody,
{
    respond(service, request());
    for request in std::iter::repeat_with(request).take(times as usize) {
        crate::counted(|| respond(service, request));
    }
}

fn respond<S, R, B>(service: &S, request: R)
where
    S: Service<R, Response = ServiceResponse<B>, Error = Error>,
    B: MessageBody,
{
    let mut context = Context::from_waker(Waker::noop());
    assert!(service.poll_ready(&mut context).is_ready());
    let answer = pin!(service.call(request)).poll(&mut context);
    let Poll::Ready(Ok(answer)) = answer else { panic!("the response is ready at once") };
    let mut body = pin!(answer.into_body());
    while let Poll::Ready(Some(bytes)) = body.as_mut().poll_next(&mut context) {
        assert!(bytes.is_ok(), "the body is a text");
    }
}
