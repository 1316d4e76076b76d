use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrayvec::ArrayVec;

use super::admission::{Admission, RequestContext, protocol_of};
use super::denied::Denied;
use super::preflight::is_preflight;
use super::response::{CountedRequest, Extensions, FinalCost};
use super::settings::{CountedSubject, Settings};
use crate::decision::{Decision, LabelledParts, PartitionKey};
use crate::denial::{Denial, DenialBody, DenialReason, Protocol};
use crate::headers::{Headers, ResponseInfo};
use crate::key::{AmbiguousKey, KeyExtractor, KeySecret, RequestInfo};
use crate::limiter::{OutsideDecisions, Permit, RateLimiter};
use crate::maybe_ready::MaybeReady;
use crate::model::{Cost, Mode, Realm, Subject};
use crate::observe::{self, RequestIds, RequestSpan};
use crate::policy::Policy;
use crate::rules::{Defaults, MissingKey, OverLimit, RequestParts, Uncounted};

/// A [`RateLimiter`] with the settings that a web service needs.
///
/// Applications use the layer or middleware of an adapter, which has the same settings. Clones are
/// cheap, and share the limiter with its counters. A setting changes only the clone on which it is
/// set.
#[derive(Clone)]
pub struct HttpLimiter {
    pub(super) settings: Arc<Settings>,
}

impl HttpLimiter {
    /// Creates a limiter that counts by the address of the peer and exempts nothing.
    ///
    /// It sends the headers of [`HeaderFamily::OpenBank`](crate::headers::HeaderFamily::OpenBank)
    /// and denials in the JSON of [`DenialBody::json`].
    #[must_use]
    pub fn new(limiter: RateLimiter) -> Self {
        Self { settings: Arc::new(Settings::new(limiter)) }
    }

    /// Returns the limiter that decides.
    #[must_use]
    pub fn limiter(&self) -> &RateLimiter {
        &self.settings.limiter
    }

    /// Sets the extractor that finds the subject of a request. Defaults to the address of the peer.
    /// If the limiter has [rules](crate::rules), their extractors apply instead.
    #[must_use]
    pub fn key(self, key: impl KeyExtractor) -> Self {
        self.set(|settings| settings.key = Arc::new(key))
    }

    /// Sets how requests without a key are handled. Defaults to [`MissingKey::Reject`].
    #[must_use]
    pub fn on_missing_key(self, missing_key: MissingKey) -> Self {
        self.set(|settings| settings.on_missing_key = missing_key)
    }

    /// Exempts requests for which `predicate` returns true. Repeated calls add predicates.
    #[must_use]
    pub fn exempt(
        self,
        predicate: impl Fn(&dyn RequestInfo) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.set(|settings| settings.exempt.push(Arc::new(predicate)))
    }

    /// Exempts CORS preflights without a body. By default they are counted.
    #[must_use]
    pub fn exempt_preflights(self) -> Self {
        self.set(|settings| settings.exempts_preflights = true)
    }

    /// Sets the function that returns the cost of a request. Defaults to one unit for each request.
    ///
    /// A request that costs 0 is never denied, not even by a limit of requests or a concurrency
    /// limit. So return at least 1 if the client chooses the cost, or if the response contains the
    /// final one.
    #[must_use]
    pub fn cost(self, cost: impl Fn(&dyn RequestInfo) -> Cost + Send + Sync + 'static) -> Self {
        self.set(|settings| settings.cost = Some(Arc::new(cost)))
    }

    /// Lets handlers change the cost of a request through the [`Permit`] in its extensions.
    #[must_use]
    pub fn metered(self) -> Self {
        self.set(|settings| settings.is_metered = true)
    }

    /// Sets the function that reads the final cost of a request from its response.
    ///
    /// [Rules](crate::rules) with a cost of their own keep that cost.
    #[must_use]
    pub fn response_cost(
        self,
        cost: impl Fn(&dyn ResponseInfo) -> Option<Cost> + Send + Sync + 'static,
    ) -> Self {
        self.set(|settings| settings.response.cost = Some(FinalCost::OfResponse(Arc::new(cost))))
    }

