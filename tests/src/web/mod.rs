//! Applications behind limiters, served by axum and by actix-web, and what clients see of them.
//!
//! Both [`Target`]s serve the same application, so that one contract can be read of both:
//!
//! | route | answer |
//! |---|---|
//! | `/`, `/users/{id}`, `/health` with any method | what the handler finds in the request's extensions, in the words of [`describe`] |
//! | `POST /echo` | the body of the request |
//! | `/costs/{units}` | adds this number of units to the cost |
//! | `/fails` | an error of the server |
//! | `/panics` | nothing: the handler panics |
//! | `/waits` | waits for a [cue](Site::cue) |
//! | `/streams` | as `/costs/4`; a word at once, and a second one after a [cue](Site::cue) |
//!
//! Around the limiters stands what services have there: an authentication that believes the header
//! `x-consumer`, and leaves a [`Subject`](rl_core::Subject) for the limiters. It reports in the header
//! `x-outer-sees` which decision the limiters leave in the response's extensions for outer layers.

pub mod actix;
pub mod axum;
mod client;
mod raw;

use std::convert::Infallible;
use std::fmt::{self, Write};
use std::future::ready;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

pub use actix::Actix;
pub use axum::Axum;
pub use client::{Answer, Fetch, client};
use futures::stream::{self, Stream, StreamExt};
pub use raw::statuses;
use reqwest::{Client, Method, RequestBuilder};
use rl_core::adapter::HttpLimiter;
use rl_core::key::RequestInfo;
use rl_core::time::{ManualClock, Timestamp};
use rl_core::{Decision, MemoryStore, RateLimiter, RateLimiterBuilder};
use tokio::sync::Semaphore;

/// A framework whose adapter is under test.
pub trait Target {
    /// Serves the application behind at most three limiters, the outermost first.
    fn serve(limiters: Vec<HttpLimiter>) -> Site;

    /// Returns the value of an earlier layer in the request's extensions.
    fn extension<T: Send + Sync + 'static>(request: &dyn RequestInfo) -> Option<&T>;
}

/// A server on a port of its own, until it is dropped.
#[derive(Debug)]
pub struct Site {
    address: SocketAddr,
    client: Client,
    stage: Arc<Stage>,
    _stop: Stop,
}

/// State that the handlers of an application share with its test.
#[derive(Debug)]
pub struct Stage {
    handled: AtomicUsize,
    cues: Semaphore,
}

impl Default for Stage {
    fn default() -> Self {
        Self { handled: AtomicUsize::default(), cues: Semaphore::new(0) }
    }
}

impl Stage {
    fn enter(&self) {
        self.handled.fetch_add(1, Ordering::SeqCst);
    }

    async fn cue(&self) {
        self.cues.acquire().await.expect("it is never closed").forget();
    }

    /// The body of `/streams`.
    fn words(self: Arc<Self>) -> impl Stream<Item = Result<&'static str, Infallible>> {
        let last = async move {
            self.cue().await;
            Ok("last")
        };
        stream::once(ready(Ok("first "))).chain(stream::once(last))
    }
}

/// Ends the server when it is dropped.
type Stop = Box<dyn fmt::Debug + Send + Sync>;

impl Site {
    fn new(listener: &TcpListener, stage: Arc<Stage>, stop: Stop) -> Self {
        let address = listener.local_addr().expect("it is bound");
        Self { address, client: client(), stage, _stop: stop }
    }

    /// How many requests have reached a handler of the application.
    #[must_use]
    pub fn handled(&self) -> usize {
        self.stage.handled.load(Ordering::SeqCst)
    }

    /// Lets one handler go on that waits, or will.
    pub fn cue(&self) {
        self.stage.cues.add_permits(1);
    }

    /// Waits until this number of requests has reached a handler.
    ///
    /// # Panics
    ///
    /// Panics if that takes unreasonably long.
    pub async fn reached(&self, handled: usize) {
        eventually(|| async { self.handled() >= handled }).await;
    }

    /// The address of `path` on this server.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// A request with this method.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, self.url(path))
    }

    /// A `GET` request.
    pub fn get(&self, path: &str) -> RequestBuilder {
        self.request(Method::GET, path)
    }

    /// A `POST` request.
    pub fn post(&self, path: &str) -> RequestBuilder {
        self.request(Method::POST, path)
    }
}

/// A clock that shows 2026-01-01T00:00:00Z until it is moved.
#[must_use]
pub fn new_year() -> Arc<ManualClock> {
    Arc::new(ManualClock::at(Timestamp::from_secs(1_767_225_600)))
}

/// A limiter with counters in memory, on `clock`, and with these limits, such as `10/second`.
///
/// # Panics
///
/// Panics if they are no limits.
pub fn limiter(clock: &Arc<ManualClock>, limits: &[&str]) -> RateLimiter {
    let store = MemoryStore::builder().clock(Arc::clone(clock)).build();
    let builder = RateLimiter::builder().store(store);
    let limits = limits.iter().map(|limit| limit.parse().expect("a limit"));
    limits.fold(builder, RateLimiterBuilder::limit).build().expect("a policy")
}

/// A listener on a free port.
fn listener() -> TcpListener {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port")
}

/// Waits until it is so.
///
/// # Panics
///
/// Panics if that takes unreasonably long.
pub async fn eventually<F: Future<Output = bool>>(is_so: impl Fn() -> F) {
    let asking = async {
        while !is_so().await {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), asking).await.expect("it to be so in the end");
}

/// A decision in words: `minute 1/3` for each limit, those of the limiter around it after a `<`.
#[must_use]
pub fn describe(decision: Option<&Decision>) -> String {
    let Some(decision) = decision else {
        return "no decision".to_owned();
    };
    let mut words = if decision.is_degraded() { "degraded ".to_owned() } else { String::new() };
    words.push_str(decision.origin().as_str());
    for limit in decision.limits() {
        write!(words, " {} {}/{}", limit.name(), limit.used(), limit.max())
            .expect("a String takes all text");
    }
    if let Some(outer) = decision.outer() {
        words.push_str(" < ");
        words.push_str(&describe(Some(outer)));
    }
    words
}
