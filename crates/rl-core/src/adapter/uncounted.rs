//! Requests that are not counted under a subject.

use std::sync::atomic::Ordering;

use super::admission::{Admission, protocol_of};
use super::http_limiter::HttpLimiter;
use crate::denial::DenialReason;
use crate::key::RequestInfo;
use crate::limiter::UncountedKind;
use crate::observe::{self, RequestIds};

impl HttpLimiter {
    /// Exempts a request from all limits.
    pub(super) fn exempted(&self) -> Admission {
        self.settings.limiter.count_uncounted(UncountedKind::Exempt);
        Admission::Exempt
    }

    /// Rejects a request without a key that the limiter knows. `rule` is the rule that needs one.
    #[cold]
    pub(super) fn reject_missing_key(
        &self,
        request: &dyn RequestInfo,
        rule: Option<&str>,
    ) -> Admission {
        if !self.settings.has_logged_missing_key.swap(true, Ordering::Relaxed) {
            let ids = RequestIds::read(|name| request.header(name));
            observe::missing_key(self.settings.limiter.namespace().as_str(), rule, &ids);
        }
        self.settings.limiter.count_uncounted(UncountedKind::MissingKey);
        self.reject(DenialReason::MissingKey, request)
    }

    /// Rejects a request with an ambiguous key.
    #[cold]
    pub(super) fn reject_ambiguous_key(&self, request: &dyn RequestInfo) -> Admission {
        if !self.settings.has_logged_ambiguous_key.swap(true, Ordering::Relaxed) {
            let ids = RequestIds::read(|name| request.header(name));
            observe::ambiguous_key(self.settings.limiter.namespace().as_str(), &ids);
        }
        self.settings.limiter.count_uncounted(UncountedKind::AmbiguousKey);
        self.reject(DenialReason::AmbiguousKey, request)
    }

    /// Rejects a request that matches too many rules.
    #[cold]
    pub(super) fn reject_too_many_rules(&self, request: &dyn RequestInfo) -> Admission {
        self.settings.limiter.count_uncounted(UncountedKind::TooManyRules);
        self.reject(DenialReason::TooManyRules, request)
    }

    /// Rejects a request whose client is unknown, because the server does not report the peer of the
    /// connection.
    #[cold]
    pub(super) fn reject_unknown_address(&self, request: &dyn RequestInfo) -> Admission {
        if !self.settings.has_logged_unknown_address.swap(true, Ordering::Relaxed) {
            let ids = RequestIds::read(|name| request.header(name));
            observe::unknown_address(self.settings.limiter.namespace().as_str(), &ids);
        }
        self.settings.limiter.count_uncounted(UncountedKind::UnknownAddress);
        self.reject(DenialReason::UnknownAddress, request)
    }

    /// Rejects a request without counting it. If the limiter is in shadow or switched off, exempts
    /// the request instead.
    fn reject(&self, reason: DenialReason<'_>, request: &dyn RequestInfo) -> Admission {
        let limiter = &self.settings.limiter;
        if limiter.is_shadow() || !limiter.is_enabled() {
            return Admission::Exempt;
        }
        Admission::Rejected(self.respond(reason, protocol_of(request)))
    }
}