    /// Refunds requests whose responses satisfy `predicate`, under all rules. Replaces
    /// [`response_cost`](Self::response_cost).
    #[must_use]
    pub fn refund_if(
        self,
        predicate: impl Fn(&dyn ResponseInfo) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.set(|settings| settings.response.cost = Some(FinalCost::RefundIf(Arc::new(predicate))))
    }

    /// Sets how requests over their limits are handled. Defaults to [`OverLimit::Reject`].
    #[must_use]
    pub fn on_over_limit(self, over_limit: OverLimit) -> Self {
        self.on_over_limit_by(move |_| over_limit)
    }

    /// Sets the function that chooses how a request over its limits is handled.
    #[must_use]
    pub fn on_over_limit_by(
        self,
        choose: impl Fn(&dyn RequestInfo) -> OverLimit + Send + Sync + 'static,
    ) -> Self {
        self.set(|settings| settings.on_over_limit = Some(Arc::new(choose)))
    }

    /// Sets the headers of responses.
    #[must_use]
    pub fn headers(self, headers: Headers) -> Self {
        self.set(|settings| settings.response.headers = headers)
    }

    /// Sets the form of denials. Defaults to [`DenialBody::json`].
    #[must_use]
    pub fn denial_body(self, body: DenialBody) -> Self {
        self.set(|settings| settings.denial_body = body)
    }

