use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use http_body::Body;
use rl_core::key::RequestInfo;
use rl_core::time::{Clock, SystemClock};
use rl_core::{Cost, RateLimiter, Realm, Subject};

use super::adaptive::Adaptive;
use crate::request::HttpRequest;

type Key = Arc<dyn Fn(&dyn RequestInfo) -> Subject + Send + Sync>;
type CostOf = Arc<dyn Fn(&dyn RequestInfo) -> Cost + Send + Sync>;

/// The limiter of a client, and its settings.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) limiter: RateLimiter,
    pub(super) key: Option<Key>,
    pub(super) cost: Option<CostOf>,
    pub(super) at_most: Duration,
    pub(super) queue: usize,
    pub(super) max_pause: Duration,
    pub(super) adaptive: Option<Arc<Adaptive>>,
    pub(super) clock: Arc<dyn Clock>,
}

impl Settings {
    pub(super) fn new(limiter: RateLimiter) -> Self {
        Self {
            limiter,
            key: None,
            cost: None,
            at_most: Duration::from_secs(10),
            queue: 1_000,
            max_pause: Duration::from_secs(3_600),
            adaptive: None,
            clock: Arc::new(SystemClock),
        }
    }

    /// Returns the subject and the cost of a call.
    pub(super) fn counted<B: Body + 'static>(&self, request: &Request<B>) -> (Subject, Cost) {
        let info = HttpRequest(request);
        let subject = match &self.key {
            Some(key) => key(&info),
            None => request.uri().host().map_or_else(Subject::global, |host| {
                let realm = Realm::custom("host").expect("a valid name of a realm");
                Subject::new(realm, &host.to_ascii_lowercase())
            }),
        };
        (subject, self.cost.as_ref().map_or(Cost::ONE, |cost| cost(&info)))
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThrottleLayer")
            .field("limiter", &self.limiter)
            .field("at_most", &self.at_most)
            .field("queue", &self.queue)
            .field("max_pause", &self.max_pause)
            .field("is_adaptive", &self.adaptive.is_some())
            .finish_non_exhaustive()
    }
}
