use std::fmt;
use std::future::{Ready, ready};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use actix_web::Error;
use actix_web::body::MessageBody;
use actix_web::dev::{Service, ServiceRequest, ServiceResponse, Transform};
use rl_core::gate::Admission;
use rl_core::key::{ClientAddress, KeyExtractor};
use rl_core::{Gate, MaybeReady};

use crate::future::ResponseFuture;
use crate::request::ActixRequest;
use crate::response::{self, ResponseBody};

/// Puts a limiter around an app, a scope or a resource.
///
/// Clones share the limiter. The [crate](crate) shows how it is used.
pub struct RateLimit<K = ClientAddress> {
    gate: Arc<Gate<K>>,
}

impl<K: KeyExtractor> RateLimit<K> {
    /// A middleware for a [`RateLimiter`](rl_core::RateLimiter), with every default of
    /// [`Gate::new`], or for a [`Gate`].
    pub fn new(gate: impl Into<Gate<K>>) -> Self {
        Self { gate: Arc::new(gate.into()) }
    }
}

impl<S, B, K> Transform<S, ServiceRequest> for RateLimit<K>
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    B: MessageBody,
    K: KeyExtractor,
{
    type Response = ServiceResponse<ResponseBody<B>>;
    type Error = Error;
    type Transform = RateLimitMiddleware<S, K>;
    type InitError = ();
    type Future = Ready<Result<Self::Transform, ()>>;

    fn new_transform(&self, service: S) -> Self::Future {
        let (service, gate) = (Rc::new(service), Arc::clone(&self.gate));
        ready(Ok(RateLimitMiddleware { service, gate }))
    }
}

impl<K> Clone for RateLimit<K> {
    fn clone(&self) -> Self {
        Self { gate: Arc::clone(&self.gate) }
    }
}

impl<K> fmt::Debug for RateLimit<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit").field("gate", &self.gate).finish()
    }
}

/// A service with a limiter around it, made by [`RateLimit`].
pub struct RateLimitMiddleware<S, K = ClientAddress> {
    // Shared with the requests that wait for a store elsewhere.
    service: Rc<S>,
    gate: Arc<Gate<K>>,
}

impl<S, B, K> Service<ServiceRequest> for RateLimitMiddleware<S, K>
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    B: MessageBody,
    K: KeyExtractor,
{
    type Response = ServiceResponse<ResponseBody<B>>;
    type Error = Error;
    type Future = ResponseFuture<S, S::Future, B, K>;

    fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.service.poll_ready(cx)
    }

    fn call(&self, request: ServiceRequest) -> Self::Future {
        let admission = self.gate.admit(&ActixRequest::new(&request));
        match admission {
            Admission::Exempt => ResponseFuture::exempt(self.service.call(request)),
            Admission::TurnedAway(denial) => {
                let response = response::from_denial(denial);
                ResponseFuture::turned_away(request.into_response(response))
            }
            // A store in memory has decided: there is nothing to wait for, and nothing to hold.
            Admission::Asked { decision: MaybeReady::Ready(Some(decision)), caller } => {
                ResponseFuture::decided(&*self.service, request, &self.gate, decision, &caller)
            }
            Admission::Asked { decision, caller } => {
                let (service, gate) = (Rc::clone(&self.service), Arc::clone(&self.gate));
                ResponseFuture::checking(service, request, gate, decision, caller)
            }
        }
    }
}

impl<S: fmt::Debug, K> fmt::Debug for RateLimitMiddleware<S, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitMiddleware")
            .field("service", &self.service)
            .field("gate", &self.gate)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Waker;

    use actix_web::HttpResponse;
    use actix_web::dev::fn_service;
    use actix_web::test::TestRequest;
    use rl_core::{Limit, RateLimiter};

    use super::*;

    async fn handler(request: ServiceRequest) -> Result<ServiceResponse, Error> {
        Ok(request.into_response(HttpResponse::Ok().content_type("text/plain").finish()))
    }

    /// How often the allocator is asked by a request of a client that has asked before.
    fn allocations<S: Service<ServiceRequest>>(service: &S) -> u64 {
        let ask = || {
            let request = TestRequest::default().peer_addr(([192, 0, 2, 7], 50_000).into());
            let request = request.to_srv_request();
            let counted = allocation_counter::measure(|| {
                let answer = pin!(service.call(request));
                let polled = answer.poll(&mut Context::from_waker(Waker::noop()));
                assert!(polled.is_ready(), "there is nothing to wait for");
            });
            counted.count_total
        };
        ask();
        ask()
    }

    fn limited(change: impl FnOnce(Gate) -> Gate) -> impl Service<ServiceRequest> {
        let limiter = RateLimiter::builder()
            .limit(Limit::per_second(100))
            .limit(Limit::per_day(5_000))
            .build()
            .unwrap();
        let service = Rc::new(fn_service(handler));
        RateLimitMiddleware { service, gate: Arc::new(change(Gate::new(limiter))) }
    }

    /// Of what is added: the decision in the extensions of the request, and their table, which a server
    /// uses again for the next request.
    #[test]
    fn a_request_asks_the_allocator_twice() {
        let limited = limited(|gate| gate.decision_in_response(false));
        assert_eq!(allocations(&limited) - allocations(&fn_service(handler)), 2);
    }

    /// As above.
    #[test]
    fn a_decision_in_the_response_takes_two_more() {
        assert_eq!(allocations(&limited(|gate| gate)) - allocations(&fn_service(handler)), 4);
    }
}
