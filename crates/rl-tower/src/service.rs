use std::task::{Context, Poll};

use http::{Request, Response};
use http_body::Body;
use rl_core::MaybeReady;
use rl_core::adapter::{Admission, HttpLimiter};
use tower_service::Service;

use crate::future::ResponseFuture;
use crate::request::{HttpExtensions, HttpRequest};
use crate::response::{self, ResponseBody};

/// A service behind a limiter, made by [`RateLimitLayer`](crate::RateLimitLayer).
#[derive(Clone, Debug)]
pub struct RateLimit<S> {
    inner: S,
    limiter: HttpLimiter,
}

impl<S> RateLimit<S> {
    pub(crate) const fn new(inner: S, limiter: HttpLimiter) -> Self {
        Self { inner, limiter }
    }

    /// Returns the inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Returns the inner service.
    pub const fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Returns the inner service, and discards the limiter.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for RateLimit<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone,
    ReqBody: Body + 'static,
    ResBody: Body<Data: From<Vec<u8>>>,
{
    type Response = Response<ResponseBody<ResBody>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, S::Future, ReqBody, ResBody>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<ReqBody>) -> Self::Future {
        let context = match self.limiter.admit(&HttpRequest(&request), request.extensions().get()) {
            Admission::Exempt => return ResponseFuture::calling(self.inner.call(request), None),
            Admission::Rejected(denial) => {
                release_readiness(&mut self.inner);
                return ResponseFuture::rejected(response::from_denial(denial));
            }
            Admission::Counted(context) => context,
        };
        let pending = match self.limiter.decide(&HttpRequest(&request), &context) {
            MaybeReady::Ready(Some(decision)) => {
                let mut extensions = HttpExtensions(request.extensions_mut());
                return match self.limiter.apply(decision, &context, &mut extensions) {
                    (counted, None) => {
                        ResponseFuture::calling(self.inner.call(request), Some(counted))
                    }
                    (counted, Some(denial)) => {
                        release_readiness(&mut self.inner);
                        ResponseFuture::rejected(response::denied(counted, denial))
                    }
                };
            }
            pending => pending,
        };
        // This instance is ready, but its clone may not be:
        // https://docs.rs/tower-service/latest/tower_service/trait.Service.html#be-careful-when-cloning-inner-services
        let clone = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, clone);
        ResponseFuture::pending(inner, request, self.limiter.clone(), pending, context)
    }
}

/// Releases resources that a ready service holds, such as a permit of a concurrency limit.
///
/// A denied request does not call the service, and the next request may arrive much later.
fn release_readiness<S: Clone>(service: &mut S) {
    *service = service.clone();
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

    impl Service<Request<String>> for Handler {
        type Response = Response<String>;
        type Error = Infallible;
        type Future = std::future::Ready<Result<Self::Response, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Request<String>) -> Self::Future {
            let response = Response::builder().header(header::CONTENT_TYPE, "text/plain");
            std::future::ready(Ok(response.body(String::new()).unwrap()))
        }
    }

    /// Returns the number of allocations for the second request of a client.
    fn allocations<S>(service: &mut S) -> u64
    where
        S: Service<Request<String>, Error = Infallible>,
    {
        let mut call = || {
            let address: SocketAddr = "192.0.2.7:50000".parse().unwrap();
            let request = Request::builder().extension(address).body(String::new()).unwrap();
            let counted = allocation_counter::measure(|| {
                let future = pin!(service.call(request));
                let polled = future.poll(&mut Context::from_waker(Waker::noop()));
                assert!(polled.is_ready(), "the store is in memory");
            });
            counted.count_total
        };
        call();
        call()
    }

    fn layer(max: u32) -> RateLimitLayer {
        let limiter = RateLimiter::builder()
            .limit(Limit::per_second(max))
            .limit(Limit::per_day(5_000))
            .build()
            .unwrap();
        RateLimitLayer::new(limiter)
    }

    /// The only allocation is the decision in the extensions of the request.
    #[test]
    fn an_allowed_request_allocates_once() {
        let mut limited = layer(100).layer(Handler);
        assert_eq!(allocations(&mut limited) - allocations(&mut Handler), 1);
    }

    /// The first one holds a copy of the decision until the response is there. The extensions of
    /// the response were empty, so they allocate a map, its table, and a box for the decision.
    #[test]
    fn a_decision_in_the_response_needs_four_more_allocations() {
        let limited = allocations(&mut layer(100).expose_decision().layer(Handler));
        assert_eq!(limited - allocations(&mut Handler), 5);
    }

    /// The allocations are the body, the headers, the index of their names, and the list of headers
    /// in the denial.
    #[test]
    fn a_denied_request_allocates_four_times() {
        let mut limited = layer(1).layer(Handler);
        assert_eq!(allocations(&mut limited), 4);
    }
}
