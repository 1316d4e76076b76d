//! The settings of a limiter in front of a web service.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::response::ResponseSettings;
use crate::denial::{Denial, DenialBody, DenialReason};
use crate::key::{ClientAddress, KeyExtractor, RequestInfo};
use crate::limiter::RateLimiter;
use crate::model::{Cost, Subject};

/// How requests without a key are handled.
///
/// Requests with an [ambiguous](crate::key::AmbiguousKey) key are always rejected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MissingKey {
    /// Rejects the request with 403.
    #[default]
    Reject,
    /// Allows the request without counting it.
    Allow,
    /// Counts all such requests together, as one subject in the realm `unknown`.
    Share,
}

/// How requests over their limits are handled.
///
/// The `deny_with` setting of the adapters replaces the response to a rejected request. The
/// `on_over_limit_by` setting chooses a variant for each request.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use rl_core::adapter::HttpLimiter;
/// use rl_core::{Limit, OverLimit, RateLimiter};
///
/// let limiter = RateLimiter::builder().limit(Limit::per_second(10)).build()?;
/// let limiter = HttpLimiter::new(limiter)
///     .on_over_limit(OverLimit::Wait { at_most: Duration::from_secs(2), queue: 100 });
/// # Ok::<(), rl_core::BuildError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OverLimit {
    /// Rejects the request.
    #[default]
    Reject,
    /// Lets the request wait, behind earlier requests of its subject, until the limits allow it.
    ///
    /// The request is rejected if the wait would be too long or the queue is full. If its client
    /// disconnects, the request leaves the queue.
    /// [`RateLimiter::check_waiting`](crate::RateLimiter::check_waiting) has the details. In tests,
    /// a [`TokioClock`](crate::time::TokioClock) makes the waits take no real time.
    Wait {
        /// The longest time that a request may wait.
        at_most: Duration,
        /// The maximum number of waiting requests of one subject.
        queue: usize,
    },
    /// Passes the request on without charging it, so that it gets a reduced response.
    ///
    /// A handler can check whether the [`Decision`](crate::Decision) in the request's extensions
    /// [is degraded](crate::Decision::is_degraded). Alternatively, `Degrade` of the adapters calls
    /// another service in place of the handler.
    Degrade,
}

/// The subject that a request was counted under, in the extensions of the request.
///
/// The adapters insert it if `expose_subject` is set. If limiters are nested, the innermost one
/// sets the final value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountedSubject(pub Subject);

type Predicate = Arc<dyn Fn(&dyn RequestInfo) -> bool + Send + Sync>;
type RequestCost = Arc<dyn Fn(&dyn RequestInfo) -> Cost + Send + Sync>;
type ChooseOverLimit = Arc<dyn Fn(&dyn RequestInfo) -> OverLimit + Send + Sync>;
type Responder = Arc<dyn Fn(DenialReason<'_>, Denial) -> Denial + Send + Sync>;

/// The limiter and its settings.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) limiter: RateLimiter,
    pub(super) key: Arc<dyn KeyExtractor>,
    pub(super) on_missing_key: MissingKey,
    pub(super) exempt: Vec<Predicate>,
    pub(super) exempts_preflights: bool,
    pub(super) cost: Option<RequestCost>,
    pub(super) is_metered: bool,
    pub(super) exposes_subject: bool,
    pub(super) on_over_limit: Option<ChooseOverLimit>,
    pub(super) response: ResponseSettings,
    pub(super) denial_body: DenialBody,
    pub(super) responder: Option<Responder>,
    // All clones share the flag, so that a misconfiguration is logged once.
    pub(super) has_logged_missing_key: Arc<AtomicBool>,
    pub(super) has_logged_ambiguous_key: Arc<AtomicBool>,
}

impl Settings {
    /// Creates the default settings.
    pub(super) fn new(limiter: RateLimiter) -> Self {
        Self {
            limiter,
            key: Arc::new(ClientAddress::default()),
            on_missing_key: MissingKey::default(),
            exempt: Vec::new(),
            exempts_preflights: false,
            cost: None,
            is_metered: false,
            exposes_subject: false,
            on_over_limit: None,
            response: ResponseSettings::default(),
            denial_body: DenialBody::default(),
            responder: None,
            has_logged_missing_key: Arc::default(),
            has_logged_ambiguous_key: Arc::default(),
        }
    }
}
