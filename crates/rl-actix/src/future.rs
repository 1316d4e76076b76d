use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use actix_web::HttpMessage;
use actix_web::body::MessageBody;
use actix_web::dev::{Service, ServiceRequest, ServiceResponse};
use pin_project_lite::pin_project;
use rl_core::gate::Caller;
use rl_core::key::KeyExtractor;
use rl_core::{Decision, Eventual, Gate, Permit};

use crate::response::{self, ResponseBody};

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
        // The inner service is answering; if the request was counted, its response gets the headers.
        Calling { #[pin] answer: F, counted: Option<Counted<K>> },
        // Turned away: the response waits to be taken.
        TurnedAway { response: Option<ServiceResponse<ResponseBody<B>>> },
    }
}

/// What a request carries that was counted and goes on.
pub(crate) struct Counted<K> {
    decision: Decision,
    gate: Arc<Gate<K>>,
    permit: Option<Permit>,
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
        Self::Calling { answer, counted: None }
    }

    pub(crate) const fn turned_away(response: ServiceResponse<ResponseBody<B>>) -> Self {
        Self::TurnedAway { response: Some(response) }
    }

    pub(crate) fn decided<S>(
        service: &S,
        request: ServiceRequest,
        gate: &Arc<Gate<K>>,
        decision: Decision,
        caller: Caller,
    ) -> Self
    where
        S: Service<ServiceRequest, Future = F>,
        K: KeyExtractor,
    {
        let decision = decision.inside(request.extensions().get().cloned());
        if decision.lets_pass() {
            let permit = gate.permit(&decision, caller, request.extensions_mut().remove());
            request.extensions_mut().insert(decision.clone());
            if let Some(permit) = &permit {
                request.extensions_mut().insert(permit.clone());
            }
            let answer = service.call(request);
            Self::Calling {
                answer,
                counted: Some(Counted { decision, gate: Arc::clone(gate), permit }),
            }
        } else {
            let mut response = response::from_denial(gate.denial(&decision, &caller));
            response::tell(&mut response, gate, decision);
            Self::turned_away(request.into_response(response))
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
    type Output = Result<ServiceResponse<ResponseBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let next = match this.state.as_mut().project() {
                StateProj::Checking { decision, gate } => {
                    let decision = ready!(Pin::new(decision).poll(cx));
                    let Waiting { service, request, caller } =
                        this.waiting.take().expect("it waits while the store decides");
                    State::decided(&*service, request, gate, decision, caller)
                }
                StateProj::Calling { answer, counted } => {
                    let answered = ready!(answer.poll(cx));
                    let Some(Counted { decision, gate, permit }) = counted.take() else {
                        return Poll::Ready(answered.map(response::uncounted));
                    };
                    let response = response::counted(answered?, &gate, decision, permit);
                    return Poll::Ready(Ok(response));
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
