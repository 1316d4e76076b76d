use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use actix_web::HttpMessage;
use actix_web::body::{EitherBody, MessageBody};
use actix_web::dev::{Service, ServiceRequest, ServiceResponse};
use pin_project_lite::pin_project;
use rl_core::gate::Caller;
use rl_core::key::KeyExtractor;
use rl_core::{Decision, Eventual, Gate};

use crate::response;

pin_project! {
    /// Response future of [`RateLimitMiddleware`](crate::RateLimitMiddleware).
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<S, F, B, K> {
        #[pin]
        state: State<F, B, K>,
        // While a store elsewhere decides: the service, and what it will be called with.
        waiting: Option<Waiting<S>>,
    }
}

struct Waiting<S> {
    service: Rc<S>,
    request: ServiceRequest,
    caller: Caller,
}

pin_project! {
    #[project = StateProj]
    pub(crate) enum State<F, B, K> {
        // The store is deciding.
        Checking { decision: Eventual<Decision>, gate: Arc<Gate<K>> },
        // Allowed: the inner service is answering; its response gets the headers.
        Calling { #[pin] answer: F, decision: Option<(Decision, Arc<Gate<K>>)> },
        // Turned away: the response waits to be taken.
        TurnedAway { response: Option<ServiceResponse<EitherBody<B>>> },
    }
}

impl<S, F, B, K> ResponseFuture<S, F, B, K> {
    pub(crate) fn checking(
        service: Rc<S>,
        request: ServiceRequest,
        gate: Arc<Gate<K>>,
        decision: Eventual<Decision>,
        caller: Caller,
    ) -> Self {
        let waiting = Some(Waiting { service, request, caller });
        Self { state: State::Checking { decision, gate }, waiting }
    }
}

/// Nothing waits for the store.
impl<S, F, B, K> From<State<F, B, K>> for ResponseFuture<S, F, B, K> {
    fn from(state: State<F, B, K>) -> Self {
        Self { state, waiting: None }
    }
}

impl<F, B, K> State<F, B, K> {
    pub(crate) const fn exempt(answer: F) -> Self {
        Self::Calling { answer, decision: None }
    }

    pub(crate) const fn turned_away(response: ServiceResponse<EitherBody<B>>) -> Self {
        Self::TurnedAway { response: Some(response) }
    }

    pub(crate) fn decided<S>(
        service: &S,
        request: ServiceRequest,
        gate: &Arc<Gate<K>>,
        decision: Decision,
        caller: &Caller,
    ) -> Self
    where
        S: Service<ServiceRequest, Future = F>,
        K: KeyExtractor,
    {
        if decision.is_allowed() {
            let outer = request.extensions_mut().remove::<Decision>();
            request.extensions_mut().insert(decision.clone().inside(outer));
            let answer = service.call(request);
            Self::Calling { answer, decision: Some((decision, Arc::clone(gate))) }
        } else {
            let mut response = response::from_denial(gate.denial(&decision, caller));
            response::tell(&mut response, gate, decision);
            let response = request.into_response(response).map_into_right_body();
            Self::TurnedAway { response: Some(response) }
        }
    }
}

impl<S, F, B, K, E> Future for ResponseFuture<S, F, B, K>
where
    S: Service<ServiceRequest, Future = F>,
    F: Future<Output = Result<ServiceResponse<B>, E>>,
    B: MessageBody,
    K: KeyExtractor,
{
    type Output = Result<ServiceResponse<EitherBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let next = match this.state.as_mut().project() {
                StateProj::Checking { decision, gate } => {
                    let decision = ready!(Pin::new(decision).poll(cx));
                    let Waiting { service, request, caller } =
                        this.waiting.take().expect("it waits while the store decides");
                    State::decided(&*service, request, gate, decision, &caller)
                }
                StateProj::Calling { answer, decision } => {
                    let mut response = ready!(answer.poll(cx))?;
                    if let Some((decision, gate)) = decision.take() {
                        response::tell(response.response_mut(), &gate, decision);
                    }
                    return Poll::Ready(Ok(response.map_into_left_body()));
                }
                StateProj::TurnedAway { response } => {
                    let response = response.take().expect("polled again after it was ready");
                    return Poll::Ready(Ok(response));
                }
            };
            this.state.set(next);
        }
    }
}

impl<S, F, B, K> fmt::Debug for ResponseFuture<S, F, B, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.state {
            State::Checking { .. } => "ResponseFuture::Checking",
            State::Calling { .. } => "ResponseFuture::Calling",
            State::TurnedAway { .. } => "ResponseFuture::TurnedAway",
        })
    }
}
