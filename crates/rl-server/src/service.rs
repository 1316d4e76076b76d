//! Decides the requests that gateways describe.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rl_core::adapter::{Admission, Extensions, HttpLimiter, RequestContext, ResponseHead};
use rl_core::denial::Denial;
use rl_core::headers::{HeaderLines, ResponseInfo};
use rl_core::store::Mode;
use rl_core::{Decision, MissingKey, Permit, RateLimiter};

use crate::permits::{PermitTable, Unsettled};
use crate::request::{Counted, GatewayRequest, Phase, SelectedPart};

/// The default of [`DecisionService::max_reservations`].
const MAX_RESERVATIONS: usize = 65_536;

/// Decides the requests that gateways describe. Clones share the limiter.
#[derive(Clone, Debug)]
pub struct DecisionService {
    limiter: HttpLimiter,
    /// Decides requests with descriptors, which need not have the keys of all rules.
    descriptor_limiter: HttpLimiter,
    /// Decides requests with descriptors whose cost is set later.
    permit_limiter: HttpLimiter,
    unknown_domains: Arc<AtomicU64>,
    /// The permits that callers of Kuadrant's service hold.
    reservations: PermitTable,
}

/// The reply to a gateway.
#[derive(Debug, Default)]
pub struct Reply {
    /// The decision; `None` if the limiter made none, because no rule counts the request or because
    /// it was rejected before that.
    pub decision: Option<Decision>,
    /// The response to the client, if the request is rejected.
    pub denial: Option<Denial>,
    /// The headers of the response to the client, whether the request is allowed or denied.
    pub headers: Vec<(&'static str, String)>,
    /// The permit of an allowed request that holds units, or whose cost may change.
    pub permit: Option<Permit>,
    /// The rules that were selected.
    pub selected: Vec<SelectedPart>,
}

impl Reply {
    /// Returns whether the gateway may pass the request on.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        self.denial.is_none()
    }
}

impl DecisionService {
    /// Creates a service with the headers and denials of `limiter`.
    #[must_use]
    pub fn new(limiter: HttpLimiter) -> Self {
        let limiter = limiter.expose_decision();
        let descriptor_limiter = limiter.clone().on_missing_key(MissingKey::Allow);
        let permit_limiter = descriptor_limiter.clone().metered();
        let reservations = PermitTable::new(MAX_RESERVATIONS, Unsettled::Refunded);
        let unknown_domains = Arc::default();
        Self { limiter, descriptor_limiter, permit_limiter, unknown_domains, reservations }
    }

    /// Sets the maximum number of reservations of Kuadrant's service, and refunds those that are
    /// held. Defaults to 65 536. Peers share them as [`PermitTable`] describes.
    #[must_use]
    pub fn max_reservations(self, max: usize) -> Self {
        Self { reservations: PermitTable::new(max, Unsettled::Refunded), ..self }
    }

    /// Returns the reservations.
    pub(crate) const fn reservations(&self) -> &PermitTable {
        &self.reservations
    }

    /// Returns the limiter that decides.
    #[must_use]
    pub fn limiter(&self) -> &RateLimiter {
        self.limiter.limiter()
    }

    /// Returns the number of requests with descriptors of a domain that has no rules.
    #[must_use]
    pub fn unknown_domains(&self) -> u64 {
        self.unknown_domains.load(Ordering::Relaxed)
    }

    /// Decides a request under the rules that match it, or that it selects.
    ///
    /// The permit of an allowed request is released when the [`Reply`] is dropped.
    pub async fn decide(&self, request: &GatewayRequest, mode: Mode) -> Reply {
        Admitted::new(&self.limiter, request).decide(request, mode).await
    }

    /// Decides a request, and returns a permit with which its cost can be set later.
    pub async fn acquire(&self, request: &GatewayRequest) -> Reply {
        let limiter = self.limiter.clone().metered();
        Admitted::new(&limiter, request).decide(request, Mode::Check).await
    }

