use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use rl_core::gate::Caller;
use rl_core::key::KeyExtractor;
use rl_core::{Decision, Eventual, Gate, Permit};
use tower_service::Service;

use crate::response::{self, ResponseBody};

pin_project! {
    /// Response future of [`RateLimit`](crate::RateLimit).
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<S, F, ReqBody, ResBody, K> {
        #[pin]
        state: State<F, ResBody, K>,
        // While a store elsewhere decides: the *ready* service, and what it will be called with.
        waiting: Option<Waiting<S, ReqBody>>,
    }
}

struct Waiting<S, ReqBody> {
    inner: S,
    request: Request<ReqBody>,
    caller: Caller,
}

pin_project! {
    #[project = StateProj]
    pub(crate) enum State<F, ResBody, K> {
        // The store is deciding.
        Checking { decision: Eventual<Decision>, gate: Arc<Gate<K>> },
        // The inner service is answering; if the request was counted, its response gets the headers.
        Calling { #[pin] answer: F, counted: Option<Counted<K>> },
        // Turned away: the response waits to be taken.
        TurnedAway { response: Option<Response<ResponseBody<ResBody>>> },
    }
}

/// What a request carries that was counted and goes on.
pub(crate) struct Counted<K> {
    decision: Decision,
    gate: Arc<Gate<K>>,
    permit: Option<Permit>,
}

impl<S, F, ReqBody, ResBody, K> ResponseFuture<S, F, ReqBody, ResBody, K> {
    pub(crate) fn checking(
        inner: S,
        request: Request<ReqBody>,
        gate: Arc<Gate<K>>,
        decision: Eventual<Decision>,
        caller: Caller,
    ) -> Self {
        let waiting = Some(Waiting { inner, request, caller });
        Self { state: State::Checking { decision, gate }, waiting }
    }
}

/// Nothing waits for the store.
impl<S, F, ReqBody, ResBody, K> From<State<F, ResBody, K>>
    for ResponseFuture<S, F, ReqBody, ResBody, K>
{
    fn from(state: State<F, ResBody, K>) -> Self {
        Self { state, waiting: None }
    }
}

impl<F, ResBody, K> State<F, ResBody, K> {
    pub(crate) const fn exempt(answer: F) -> Self {
        Self::Calling { answer, counted: None }
    }

    pub(crate) const fn turned_away(response: Response<ResponseBody<ResBody>>) -> Self {
        Self::TurnedAway { response: Some(response) }
    }

    pub(crate) fn decided<S, ReqBody>(
        inner: &mut S,
        mut request: Request<ReqBody>,
        gate: &Arc<Gate<K>>,
        decision: Decision,
        caller: Caller,
    ) -> Self
    where
        S: Service<Request<ReqBody>, Future = F>,
        K: KeyExtractor,
    {
        let extensions = request.extensions_mut();
        let decision = decision.inside(extensions.get().cloned());
        if decision.lets_pass() {
            let permit = gate.permit(&decision, caller, extensions.remove());
            extensions.insert(decision.clone());
            if let Some(permit) = &permit {
                extensions.insert(permit.clone());
            }
            let answer = inner.call(request);
            Self::Calling {
                answer,
                counted: Some(Counted { decision, gate: Arc::clone(gate), permit }),
            }
        } else {
            let mut response = response::from_denial(gate.denial(&decision, &caller));
            response::tell(&mut response, gate, decision);
            Self::TurnedAway { response: Some(response) }
        }
    }
}

impl<S, F, ReqBody, ResBody, K, E> Future for ResponseFuture<S, F, ReqBody, ResBody, K>
where
    S: Service<Request<ReqBody>, Future = F>,
    F: Future<Output = Result<Response<ResBody>, E>>,
    K: KeyExtractor,
    ResBody: Body,
{
    type Output = Result<Response<ResponseBody<ResBody>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let next = match this.state.as_mut().project() {
                StateProj::Checking { decision, gate } => {
                    let decision = ready!(Pin::new(decision).poll(cx));
                    let Waiting { mut inner, request, caller } =
                        this.waiting.take().expect("it waits while the store decides");
                    State::decided(&mut inner, request, gate, decision, caller)
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

impl<S, F, ReqBody, ResBody, K> std::fmt::Debug for ResponseFuture<S, F, ReqBody, ResBody, K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.state {
            State::Checking { .. } => "ResponseFuture::Checking",
            State::Calling { .. } => "ResponseFuture::Calling",
            State::TurnedAway { .. } => "ResponseFuture::TurnedAway",
        })
    }
}
