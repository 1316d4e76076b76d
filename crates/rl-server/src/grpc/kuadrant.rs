//! Kuadrant's rate limit service, for requests whose cost is known only at their end.
//!
//! | method | before the request | after it |
//! |---|---|---|
//! | `CheckRateLimit`, `Report` | decides, charges nothing | charges the cost, even beyond the limits |
//! | `Reserve`, `Commit` | decides, and charges an estimate | sets the cost, and refunds or charges the rest |
//!
//! Only the rules of the descriptors count these calls, each with the units of the call. The rules
//! that match requests count only calls of Envoy's service.
//!
//! A reservation is charged to all rules in one step, or the request is denied. A rule holds at most
//! half of its smallest limit. A client that expects 5 000 tokens is thus not always denied under a
//! limit of 1 000.
//!
//! The reservation ends with its `ttl`, and at the latest after [`KuadrantService::longest_hold`].
//! Its units are then refunded. A later commit charges the whole cost, as a report does, and returns
//! `reservation_released: false`. So does a commit with an empty or unknown id.
//!
//! A reservation is held by the instance that granted it. If the commit reaches another instance, it
//! charges the whole cost there, and the estimate stays charged too until the reservation expires.
//! Until then, the limits may deny more requests than they should, but never fewer. Clients that send
//! both calls over one connection are not affected.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::ConnectInfo;
use http::{Request, Response};
use http_body::Body;
use rl_core::store::Mode;
use rl_core::{Decision, Origin};
use rl_serve::Share;
use tonic::Status;
use tonic::body::Body as TonicBody;
use tonic::codegen::StdError;
use tonic::server::NamedService;
use tower::Service;

use super::envoy::response;
use super::messages::{
    Code, CommitRequest, CommitResponse, RateLimitDescriptor, RateLimitRequest, RateLimitResponse,
    ReserveRequest, ReserveResponse,
};
use super::unary::{unary, unimplemented};
use crate::permits::HeldPermit;
use crate::request::{Descriptor, Descriptors, GatewayRequest, Phase};
use crate::service::{DecisionService, Reply};

/// Kuadrant's rate limit service, `kuadrant.service.ratelimit.v1.RateLimitService`.
#[derive(Clone, Debug)]
pub struct KuadrantService {
    service: DecisionService,
    longest_hold: Duration,
}

impl KuadrantService {
    /// Creates a service that decides, and holds reservations, with `service`.
    #[must_use]
    pub const fn new(service: DecisionService) -> Self {
        Self { service, longest_hold: Duration::from_secs(60) }
    }

    /// Sets the longest time of a reservation. A reservation without a `ttl` has this time too.
    /// Defaults to 60 seconds.
    #[must_use]
    pub fn longest_hold(self, longest_hold: Duration) -> Self {
        Self { longest_hold, ..self }
    }

    /// Decides a request. Charges nothing.
    ///
    /// A cost of 0 counts as 1, because a cost of 0 is never denied.
    ///
    /// # Errors
    ///
    /// Returns an error if a value of the request is not valid.
    pub async fn check_rate_limit(
        &self,
        request: RateLimitRequest,
    ) -> Result<RateLimitResponse, Status> {
        let count = request.descriptors.len();
        let mut descriptors = Descriptors::try_from(request)?;
        for hits in descriptors.list.iter_mut().filter_map(|one| one.hits.as_mut()) {
            *hits = (*hits).max(1);
        }
        let request = GatewayRequest::with_descriptors(descriptors).in_phase(Phase::All);
        let reply = self.service.decide_descriptors(&request, Mode::Peek).await;
        Ok(response(reply, count))
    }

    /// Charges units that were used, even beyond the limits.
    ///
    /// # Errors
    ///
    /// Returns an error if a value of the request is not valid, or if the store has not counted the
    /// units.
    pub async fn report(&self, request: RateLimitRequest) -> Result<RateLimitResponse, Status> {
        let count = request.descriptors.len();
        let reply = self.charge(request.try_into()?).await?;
        Ok(response(reply, count))
    }

    /// Decides a request of `peer`, and holds an estimate of its cost.
    ///
    /// An amount of 0 holds nothing, but is denied if a limit has no remaining unit.
    ///
    /// # Errors
    ///
    /// Returns an error if a value of the request is not valid, or if the peer holds its share of the
    /// reservations.
    pub async fn reserve(
        &self,
        request: ReserveRequest,
        peer: Option<IpAddr>,
    ) -> Result<ReserveResponse, Status> {
        let time = request.ttl.and_then(|ttl| Duration::try_from(ttl).ok());
        // A gateway without a time limit of its own sends 0.
        let time = time.filter(|time| !time.is_zero()).unwrap_or(self.longest_hold);
        let time = time.min(self.longest_hold);
        let descriptors = descriptors(request.domain, request.descriptors, request.amount)?;
        let place = self.service.reservations().place(peer);
        let place = place.ok_or_else(|| {
            Status::resource_exhausted("the peer holds its share of the reservations")
        })?;
        let this = self.clone();
        // A call that the client cancels is completed, so that its charge is refunded in time.
        let held = tokio::spawn(async move { this.hold(descriptors, time, place).await });
        held.await.map_err(|error| Status::internal(error.to_string()))?
    }