    /// Sets the function that returns the response to a rejected request.
    #[must_use]
    pub fn deny_with(
        self,
        responder: impl Fn(DenialReason<'_>, Denial) -> Denial + Send + Sync + 'static,
    ) -> Self {
        self.set(|settings| settings.responder = Some(Arc::new(responder)))
    }

    /// Puts the decision into the extensions of responses, where outer layers can read it. If
    /// limiters are nested, it is the stricter decision.
    #[must_use]
    pub fn expose_decision(self) -> Self {
        self.set(|settings| settings.response.exposes_decision = true)
    }

    /// Puts the [`CountedSubject`] into the extensions of requests.
    #[must_use]
    pub fn expose_subject(self) -> Self {
        self.set(|settings| settings.exposes_subject = true)
    }

    /// Sets the words, codes and fields of the Open Bank Project: [`Headers::open_bank`], and
    /// [`DenialBody::open_bank`] with the prefix `OBP-10018: ` and the ids of consumers.
    #[must_use]
    pub fn open_bank(self) -> Self {
        let body = DenialBody::open_bank().prefix("OBP-10018: ").name_consumer();
        self.headers(Headers::open_bank()).denial_body(body)
    }

    /// Discloses the names of all [rules](crate::rules) in headers, bodies and gRPC details:
    /// `login/minute`. By default clients read a hash of the name: `r3f2a1/minute`.
    ///
    /// [`Rule::name_disclosed`](crate::rules::Rule::name_disclosed) discloses the name of one rule.
    #[must_use]
    pub fn name_rules(self) -> Self {
        self.set(|settings| settings.names_rules = true)
    }

    /// Adds the partition key `pk` to the lists of
    /// [`HeaderFamily::IetfDraft11`](crate::headers::HeaderFamily::IetfDraft11): a hash of the
    /// subject, keyed with `secret`.
    ///
    /// A client with several credentials can then keep the states of their quotas apart. The key
    /// never contains the subject. All instances need the same secret.
    #[must_use]
    pub fn partition_keys(self, secret: KeySecret) -> Self {
        self.set(|settings| settings.partition_secret = Some(secret))
    }

    pub(super) fn set(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        let settings = Arc::make_mut(&mut self.settings);
        change(settings);
        settings.is_special = settings.limiter.has_rules()
            || settings.exempts_preflights
            || !settings.exempt.is_empty();
        self
    }

    /// Examines a request, and finds its subject.
    ///
    /// `outer` is the [`Decision`] that an outer limiter has left in the request's extensions.
    pub fn admit(&self, request: &dyn RequestInfo, outer: Option<&Decision>) -> Admission {
        if self.settings.is_special
            && let Some(admission) = self.admit_special(request, outer)
        {
            return admission;
        }
        let subject = match self.settings.key.subject(request) {
            Ok(Some(subject)) => subject,
            Ok(None) => match self.settings.on_missing_key {
                MissingKey::Share => Subject::new(Realm::Unknown, ""),
                MissingKey::Allow => return self.exempted(),
                MissingKey::Reject
                    if request.peer().is_none() && self.settings.key.needs_peer() =>
                {
                    return self.reject_unknown_address(request);
                }
                MissingKey::Reject => return self.reject_missing_key(request, None),
            },
            Err(AmbiguousKey) => return self.reject_ambiguous_key(request),
        };
        let context = RequestContext::new(subject, request, outer.is_some());
        let limiter = self.settings.limiter.id();
        if outer.is_some_and(|outer| outer.was_made_by(limiter, context.subject_hash)) {
            return Admission::Exempt;
        }
        Admission::Counted(context)
    }

    /// Decides a request that is counted. If the store is remote, the returned decision is not
    /// ready yet.
    pub fn decide(
        &self,
        request: &dyn RequestInfo,
        context: &RequestContext,
    ) -> MaybeReady<Decision> {
        if observe::may_decisions_be_logged() {
            self.start_decision_in_span(request, context)
        } else {
            self.start_decision(request, context)
        }
    }

    /// Decides a request that is counted, in another way than [`decide`](Self::decide): without a
    /// charge ([`Mode::Peek`]), or with a charge beyond the limits ([`Mode::Charge`]). Such a request
    /// neither waits nor is degraded.
    pub fn decide_in(
        &self,
        request: &dyn RequestInfo,
        context: &RequestContext,
        mode: Mode,
    ) -> MaybeReady<Decision> {
        let settings = &*self.settings;
        let cost = || settings.cost.as_ref().map_or(Cost::ONE, |cost| cost(request));
        let of_subject = || settings.limiter.request(&context.subject).cost(cost());
        match (mode, &context.parts) {
            (Mode::Check, _) => self.decide(request, context),
            (mode, Some(parts)) => {
                settings.limiter.decide_rules(parts, mode, OverLimit::Reject, false)
            }
            (Mode::CheckUpTo, None) => of_subject().check_up_to(),
            (Mode::Peek, None) => of_subject().peek(),
            (Mode::Charge, None) => of_subject().charge(),
        }
    }

    #[inline]
    fn start_decision(
        &self,
        request: &dyn RequestInfo,
        context: &RequestContext,
    ) -> MaybeReady<Decision> {
        match &context.parts {
            None => self.start_decision_of_subject(request, &context.subject),
            Some(parts) => self.start_decision_of_parts(request, parts),
        }
    }

    /// Examines a request if it is exempt, or if the limiter has rules. Otherwise returns `None`.
    #[inline(never)]
    fn admit_special(
        &self,
        request: &dyn RequestInfo,
        outer: Option<&Decision>,
    ) -> Option<Admission> {
        if self.is_exempt(request) {
            return Some(self.exempted());
        }
        let settings = &*self.settings;
        let rules = settings.limiter.rules()?;
        let cost = settings.cost.as_ref();
        let defaults = Defaults { on_missing_key: settings.on_missing_key, cost };
        let parts = match rules.parts_of(request, &defaults) {
            Ok(Some(parts)) => Arc::new(parts),
            Ok(None) => return Some(self.exempted()),
            Err(uncounted) => return Some(self.reject_uncounted(request, uncounted)),
        };
        let context = RequestContext::of_parts(parts, request, outer.is_some());
        let limiter = settings.limiter.id();
        if outer.is_some_and(|outer| outer.was_made_by(limiter, context.subject_hash)) {
            return Some(Admission::Exempt);
        }
        Some(Admission::Counted(context))
    }

    /// Applies the decision to its request.
    ///
    /// If the request may continue, inserts the decision into its `extensions`, and a permit if it
    /// holds one. The adapter then calls the service. A denied request gets the returned denial as
    /// its response. In both cases the adapter then [finishes](CountedRequest::finish) the
    /// response.
    pub fn apply(
        &self,
        mut decision: Decision,
        context: &RequestContext,
        extensions: &mut impl Extensions,
    ) -> (CountedRequest, Option<Denial>) {
        let settings = &*self.settings;
        decision.set_limiter_and_subject(settings.limiter.id(), context.subject_hash);
        if context.is_nested {
            decision.set_outer(extensions.remove::<Decision>());
        }
        if context.parts.is_some() || settings.partition_secret.is_some() {
            self.label(&mut decision, context);
        }
        let mut counted = CountedRequest::new(&decision, &settings.response);
        if !decision.is_forwarded() {
            let denial = self.denial(&decision, context);
            return (counted, Some(denial));
        }
        if context.is_nested || self.may_need_permit(&decision, context) {
            let outer = if context.is_nested { extensions.remove::<Permit>() } else { None };
            if let Some(permit) = self.permit(&decision, context, outer) {
                extensions.insert(permit.clone());
                counted.hold(permit, settings.response.cost.clone());
            }
        }
        extensions.insert(decision);
        if settings.exposes_subject {
            extensions.insert(CountedSubject(context.subject.clone()));
        }
        (counted, None)
    }

    /// Returns the response to a request that a handler has denied itself. It has the form and the
    /// headers that are set on this limiter.
    #[must_use]
    pub fn denied(&self, mut decision: Decision, subject: &Subject) -> Denied {
        let labels = decision.labels_mut();
        labels.names_rules = self.settings.names_rules;
        labels.partition_keys = self.partition_keys_of([subject]);
        let reason = DenialReason::Decision { decision: &decision, subject, rule: None };
        let denial = self.respond(reason, Protocol::Http);
        Denied::with_headers(decision, denial, self.settings.response.headers.clone())
    }

    fn is_exempt(&self, request: &dyn RequestInfo) -> bool {
        let settings = &self.settings;
        settings.exempt.iter().any(|predicate| predicate(request))
            || settings.exempts_preflights && is_preflight(request)
    }

    #[inline]
    fn start_decision_of_subject(
        &self,
        request: &dyn RequestInfo,
        subject: &Subject,
    ) -> MaybeReady<Decision> {
        let settings = &*self.settings;
        let limiter = &settings.limiter;
        let cost = settings.cost.as_ref().map_or(Cost::ONE, |cost| cost(request));
        let checked = limiter.request(subject).cost(cost).reserving(settings.settles_cost());
        match settings.over_limit(request) {
            OverLimit::Reject => checked.check(),
            OverLimit::Wait { at_most, queue } => checked.wait(at_most, queue).check(),
            OverLimit::Degrade => {
                let this = limiter.clone();
                checked.check().map(move |decision| degraded(&this, decision))
            }
        }
    }

    /// Returns whether an allowed request may need a permit: it may hold units of a concurrency
    /// limit, or its cost may change.
    #[inline]
    fn may_need_permit(&self, decision: &Decision, context: &RequestContext) -> bool {
        self.settings.settles_cost()
            || context.parts.is_some()
            || decision.policy().is_some_and(Policy::has_permits)
    }

    /// Returns the permit of an allowed request, if it needs one. Otherwise returns `outer`, the
    /// permit of the outer limiter.
    #[inline(never)]
    fn permit(
        &self,
        decision: &Decision,
        context: &RequestContext,
        outer: Option<Permit>,
    ) -> Option<Permit> {
        let limiter = &self.settings.limiter;
        if !self.may_need_permit(decision, context) {
            return outer;
        }
        let permit = match &context.parts {
            Some(parts) if !self.settings.settles_cost() && !parts.needs_permit() => return outer,
            Some(parts) => limiter.permit_of_rules(parts, decision.clone()),
            None => limiter.request(&context.subject).permit(decision.clone()),
        };
        Some(permit.metered(self.settings.is_metered).inside(outer))
    }

    /// Returns the denial of a request that is over its limits or cannot be decided.
    pub(super) fn denial(&self, decision: &Decision, context: &RequestContext) -> Denial {
        let rule = context.parts.as_deref().and_then(|parts| {
            // The message describes the governing part if it denies the request, and otherwise the
            // part that denies it for the longest time.
            let governing = decision.governing_part();
            let described = decision.denying_parts().find(|denying| Some(*denying) == governing);
            parts.rule(described.or_else(|| decision.denying_part())?)
        });
        let (subject, rule) = match rule {
            Some((subject, rule)) => (subject, Some(rule)),
            None => (&context.subject, None),
        };
        let reason = DenialReason::Decision { decision, subject, rule };
        self.respond(reason, context.protocol)
    }

    /// Returns the denial for `reason`. The responder creates it, if one is set.
    fn respond(&self, reason: DenialReason<'_>, protocol: Protocol) -> Denial {
        let settings = &self.settings;
        let governing = settings.response.headers.governing_limit();
        let default = settings.denial_body.denial(reason, governing, protocol);
        match (&settings.responder, protocol) {
            (None, _) => default,
            (Some(responder), Protocol::Http) => responder(reason, default),
            // A gRPC client can read only a gRPC denial, so a response in another form is ignored.
            (Some(responder), Protocol::Grpc) => {
                let response = responder(reason, default.clone());
                if response.is_grpc() { response } else { default }
            }
        }
    }

    /// Sets the labels of a decision, which the response shows.
    #[inline(never)]
    pub(super) fn label(&self, decision: &mut Decision, context: &RequestContext) {
        let labels = decision.labels_mut();
        labels.names_rules = self.settings.names_rules;
        match &context.parts {
            Some(parts) => {
                labels.partition_keys = self.partition_keys_of(parts.counted_subjects());
                labels.rules = Some(Arc::clone(parts) as Arc<dyn LabelledParts>);
            }
            None => labels.partition_keys = self.partition_keys_of([&context.subject]),
        }
    }

    /// Returns the partition keys of the subjects of a request, unless responses contain none.
    fn partition_keys_of<'a, const PARTS: usize>(
        &self,
        subjects: impl IntoIterator<Item = &'a Subject>,
    ) -> ArrayVec<PartitionKey, PARTS> {
        match &self.settings.partition_secret {
            Some(secret) => {
                subjects.into_iter().map(|subject| secret.partition_key(subject)).collect()
            }
            None => ArrayVec::new(),
        }
    }