    /// Decides a request with descriptors.
    ///
    /// Rules that are charged before the request are decided in one step. Rules that are charged
    /// after the request are decided before that step. A descriptor with a cost is charged to them
    /// even beyond their limits, because its units have already been used. A descriptor with a cost
    /// of 0 denies the request if one of its limits has no unit left.
    ///
    /// A request whose descriptors all have a cost of 0 charges nothing, also under the rules that
    /// match it.
    pub async fn decide_descriptors(&self, request: &GatewayRequest, mode: Mode) -> Reply {
        let admitted = self.admit(&self.descriptor_limiter, request);
        let selected = request.selected();
        let with = |counted| selected.iter().filter(move |part| part.counted == counted);
        if with(Counted::Later).next().is_none() {
            let mode = if request.is_free() { Mode::Peek } else { mode };
            return admitted.decide(request, mode).await;
        }
        // Boxed, because its state would make that of each call larger.
        let later = Box::pin(self.decide_later(request, mode)).await;
        // A call that only charges units comes after the request, whose other rules have counted it
        // before.
        let mut later_costs = with(Counted::Later).map(|part| request.cost(part.position));
        let is_after =
            with(Counted::Now).next().is_none() && !later_costs.any(|cost| cost == Some(0));
        if !later.is_allowed() || is_after || !admitted.is_counted() {
            return Reply { selected, ..later };
        }
        admitted.decide(request, mode).await
    }

    /// Decides a request with descriptors in one step, and returns a permit with which its cost can
    /// be set later.
    pub async fn acquire_descriptors(&self, request: &GatewayRequest) -> Reply {
        self.admit(&self.permit_limiter, request).decide(request, Mode::Check).await
    }

    /// Selects the rules of a request with descriptors, which are then in
    /// [`GatewayRequest::selected`]. Counts a request whose domain is unknown.
    fn admit<'a>(&self, limiter: &'a HttpLimiter, request: &GatewayRequest) -> Admitted<'a> {
        let admitted = Admitted::new(limiter, request);
        if request.has_unknown_domain() {
            self.unknown_domains.fetch_add(1, Ordering::Relaxed);
        }
        admitted
    }

    /// Decides under the rules that are charged after the request.
    ///
    /// The descriptors with a cost are charged first, because their units have been used even if
    /// another descriptor denies the request.
    async fn decide_later(&self, request: &GatewayRequest, mode: Mode) -> Reply {
        let later = request.selected().into_iter().filter(|part| part.counted == Counted::Later);
        let costs: Vec<_> = later.filter_map(|part| request.cost(part.position)).collect();
        let charge = if mode == Mode::Peek { Mode::Peek } else { Mode::Charge };
        let charged = costs.iter().any(|cost| *cost > 0).then_some((Phase::After, charge));
        let asked = costs.contains(&0).then_some((Phase::Ask, Mode::Peek));
        let mut reply = Reply::default();
        for (phase, mode) in charged.into_iter().chain(asked) {
            let Some(request) = request.only_descriptors(phase) else { continue };
            reply = Admitted::new(&self.descriptor_limiter, &request).decide(&request, mode).await;
            if !reply.is_allowed() {
                break;
            }
        }
        reply
    }
}

/// A request whose rules are selected, and the limiter that decides it.
struct Admitted<'a> {
    limiter: &'a HttpLimiter,
    admission: Admission,
}

impl<'a> Admitted<'a> {
    /// Returns whether a rule counts the request, or it is rejected.
    const fn is_counted(&self) -> bool {
        !matches!(self.admission, Admission::Exempt)
    }

    /// Selects the rules of a request.
    fn new(limiter: &'a HttpLimiter, request: &GatewayRequest) -> Self {
        Self { limiter, admission: limiter.admit(request, None) }
    }

