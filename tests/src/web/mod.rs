//! Applications behind limiters, served by axum and by actix-web, and clients for them.
//!
//! Both [`Target`]s serve the same application, so that one contract applies to both:
//!
//! | route | response |
//! |---|---|
//! | `/`, `/users/{id}`, `/health` with any method | the decision in the request's extensions, in the format of [`describe`] |
//! | `GET /rate_limit` | the usage of the outermost limiter |
//! | `POST /echo` | the body of the request |
//! | `/costs/{units}` | adds this number of units to the cost |
//! | `/fails` | an error response of the handler |
//! | `/panics` | none, because the handler panics |
//! | `/waits` | waits for a [cue](Site::cue) |
//! | `/streams` | like `/costs/4`; one word immediately, and a second one after a [cue](Site::cue) |
//!
//! Like many services, the application has an authentication outside the limiters. It trusts the
//! header `x-consumer`, and leaves a [`Subject`](rl_core::Subject) for the limiters. The header
//! `x-outer-sees` reports the decision that the outermost limiter exposes.

pub mod actix;
pub mod axum;
mod client;
mod raw;

use std::convert::Infallible;
use std::fmt::{self, Write};
use std::future::ready;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::panic::Location;
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
use tokio::time::{MissedTickBehavior, interval};

/// The time limit for a condition that a test waits for. It only ends tests that hang, so it is
/// long enough for a busy machine.
pub const GIVE_UP: Duration = Duration::from_secs(120);

/// A framework whose adapter is under test.
pub trait Target {
    /// Serves the application behind at most three limiters, the outermost first.
    fn serve(limiters: Vec<HttpLimiter>) -> Site;

    /// Returns the value that an outer layer has put into the request's extensions, if there is
    /// one.
    fn extension<T: Send + Sync + 'static>(request: &dyn RequestInfo) -> Option<&T>;
}

/// A server on its own port, which runs until it is dropped.
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

    /// Returns the body of `/streams`.
    fn words(self: Arc<Self>) -> impl Stream<Item = Result<&'static str, Infallible>> {
        let last = async move {
            self.cue().await;
            Ok("last")
        };
        stream::once(ready(Ok("first "))).chain(stream::once(last))
    }
}

/// A value that stops the server when it is dropped.
type Stop = Box<dyn fmt::Debug + Send + Sync>;

impl Site {
    fn new(listener: &TcpListener, stage: Arc<Stage>, stop: Stop) -> Self {
        let address = listener.local_addr().expect("it is bound");
        Self { address, client: client(), stage, _stop: stop }
    }

    /// Returns how many requests have reached a handler of the application.
    #[must_use]
    pub fn handled(&self) -> usize {
        self.stage.handled.load(Ordering::SeqCst)
    }

    /// Permits one handler to continue: one that is waiting, or else the next one that waits.
    pub fn cue(&self) {
        self.stage.cues.add_permits(1);
    }

    /// Waits until this number of requests has reached a handler.
    ///
    /// # Panics
    ///
    /// Panics if that takes too long.
    pub async fn reached(&self, handled: usize) {
        eventually(|| async { self.handled() >= handled }).await;
    }

    /// Returns the URL of `path` on this server.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Returns a request with this method.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, self.url(path))
    }

    /// Returns a `GET` request.
    pub fn get(&self, path: &str) -> RequestBuilder {
        self.request(Method::GET, path)
    }

    /// Returns a `POST` request.
    pub fn post(&self, path: &str) -> RequestBuilder {
        self.request(Method::POST, path)
    }
}

/// Returns a clock that shows 2026-01-01T00:00:00Z until a test moves it.
#[must_use]
pub fn new_year() -> Arc<ManualClock> {
    Arc::new(ManualClock::at(Timestamp::from_secs(1_767_225_600)))
}

/// Returns a limiter in memory, on `clock`, with these limits, such as `10/second`.
///
/// # Panics
///
/// Panics if the limits are not valid.
pub fn limiter(clock: &Arc<ManualClock>, limits: &[&str]) -> RateLimiter {
    let store = MemoryStore::builder().clock(Arc::clone(clock)).build();
    let builder = RateLimiter::builder().store(store);
    let limits = limits.iter().map(|limit| limit.parse().expect("a limit"));
    limits.fold(builder, RateLimiterBuilder::limit).build().expect("a policy")
}

/// Returns a listener on a free port.
fn listener() -> TcpListener {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port")
}

/// Waits until the condition is met. Between two checks it leaves the processor to the servers and
/// tests that the condition waits for.
///
/// # Panics
///
/// Panics if that takes too long. The message names the caller.
#[track_caller]
pub fn eventually<F: Future<Output = bool>>(is_so: impl Fn() -> F) -> impl Future<Output = ()> {
    let caller = Location::caller();
    let asking = async move {
        let mut looks = interval(Duration::from_millis(1));
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !is_so().await {
            looks.tick().await;
        }
    };
    async move {
        let asked = tokio::time::timeout(GIVE_UP, asking).await;
        assert!(asked.is_ok(), "{caller}: the condition is not met after {GIVE_UP:?}");
    }
}

/// Describes a decision by its limits, each as in `minute 1/3`. The limits of an outer limiter come
/// after a `<`.
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