    /// Exempts a request from all limits.
    fn exempted(&self) -> Admission {
        self.settings.limiter.count_uncounted(OutsideDecisions::Exempt);
        Admission::Exempt
    }

    /// Rejects a request that the rules do not count.
    #[cold]
    pub(super) fn reject_uncounted(
        &self,
        request: &dyn RequestInfo,
        uncounted: Uncounted<'_>,
    ) -> Admission {
        match uncounted {
            Uncounted::MissingKey { rule } => self.reject_missing_key(request, Some(rule)),
            Uncounted::AmbiguousKey => self.reject_ambiguous_key(request),
            Uncounted::TooManyRules => self.reject_too_many_rules(request),
            Uncounted::UnknownAddress => self.reject_unknown_address(request),
        }
    }

    /// Rejects a request without a key that the limiter knows. `rule` is the rule that needs one.
    #[cold]
    fn reject_missing_key(&self, request: &dyn RequestInfo, rule: Option<&str>) -> Admission {
        if !self.settings.has_logged_missing_key.swap(true, Ordering::Relaxed) {
            let ids = RequestIds::read(|name| request.header(name));
            observe::missing_key(self.settings.limiter.namespace().as_str(), rule, &ids);
        }
        self.settings.limiter.count_uncounted(OutsideDecisions::MissingKey);
        self.reject(DenialReason::MissingKey, request)
    }

