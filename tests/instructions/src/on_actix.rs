//! A service on actix-web as it stands behind a server, with a middleware around it: ours, or one
//! that does nothing.

use std::net::SocketAddr;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use actix_web::body::MessageBody;
use actix_web::dev::{Service, ServiceResponse};
use actix_web::test::{TestRequest, init_service};
use actix_web::{App, Error, rt, web};
use rl_actix::RateLimit;
use rl_core::RateLimiter;

/// Sends a request so often, the first of them uncounted, through `limiter` if there is one.
pub(crate) fn send(limiter: Option<RateLimiter>, times: u64) {
    let hello = || web::get().to(async || "Hello");
    let request = || {
        let peer = SocketAddr::from(([192, 0, 2, 7], 50_000));
        TestRequest::default().peer_addr(peer).to_request()
    };
    rt::System::new().block_on(async {
        match limiter {
            Some(limiter) => {
                let app = App::new().wrap(RateLimit::new(limiter)).route("/", hello());
                repeat(&init_service(app).await, request, times);
            }
            None => {
                let app = App::new().wrap_fn(|request, service| service.call(request));
                repeat(&init_service(app.route("/", hello())).await, request, times);
            }
        }
    });
}

fn repeat<S, R, B>(service: &S, request: fn() -> R, times: u64)
where
    S: Service<R, Response = ServiceResponse<B>, Error = Error>,
    B: MessageBody,
{
    answered(service, request());
    for request in std::iter::repeat_with(request).take(times as usize) {
        crate::counted(|| answered(service, request));
    }
}

fn answered<S, R, B>(service: &S, request: R)
where
    S: Service<R, Response = ServiceResponse<B>, Error = Error>,
    B: MessageBody,
{
    let mut context = Context::from_waker(Waker::noop());
    assert!(service.poll_ready(&mut context).is_ready());
    let answer = pin!(service.call(request)).poll(&mut context);
    let Poll::Ready(Ok(answer)) = answer else { panic!("there is nothing to wait for") };
    let mut body = pin!(answer.into_body());
    while let Poll::Ready(Some(bytes)) = body.as_mut().poll_next(&mut context) {
        assert!(bytes.is_ok(), "a text is there");
    }
}
