use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use http_body::Body;
use rl_core::gate::Admission;
use rl_core::key::{ClientAddress, KeyExtractor};
use rl_core::{Gate, MaybeReady};
use tower_service::Service;

use crate::future::ResponseFuture;
use crate::request::HttpRequest;
use crate::response::{self, ResponseBody};

/// A service with a limiter around it, made by [`RateLimitLayer`](crate::RateLimitLayer).
pub struct RateLimit<S, K = ClientAddress> {
    pub(crate) inner: S,
    pub(crate) gate: Arc<Gate<K>>,
}

impl<S, K> RateLimit<S, K> {
    /// The service inside.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The service inside.
    pub const fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The service inside, without the limiter.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, K, ReqBody, ResBody> Service<Request<ReqBody>> for RateLimit<S, K>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone,
    K: KeyExtractor,
    ResBody: Body<Data: From<Vec<u8>>>,
{
    type Response = Response<ResponseBody<ResBody>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, S::Future, ReqBody, ResBody, K>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        match self.gate.admit(&HttpRequest(&request)) {
            Admission::Exempt => ResponseFuture::exempt(self.inner.call(request)),
            Admission::TurnedAway(denial) => {
                self.release();
                ResponseFuture::turned_away(response::from_denial(denial))
            }
            // A store in memory has decided: there is nothing to wait for, and nothing to hold.
            Admission::Asked { decision: MaybeReady::Ready(Some(decision)), caller } => {
                if !decision.is_forwarded() {
                    self.release();
                }
                ResponseFuture::decided(&mut self.inner, request, &self.gate, decision, &caller)
            }
            Admission::Asked { decision, caller } => {
                // The instance that is ready is this one, not its clone:
                // https://docs.rs/tower-service/latest/tower_service/trait.Service.html#be-careful-when-cloning-inner-services
                let clone = self.inner.clone();
                let inner = std::mem::replace(&mut self.inner, clone);
                ResponseFuture::checking(inner, request, Arc::clone(&self.gate), decision, caller)
            }
        }
    }
}

impl<S: Clone, K> RateLimit<S, K> {
    /// Gives back what the readiness of the inner service holds, such as a place under a
    /// concurrency limit: it is not going to be called, and nobody may call us for a long time.
    fn release(&mut self) {
        self.inner = self.inner.clone();
    }
}

impl<S: Clone, K> Clone for RateLimit<S, K> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), gate: Arc::clone(&self.gate) }
    }
}

impl<S: fmt::Debug, K> fmt::Debug for RateLimit<S, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit").field("inner", &self.inner).field("gate", &self.gate).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::net::SocketAddr;
    use std::pin::pin;
    use std::task::Waker;

    use http::header;
    use rl_core::{Limit, RateLimiter};
    use tower_layer::Layer;

    use super::*;
    use crate::RateLimitLayer;

    #[derive(Clone, Copy)]
    struct Handler;

    impl Service<Request<()>> for Handler {
        type Response = Response<String>;
        type Error = Infallible;
        type Future = std::future::Ready<Result<Response<String>, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Request<()>) -> Self::Future {
            let response = Response::builder().header(header::CONTENT_TYPE, "text/plain");
            std::future::ready(Ok(response.body(String::new()).unwrap()))
        }
    }

    /// How often the allocator is asked by a request of a client that has asked before.
    fn allocations<S>(service: &mut S) -> u64
    where
        S: Service<Request<()>, Error = Infallible>,
    {
        let mut ask = || {
            let address: SocketAddr = "192.0.2.7:50000".parse().unwrap();
            let request = Request::builder().extension(address).body(()).unwrap();
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

    fn limited(max: u32, gate: impl FnOnce(Gate) -> Gate) -> RateLimit<Handler> {
        let limiter = RateLimiter::builder()
            .limit(Limit::per_second(max))
            .limit(Limit::per_day(5_000))
            .build()
            .unwrap();
        RateLimitLayer::new(gate(Gate::new(limiter))).layer(Handler)
    }

    /// Of what is added: the decision in the extensions of the request. The future and the headers need
    /// nothing.
    #[test]
    fn a_request_asks_the_allocator_once() {
        let mut limited = limited(100, |gate| gate.decision_in_response(false));
        assert_eq!(allocations(&mut limited) - allocations(&mut Handler), 1);
    }

    /// The response had no extensions before.
    #[test]
    fn a_decision_in_the_response_takes_three_more() {
        let (with, without) =
            (allocations(&mut limited(100, |gate| gate)), allocations(&mut Handler));
        assert_eq!(with - without, 4);
    }

    /// For the body, the headers and the index of their names, and the list of those that a denial adds.
    #[test]
    fn a_denial_asks_the_allocator_four_times() {
        let mut limited = limited(1, |gate| gate.decision_in_response(false));
        assert_eq!(allocations(&mut limited), 4);
    }
}
