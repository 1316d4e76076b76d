//! The settings of a limiter in front of a web service.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::response::ResponseSettings;
use crate::denial::{Denial, DenialBody, DenialReason};
use crate::key::{ClientAddress, KeyExtractor, KeySecret, RequestInfo};
use crate::limiter::RateLimiter;
use crate::model::Subject;
use crate::rules::{MissingKey, OverLimit, RequestCost};

/// The subject that a request was counted under, in the extensions of the request.
///
/// The adapters insert it if `expose_subject` is set. If limiters are nested, the innermost one
/// sets the final value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountedSubject(pub Subject);

type Predicate = Arc<dyn Fn(&dyn RequestInfo) -> bool + Send + Sync>;
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
    // Whether the limiter has rules, or a setting exempts some requests.
    pub(super) is_special: bool,
    pub(super) cost: Option<RequestCost>,
    pub(super) is_metered: bool,
    pub(super) exposes_subject: bool,
    pub(super) on_over_limit: Option<ChooseOverLimit>,
    pub(super) response: ResponseSettings,
    pub(super) denial_body: DenialBody,
    // Whether responses contain the names of rules, rather than hashes of them.
    pub(super) names_rules: bool,
    // The secret of partition keys, if responses contain them.
    pub(super) partition_secret: Option<KeySecret>,
    pub(super) responder: Option<Responder>,
    // All clones share these flags, so that each misconfiguration is logged once.
    pub(super) has_logged_missing_key: Arc<AtomicBool>,
    pub(super) has_logged_ambiguous_key: Arc<AtomicBool>,
    pub(super) has_logged_unknown_address: Arc<AtomicBool>,
}

impl Settings {
    /// Creates the default settings.
    pub(super) fn new(limiter: RateLimiter) -> Self {
        Self {
            key: Arc::new(ClientAddress::default()),
            on_missing_key: MissingKey::default(),
            exempt: Vec::new(),
            exempts_preflights: false,
            is_special: limiter.has_rules(),
            cost: None,
            is_metered: false,
            exposes_subject: false,
            on_over_limit: None,
            response: ResponseSettings::default(),
            denial_body: DenialBody::default(),
            names_rules: false,
            partition_secret: None,
            responder: None,
            has_logged_missing_key: Arc::default(),
            has_logged_ambiguous_key: Arc::default(),
            has_logged_unknown_address: Arc::default(),
            limiter,
        }
    }

    /// Returns how a request over its limits is handled.
    pub(super) fn over_limit(&self, request: &dyn RequestInfo) -> OverLimit {
        self.on_over_limit.as_ref().map_or(OverLimit::Reject, |choose| choose(request))
    }

    /// Returns whether the cost of a request can change until it ends. Its charge may then be a
    /// reservation.
    pub(super) const fn settles_cost(&self) -> bool {
        self.is_metered || self.response.cost.is_some()
    }
}