    /// Sets the cost of a request, and ends its reservation.
    ///
    /// # Errors
    ///
    /// Returns an error if a value of the request is not valid, or if the store has not counted the
    /// units. It may count them later, because a settlement is repeated for a minute.
    pub async fn commit(&self, request: CommitRequest) -> Result<CommitResponse, Status> {
        let CommitRequest { domain, descriptors: list, reservation_id, actual_amount } = request;
        if let Some(permit) = self.service.reservations().take(&reservation_id) {
            permit
                .with_cost(actual_amount)
                .settle()
                .await
                .map_err(|error| Status::unavailable(error.to_string()))?;
            return Ok(CommitResponse { reservation_released: true });
        }
        let descriptors = descriptors(domain, list, actual_amount)?;
        if actual_amount > 0 {
            self.charge(descriptors).await?;
        }
        Ok(CommitResponse { reservation_released: false })
    }

    async fn charge(&self, descriptors: Descriptors) -> Result<Reply, Status> {
        let request = GatewayRequest::with_descriptors(descriptors).in_phase(Phase::All);
        let reply = self.service.decide_descriptors(&request, Mode::Charge).await;
        // Limits deny no charge, so a failed store is an error here, also under a policy that allows.
        match reply.decision.as_ref().map(Decision::origin) {
            Some(Origin::FailedOpen(_) | Origin::FailedClosed(_)) => {
                Err(Status::unavailable("the store has not counted the units"))
            }
            _ if !reply.is_allowed() => {
                Err(Status::invalid_argument("the request selects too many rules"))
            }
            _ => Ok(reply),
        }
    }

    async fn hold(
        &self,
        descriptors: Descriptors,
        time: Duration,
        place: Share,
    ) -> Result<ReserveResponse, Status> {
        if descriptors.hits == 0 {
            let least = Descriptors { hits: 1, ..descriptors.clone() };
            let request = GatewayRequest::with_descriptors(least).in_phase(Phase::All);
            if !self.service.decide_descriptors(&request, Mode::Peek).await.is_allowed() {
                return Ok(reserved(Code::OverLimit, String::new()));
            }
        }
        let request = GatewayRequest::with_descriptors(descriptors).in_phase(Phase::Hold);
        let reply = self.service.acquire_descriptors(&request).await;
        if !reply.is_allowed() {
            return Ok(reserved(Code::OverLimit, String::new()));
        }
        let is_held = |permit: &rl_core::Permit| {
            !matches!(permit.decision().origin(), Origin::FailedOpen(_) | Origin::FailedClosed(_))
        };
        let Some(permit) = reply.permit.filter(is_held) else {
            // Nothing is charged, so the commit charges the whole cost.
            return Ok(reserved(Code::Ok, String::new()));
        };
        let permit = HeldPermit::new(permit, true, place);
        let id = self.service.reservations().insert(permit, time);
        Ok(reserved(Code::Ok, id))
    }
}

impl NamedService for KuadrantService {
    const NAME: &'static str = "kuadrant.service.ratelimit.v1.RateLimitService";
}

impl<B> Service<Request<B>> for KuadrantService
where
    B: Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = Response<TonicBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // Calls `$method` with the message of the request.
        macro_rules! call {
            ($this:ident . $method:ident ( $($peer:ident)? )) => {{
                let handle = move |message| {
                    let this = $this.clone();
                    async move { this.$method(message $(, $peer)?).await }
                };
                Ok(unary(request, handle).await)
            }};
        }
        let this = self.clone();
        let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0.ip());
        Box::pin(async move {
            match request.uri().path().rsplit('/').next() {
                Some("CheckRateLimit") => call!(this.check_rate_limit()),
                Some("Report") => call!(this.report()),
                Some("Reserve") => call!(this.reserve(peer)),
                Some("Commit") => call!(this.commit()),
                _ => unimplemented(),
            }
        })
    }
}

/// Returns descriptors that all have the cost `hits`.
fn descriptors(
    domain: String,
    list: Vec<RateLimitDescriptor>,
    hits: u64,
) -> Result<Descriptors, Status> {
    let list = list.into_iter().map(|one| {
        let one = Descriptor::try_from(one)?;
        Ok(Descriptor { hits: None, ..one })
    });
    Ok(Descriptors { domain, list: list.collect::<Result<_, Status>>()?, hits })
}

fn reserved(code: Code, reservation_id: String) -> ReserveResponse {
    ReserveResponse { code: code.into(), reservation_id }
}
