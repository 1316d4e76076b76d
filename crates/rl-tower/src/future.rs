use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use rl_core::gate::{Caller, ResponseRules};
use rl_core::key::KeyExtractor;
use rl_core::{Decision, Gate, MaybeReady, Permit};
use tower_service::Service;

use crate::response::{self, ResponseBody};

pin_project! {
    /// Response future of [`RateLimit`](crate::RateLimit).
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<S, F, ReqBody, ResBody, K> {
        #[pin]
        state: State<S, F, ReqBody, ResBody, K>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, F, ReqBody, ResBody, K> {
        // A store elsewhere is deciding. In a box: who has a store in memory would move its room about with
        // each request.
        Checking { checking: Option<Box<Checking<S, ReqBody, K>>> },
        // The inner service is answering; if the request was counted, its response gets the headers.
        Calling { #[pin] answer: F, counted: Option<Counted> },
        // Turned away: the response waits to be taken.
        TurnedAway { response: Option<Response<ResponseBody<ResBody>>> },
    }
}

/// The *ready* service, and what it will be called with.
struct Checking<S, ReqBody, K> {
    decision: MaybeReady<Decision>,
    inner: S,
    request: Request<ReqBody>,
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
    fn tell<B>(&mut self, response: &mut Response<B>) -> Option<Permit> {
        let Self { decision, rules, permit } = self;
        if let Some(permit) = permit {
            response::read_cost(response, rules, permit);
        }
        response::tell(response, rules, decision);
        permit.take()
    }
}

impl<S, F, ReqBody, ResBody, K> ResponseFuture<S, F, ReqBody, ResBody, K> {
    pub(crate) fn checking(
        inner: S,
        request: Request<ReqBody>,
        gate: Arc<Gate<K>>,
        decision: MaybeReady<Decision>,
        caller: Caller,
    ) -> Self {
        let checking = Box::new(Checking { decision, inner, request, gate, caller });
        Self { state: State::Checking { checking: Some(checking) } }
    }

    pub(crate) const fn exempt(answer: F) -> Self {
        Self { state: State::Calling { answer, counted: None } }
    }

    pub(crate) const fn turned_away(response: Response<ResponseBody<ResBody>>) -> Self {
        Self { state: State::TurnedAway { response: Some(response) } }
    }

    pub(crate) fn decided(
        inner: &mut S,
        mut request: Request<ReqBody>,
        gate: &Gate<K>,
        decision: Decision,
        caller: &Caller,
    ) -> Self
    where
        S: Service<Request<ReqBody>, Future = F>,
        K: KeyExtractor,
    {
        let extensions = request.extensions_mut();
        let outer = if caller.is_nested() { extensions.get().cloned() } else { None };
        let decision = caller.mark(decision, outer);
        if !decision.is_forwarded() {
            let mut response = response::from_denial(gate.denial(&decision, caller));
            response::tell(&mut response, gate.response_rules(), &mut Some(decision));
            return Self::turned_away(response);
        }
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
        let answer = inner.call(request);
        let rules = gate.response_rules().clone();
        let counted = Some(Counted { decision: Some(decision), rules, permit });
        Self { state: State::Calling { answer, counted } }
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
            match this.state.as_mut().project() {
                StateProj::Checking { checking } => {
                    let pending = checking.as_mut().expect("a store is asked");
                    let decision = ready!(Pin::new(&mut pending.decision).poll(cx));
                    let checking = checking.take().expect("it was there");
                    let Checking { mut inner, request, gate, caller, .. } = *checking;
                    let next = Self::decided(&mut inner, request, &gate, decision, &caller);
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

impl<S, F, ReqBody, ResBody, K> std::fmt::Debug for ResponseFuture<S, F, ReqBody, ResBody, K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.state {
            State::Checking { .. } => "ResponseFuture::Checking",
            State::Calling { .. } => "ResponseFuture::Calling",
            State::TurnedAway { .. } => "ResponseFuture::TurnedAway",
        })
    }
}