    /// Decides the request. The returned future does not borrow it.
    fn decide(
        self,
        request: &GatewayRequest,
        mode: Mode,
    ) -> impl Future<Output = Reply> + Send + 'static {
        let Self { limiter, admission } = self;
        let selected = request.selected();
        let (decision, denial) = match admission {
            Admission::Exempt => (None, None),
            Admission::Rejected(denial) => (None, Some(denial)),
            Admission::Counted(context) => {
                (Some((limiter.decide_in(request, &context, mode), context)), None)
            }
        };
        let limiter = limiter.clone();
        async move {
            let mut reply = Reply { selected, ..Reply::default() };
            match decision {
                None => {
                    reply.deny(denial);
                    reply
                }
                Some((decision, context)) => {
                    reply.apply(&limiter, decision.await, &context);
                    reply
                }
            }
        }
    }
}

impl Reply {
    /// Applies a decision to the reply.
    fn apply(&mut self, limiter: &HttpLimiter, decision: Decision, context: &RequestContext) {
        let mut of_request = ReplyExtensions::default();
        let (counted, denial) = limiter.apply(decision, context, &mut of_request);
        self.deny(denial);
        let status = self.denial.as_ref().map_or(200, |denial| denial.status);
        // The decision in the extensions of the request would count as that of an inner limiter,
        // whose headers replace those of this one.
        let extensions = ReplyExtensions::default();
        let mut head = ReplyHead { status, headers: &mut self.headers, extensions };
        self.permit = counted.finish(&mut head);
        self.decision = head.extensions.decision;
    }

    fn deny(&mut self, denial: Option<Denial>) {
        let headers = denial.iter().flat_map(|denial| &denial.headers);
        self.headers.extend(headers.map(|(name, value)| (*name, value.to_string())));
        self.denial = denial;
    }
}

/// The extensions of a reply: the limiter leaves its decision and the permit in them.
#[derive(Default)]
struct ReplyExtensions {
    decision: Option<Decision>,
    permit: Option<Permit>,
}

impl ReplyExtensions {
    /// Returns the place of a value of type `T`.
    fn place<T: 'static>(&mut self) -> Option<&mut Option<T>> {
        let Self { decision, permit } = self;
        (decision as &mut dyn Any)
            .downcast_mut()
            .or_else(|| (permit as &mut dyn Any).downcast_mut())
    }
}

impl Extensions for ReplyExtensions {
    fn get<T: Send + Sync + 'static>(&self) -> Option<&T> {
        let Self { decision, permit } = self;
        let decision = (decision as &dyn Any).downcast_ref::<Option<T>>();
        decision.or_else(|| (permit as &dyn Any).downcast_ref())?.as_ref()
    }

    fn insert<T: Clone + Send + Sync + 'static>(&mut self, value: T) {
        if let Some(place) = self.place() {
            *place = Some(value);
        }
    }

    fn remove<T: Clone + Send + Sync + 'static>(&mut self) -> Option<T> {
        self.place()?.take()
    }
}

/// The head of the reply, to which the limiter adds its headers.
struct ReplyHead<'a> {
    status: u16,
    headers: &'a mut Vec<(&'static str, String)>,
    extensions: ReplyExtensions,
}

impl ResponseInfo for ReplyHead<'_> {
    fn status(&self) -> u16 {
        self.status
    }

    fn header_lines<'a>(&'a self, name: &str, each: &mut dyn FnMut(&'a [u8])) {
        let lines = self.headers.iter().filter(|(known, _)| *known == name);
        lines.for_each(|(_, value)| each(value.as_bytes()));
    }
}

impl ResponseHead for ReplyHead<'_> {
    fn add_headers(&mut self, lines: &HeaderLines) {
        for line in lines.iter() {
            let name = line.name.as_str();
            if !line.is_list {
                self.headers.retain(|(known, _)| *known != name);
            }
            self.headers.push((name, String::from_utf8_lossy(&line.value).into_owned()));
        }
    }

    fn extensions(&mut self) -> impl Extensions {
        &mut self.extensions
    }
}

impl Extensions for &mut ReplyExtensions {
    fn get<T: Send + Sync + 'static>(&self) -> Option<&T> {
        (**self).get()
    }

    fn insert<T: Clone + Send + Sync + 'static>(&mut self, value: T) {
        (**self).insert(value);
    }

    fn remove<T: Clone + Send + Sync + 'static>(&mut self) -> Option<T> {
        (**self).remove()
    }
}