    /// Rejects a request with an ambiguous key.
    #[cold]
    fn reject_ambiguous_key(&self, request: &dyn RequestInfo) -> Admission {
        if !self.settings.has_logged_ambiguous_key.swap(true, Ordering::Relaxed) {
            let ids = RequestIds::read(|name| request.header(name));
            observe::ambiguous_key(self.settings.limiter.namespace().as_str(), &ids);
        }
        self.settings.limiter.count_uncounted(OutsideDecisions::AmbiguousKey);
        self.reject(DenialReason::AmbiguousKey, request)
    }

    /// Rejects a request that matches too many rules.
    #[cold]
    fn reject_too_many_rules(&self, request: &dyn RequestInfo) -> Admission {
        self.settings.limiter.count_uncounted(OutsideDecisions::TooManyRules);
        self.reject(DenialReason::TooManyRules, request)
    }

    /// Rejects a request whose client is unknown, because the server does not report the peer of
    /// the connection.
    #[cold]
    fn reject_unknown_address(&self, request: &dyn RequestInfo) -> Admission {
        if !self.settings.has_logged_unknown_address.swap(true, Ordering::Relaxed) {
            let ids = RequestIds::read(|name| request.header(name));
            observe::unknown_address(self.settings.limiter.namespace().as_str(), &ids);
        }
        self.settings.limiter.count_uncounted(OutsideDecisions::UnknownAddress);
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

    /// Decides a request inside a span that logs its request ids.
    #[cold]
    #[inline(never)]
    fn start_decision_in_span(
        &self,
        request: &dyn RequestInfo,
        context: &RequestContext,
    ) -> MaybeReady<Decision> {
        let ids = RequestIds::read(|name| request.header(name));
        let span = RequestSpan::new(self.settings.limiter.namespace().as_str(), &ids);
        match span.enter(|| self.start_decision(request, context)) {
            MaybeReady::Boxed(pending) => MaybeReady::later(span.instrument(pending)),
            ready => ready,
        }
    }

    /// Decides a request under all rules that match it.
    #[inline(never)]
    fn start_decision_of_parts(
        &self,
        request: &dyn RequestInfo,
        parts: &Arc<RequestParts>,
    ) -> MaybeReady<Decision> {
        let settings = &*self.settings;
        let reserves = settings.settles_cost() || parts.settles_cost();
        // `default` applies to rules without a setting of their own.
        let default = settings.over_limit(request);
        let decision = settings.limiter.decide_rules(parts, Mode::Check, default, reserves);
        if !parts.may(default, |over_limit| over_limit == OverLimit::Degrade) {
            return decision;
        }
        let (parts, limiter) = (Arc::clone(parts), settings.limiter.clone());
        decision.map(move |decision| degrade(&limiter, &parts, decision, default))
    }
}

impl From<RateLimiter> for HttpLimiter {
    fn from(limiter: RateLimiter) -> Self {
        Self::new(limiter)
    }
}

impl fmt::Debug for HttpLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpLimiter")
            .field("limiter", &self.settings.limiter)
            .field("on_missing_key", &self.settings.on_missing_key)
            .field("headers", &self.settings.response.headers)
            .field("denial_body", &self.settings.denial_body)
            .finish_non_exhaustive()
    }
}

/// Degrades a denied request if the rules that deny it are set to degrade it.
fn degrade(
    limiter: &RateLimiter,
    parts: &RequestParts,
    decision: Decision,
    default: OverLimit,
) -> Decision {
    match parts.on_over_limit(decision.denying_parts(), default) {
        OverLimit::Degrade => degraded(limiter, decision),
        OverLimit::Wait { .. } | OverLimit::Reject => decision,
    }
}

/// Changes a denial by limits into a degraded request, and counts it as degraded. Returns any other
/// decision unchanged, and also a denial that no wait would end.
fn degraded(limiter: &RateLimiter, decision: Decision) -> Decision {
    let was_allowed = decision.is_allowed();
    let decision = decision.degraded_if_denied();
    if !was_allowed && decision.is_forwarded() {
        limiter.count_uncounted(OutsideDecisions::Degraded);
    }
    decision
}
