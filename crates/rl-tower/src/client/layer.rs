use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rl_core::key::RequestInfo;
use rl_core::time::Clock;
use rl_core::{Cost, RateLimiter, Subject};
use tower_layer::Layer;

use super::service::Throttle;
use super::settings::Settings;

/// Paces the calls of a client.
///
/// Clones share the limiter and what they learn of destinations, and so do the services that the
/// layer creates. A setting changes only the clone on which it is set. The [module](super) has an
/// example, and describes the path of a call.
#[derive(Clone)]
pub struct ThrottleLayer {
    settings: Arc<Settings>,
}

impl ThrottleLayer {
    /// Creates a layer that counts calls by the host of their URI, and lets up to 1 000 calls to
    /// each host wait for 10 seconds.
    ///
    /// The limits are those of the limiter, or of its source for this subject; its rules do not
    /// apply. A limiter that counts clients too needs another
    /// [namespace](rl_core::RateLimiterBuilder::namespace).
    #[must_use]
    pub fn new(limiter: RateLimiter) -> Self {
        Self { settings: Arc::new(Settings::new(limiter)) }
    }

    /// Sets the function that returns the subject of a call. Defaults to the host of its URI, in
    /// the realm `host`. All calls whose URI has no host count together, such as those that a
    /// client of tonic hands to its channel.
    ///
    /// ```
    /// use rl_tower::Subject;
    /// use rl_tower::client::ThrottleLayer;
    /// # use rl_tower::{Limit, RateLimiter};
    ///
    /// # let limiter = RateLimiter::builder().limit(Limit::per_second(10)).build()?;
    /// // One partner with many hosts.
    /// let layer = ThrottleLayer::new(limiter).key(|_| Subject::consumer("acme"));
    /// # Ok::<(), rl_tower::BuildError>(())
    /// ```
    #[must_use]
    pub fn key(self, key: impl Fn(&dyn RequestInfo) -> Subject + Send + Sync + 'static) -> Self {
        self.set(|settings| settings.key = Some(Arc::new(key)))
    }

    /// Sets the function that returns the cost of a call. Defaults to one unit.
    #[must_use]
    pub fn cost(self, cost: impl Fn(&dyn RequestInfo) -> Cost + Send + Sync + 'static) -> Self {
        self.set(|settings| settings.cost = Some(Arc::new(cost)))
    }

    /// Sets the longest time that a call waits, and the most calls to one destination that wait, as
    /// [`LimiterRequest::wait`](rl_core::LimiterRequest::wait) does.
    #[must_use]
    pub fn wait(self, at_most: Duration, queue: usize) -> Self {
        self.set(|settings| (settings.at_most, settings.queue) = (at_most, queue))
    }

    /// Sets the longest pause that a response can cause. Defaults to an hour. With zero, responses
    /// cause none.
    #[must_use]
    pub fn max_pause(self, max_pause: Duration) -> Self {
        self.set(|settings| settings.max_pause = max_pause)
    }

    /// Rejects calls to a destination that rejects calls itself, before they are sent. By default
    /// every call is sent.
    ///
    /// This is the client-side throttling of Google's *Site Reliability Engineering*: over the last
    /// two minutes, a call is rejected with the probability
    /// (`requests` − 2 × `accepts`) / (`requests` + 1), or never if that is negative. A response
    /// with 429, 503 or the gRPC status 8 or 14, and a call that fails without a response, is not
    /// an accept. A call that the layer has rejected is a request too.
    #[must_use]
    pub fn adaptive(self) -> Self {
        self.set(|settings| settings.adaptive = Some(Arc::default()))
    }

    /// Sets the clock for the two minutes of [`adaptive`](Self::adaptive), and for points in time
    /// in responses without a `Date`. Defaults to the [`SystemClock`](rl_core::time::SystemClock).
    #[must_use]
    pub fn clock(self, clock: impl Clock) -> Self {
        self.set(|settings| settings.clock = Arc::new(clock))
    }

    fn set(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(Arc::make_mut(&mut self.settings));
        self
    }
}

impl<S> Layer<S> for ThrottleLayer {
    type Service = Throttle<S>;

    fn layer(&self, inner: S) -> Throttle<S> {
        Throttle::new(inner, Arc::clone(&self.settings))
    }
}

impl fmt::Debug for ThrottleLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.settings.fmt(f)
    }
}
