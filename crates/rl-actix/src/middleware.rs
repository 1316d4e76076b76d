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
use rl_core::{Eventual, Gate};

use crate::future::{ResponseFuture, State};
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
            Admission::Exempt => State::exempt(self.service.call(request)).into(),
            Admission::TurnedAway(denial) => {
                let response = response::from_denial(denial);
                State::turned_away(request.into_response(response)).into()
            }
            // A store in memory has decided: there is nothing to wait for, and nothing to hold.
            Admission::Asked { decision: Eventual::Ready(Some(decision)), caller } => {
                State::decided(&*self.service, request, &self.gate, decision, caller).into()
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
