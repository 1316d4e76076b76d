use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use actix_web::HttpMessage;
use actix_web::body::MessageBody;
use actix_web::dev::{Service, ServiceRequest, ServiceResponse};
use pin_project_lite::pin_project;
use rl_core::gate::{Caller, ResponseRules};
use rl_core::key::KeyExtractor;
use rl_core::{Decision, Gate, MaybeReady, Permit};

use crate::response::{self, ResponseBody};

pin_project! {
    /// Response future of [`RateLimitMiddleware`](crate::RateLimitMiddleware).
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<S, F, B, K> {
        #[pin]
        state: State<S, F, B, K>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, F, B, K> {
        // A store elsewhere is deciding. In a box: who has a store in memory would move its room about with
        // each request.
        Checking { checking: Option<Box<Checking<S, K>>> },
        // The inner service is answering; if the request was counted, its response gets the headers.
        Calling { #[pin] answer: F, counted: Option<Counted> },
        // Turned away: the response waits to be taken.
        TurnedAway { response: Option<ServiceResponse<ResponseBody<B>>> },
    }
}

/// The service, and what it will be called with.
struct Checking<S, K> {
    decision: MaybeReady<Decision>,
    service: Rc<S>,
    request: ServiceRequest,
    gate: Arc<Gate<K>>,
    caller: Caller,
}

/// What a request carries that was counted and goes on.
struct Counted {
    // Taken where it stands: it is large.
    decision: Option<Decision>,
    rules: ResponseRules,
    permit: Option<Permit>,
}

impl Counted {
    /// Tells it in the response, and returns what its body has to hold.
    fn tell<B>(&mut self, response: &mut ServiceResponse<B>) -> Option<Permit> {
        let Self { decision, rules, permit } = self;
        if let Some(permit) = permit {
            response::read_cost(response, rules, permit);
        }
        response::tell(response.response_mut(), rules, decision);
        permit.take()
    }
}

impl<S, F, B, K> ResponseFuture<S, F, B, K> {
    pub(crate) fn checking(
        service: Rc<S>,
        request: ServiceRequest,
        gate: Arc<Gate<K>>,
        decision: MaybeReady<Decision>,
        caller: Caller,
    ) -> Self {
        let checking = Box::new(Checking { decision, service, request, gate, caller });
        Self { state: State::Checking { checking: Some(checking) } }
    }

    pub(crate) const fn exempt(answer: F) -> Self {
        Self { state: State::Calling { answer, counted: None } }
    }

    pub(crate) const fn turned_away(response: ServiceResponse<ResponseBody<B>>) -> Self {
        Self { state: State::TurnedAway { response: Some(response) } }
    }

    pub(crate) fn decided(
        service: &S,
        request: ServiceRequest,
        gate: &Gate<K>,
        decision: Decision,
        caller: &Caller,
    ) -> Self
    where
        S: Service<ServiceRequest, Future = F>,
        K: KeyExtractor,
    {
        let outer = if caller.is_nested() { request.extensions().get().cloned() } else { None };
        let decision = caller.mark(decision, outer);
        if !decision.is_forwarded() {
            let mut response = response::from_denial(gate.denial(&decision, caller));
            response::tell(&mut response, gate.response_rules(), &mut Some(decision));
            let response = request.into_response(response);
            return Self::turned_away(response);
        }
        let mut extensions = request.extensions_mut();
        let outer = if caller.is_nested() {
            // The one inside of it takes its place.
            extensions.remove::<Decision>();
            extensions.remove()
        } else {
            None
        };
        let permit = gate.permit(&decision, caller, outer);
        extensions.get_or_insert_with(|| decision.clone());
        if let Some(permit) = &permit {
            extensions.insert(permit.clone());
        }
        drop(extensions);
        let answer = service.call(request);
        let rules = gate.response_rules().clone();
        let counted = Some(Counted { decision: Some(decision), rules, permit });
        Self { state: State::Calling { answer, counted } }
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
            match this.state.as_mut().project() {
                StateProj::Checking { checking } => {
                    let pending = checking.as_mut().expect("a store is asked");
                    let decision = ready!(Pin::new(&mut pending.decision).poll(cx));
                    let checking = checking.take().expect("it was there");
                    let Checking { service, request, gate, caller, .. } = *checking;
                    let next = Self::decided(&*service, request, &gate, decision, &caller);
                    this.state.set(next.state);
                }
                StateProj::Calling { answer, counted } => {
                    let mut answered = ready!(answer.poll(cx));
                    let permit = match (&mut answered, counted.as_mut()) {
                        (Ok(response), Some(counted)) => counted.tell(response),
                        _ => None,
                    };
                    *counted = None;
                    return Poll::Ready(answered.map(|answer| response::holding(permit, answer)));
                }
                StateProj::TurnedAway { response } => {
                    let response = response.take().expect("polled again after it was ready");
                    return Poll::Ready(Ok(response));
                }
            }
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
