//! Envoy's rate limit service.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use http_body::Body;
use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};
use rl_core::store::Mode;
use rl_core::{Decision, GoverningLimit, Limit, LimitStatus, Period};
use tonic::Status;
use tonic::body::Body as TonicBody;
use tonic::codegen::StdError;
use tonic::server::NamedService;
use tower::Service;

use super::messages::{
    Code, DescriptorStatus, HeaderValue, RateLimit, RateLimitDescriptor, RateLimitOverride,
    RateLimitRequest, RateLimitResponse, Unit,
};
use super::unary::{unary, unimplemented};
use crate::request::{Counted, Descriptor, Descriptors, GatewayRequest, text_of};
use crate::service::{DecisionService, Reply};

/// The key of the dynamic metadata that names the rules in shadow that would have denied a request.
const SHADOW: &str = "would_deny";
/// The header with the same names. It is added to the request for the service, and not to the
/// response, because clients must not learn the names of rules.
const SHADOW_HEADER: &str = "x-rate-limit-would-deny";

/// Envoy's rate limit service, `envoy.service.ratelimit.v3.RateLimitService`.
#[derive(Clone, Debug)]
pub struct EnvoyService(Arc<DecisionService>);

impl EnvoyService {
    /// Creates a service that decides with `service`.
    #[must_use]
    pub fn new(service: DecisionService) -> Self {
        Self(Arc::new(service))
    }

    /// Decides a request.
    ///
    /// # Errors
    ///
    /// Returns an error if a value of the request is not valid.
    pub async fn should_rate_limit(
        &self,
        request: RateLimitRequest,
    ) -> Result<RateLimitResponse, Status> {
        let count = request.descriptors.len();
        let request = GatewayRequest::with_descriptors(request.try_into()?);
        let reply = self.0.decide_descriptors(&request, Mode::Check).await;
        Ok(response(reply, count))
    }
}

impl NamedService for EnvoyService {
    const NAME: &'static str = "envoy.service.ratelimit.v3.RateLimitService";
}

impl<B> Service<Request<B>> for EnvoyService
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
        let this = self.clone();
        Box::pin(async move {
            match request.uri().path().rsplit('/').next() {
                Some("ShouldRateLimit") => {
                    let handle = move |message| {
                        let this = this.clone();
                        async move { this.should_rate_limit(message).await }
                    };
                    Ok(unary(request, handle).await)
                }
                _ => unimplemented(),
            }
        })
    }
}

/// The maximum number of descriptors of a request, whose rules are found one by one. At most eight
/// rules may count a request.
const MAX_DESCRIPTORS: usize = 256;
/// The maximum number of entries of all descriptors of a request. Each rule may look at each entry.
const MAX_ENTRIES: usize = 4_096;

impl TryFrom<RateLimitRequest> for Descriptors {
    type Error = Status;

    fn try_from(request: RateLimitRequest) -> Result<Self, Status> {
        // A request without a cost costs one unit.
        let hits = u64::from(request.hits_addend.max(1));
        if request.descriptors.len() > MAX_DESCRIPTORS {
            return Err(Status::invalid_argument(format!(
                "descriptors: expected at most {MAX_DESCRIPTORS}"
            )));
        }
        let entries = request.descriptors.iter().map(|descriptor| descriptor.entries.len());
        if entries.sum::<usize>() > MAX_ENTRIES {
            return Err(Status::invalid_argument(format!(
                "descriptors: expected at most {MAX_ENTRIES} entries"
            )));
        }
        let list = request.descriptors.into_iter().map(Descriptor::try_from);
        Ok(Self { domain: request.domain, list: list.collect::<Result<_, _>>()?, hits })
    }
}

impl TryFrom<RateLimitDescriptor> for Descriptor {
    type Error = Status;

    fn try_from(descriptor: RateLimitDescriptor) -> Result<Self, Status> {
        if descriptor.is_negative_hits {
            // If the field were ignored, the units to refund would be charged.
            return Err(Status::unimplemented(
                "is_negative_hits: expected false, because units are not refunded",
            ));
        }
        let limit = descriptor.limit.as_ref().map(limit).transpose()?;
        let entries = descriptor.entries.into_iter();
        let entries = entries.map(|entry| (text_of(entry.key), text_of(entry.value))).collect();
        Ok(Self { entries, limit, hits: descriptor.hits_addend })
    }
}

/// Returns the limit that a gateway sets.
fn limit(text: &RateLimitOverride) -> Result<Limit, Status> {
    let period = match text.unit() {
        Unit::Second => Period::SECOND,
        Unit::Minute => Period::MINUTE,
        Unit::Hour => Period::HOUR,
        Unit::Day => Period::DAY,
        Unit::Week => Period::WEEK,
        Unit::Month => Period::MONTH,
        Unit::Year => Period::from_millis(365 * Period::DAY.as_millis())
            .map_err(|error| Status::internal(error.to_string()))?,
        Unit::Unknown => {
            let unit = text.unit;
            return Err(Status::invalid_argument(format!(
                "limit.unit {unit}: expected SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR"
            )));
        }
    };
    Limit::new(text.requests_per_unit.into(), period)
        .map_err(|error| Status::invalid_argument(error.to_string()))
}

/// Returns the response to a request with `count` descriptors.
pub(crate) fn response(reply: Reply, count: usize) -> RateLimitResponse {
    let ok = DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() };
    let mut statuses = vec![ok; count];
    let mut others = reply.decision.iter().flat_map(Decision::parts).collect::<Vec<_>>();
    for selected in &reply.selected {
        let Some(status) = statuses.get_mut(selected.position) else { continue };
        if selected.counted == Counted::Unlimited {
            status.limit_remaining = u32::MAX;
        }
        // Parts are in the order of the selected rules, after those that match the request.
        let is_part = |part: &rl_core::PartStatus<'_>| part.rule() == Some(&*selected.rule);
        let Some(at) = others.iter().position(is_part) else { continue };
        let part = others.remove(at);
        let is_over = part.is_over() && !part.is_shadow();
        if !part.is_disclosed() {
            // Envoy would write the numbers of a status into headers of the response.
            if is_over {
                *status = descriptor_status(None, true);
            }
            continue;
        }
        let governing = part.limits().filter(|limit| !limit.limit().is_shadow());
        let governing =
            governing.min_by_key(|limit| (std::cmp::Reverse(limit.is_over()), limit.remaining()));
        let found = descriptor_status(governing, is_over);
        // Several rules may count one descriptor: its status is that of the most restrictive one.
        let order = |one: &DescriptorStatus| (one.code() != Code::OverLimit, one.limit_remaining);
        let is_first = status.current_limit.is_none() && status.code() != Code::OverLimit;
        if is_first || order(&found) < order(status) {
            *status = found;
        }
    }
    let is_over = !reply.is_allowed();
    // If a rule of the whole request denies it, the first descriptor has its status.
    if is_over && statuses.iter().all(|status| status.code() != Code::OverLimit) {
        let governing = reply.decision.as_ref();
        let governing = governing.and_then(|one| one.governing(GoverningLimit::default()));
        if let Some(first) = statuses.first_mut() {
            *first = descriptor_status(governing, true);
        }
    }
    let would_deny = reply.decision.as_ref().map(would_deny).unwrap_or_default();
    let header = |key: &str, value| HeaderValue { key: key.to_owned(), value };
    let content_type = reply.denial.as_ref().and_then(|denial| denial.content_type);
    let content_type = content_type.map(|value| header("content-type", value.into()));
    let headers = reply.headers.into_iter().map(|(name, value)| header(name, value));
    RateLimitResponse {
        overall_code: if is_over { Code::OverLimit } else { Code::Ok }.into(),
        statuses,
        response_headers_to_add: headers.chain(content_type).collect(),
        request_headers_to_add: would_deny
            .iter()
            .take(1)
            .map(|_| header(SHADOW_HEADER, would_deny.join(", ")))
            .collect(),
        raw_body: reply
            .denial
            .as_ref()
            .map_or_else(Vec::new, |denial| denial.body.as_bytes().into()),
        dynamic_metadata: (!would_deny.is_empty()).then(|| metadata(&would_deny)),
    }
}

/// Returns the status of a descriptor whose most restrictive limit is `governing`.
fn descriptor_status(governing: Option<LimitStatus<'_>>, is_over: bool) -> DescriptorStatus {
    let code = if is_over { Code::OverLimit } else { Code::Ok };
    let Some(governing) = governing else {
        return DescriptorStatus { code: code.into(), ..DescriptorStatus::default() };
    };
    let reset = governing.reset_after();
    DescriptorStatus {
        code: code.into(),
        current_limit: Some(RateLimit {
            requests_per_unit: clamped(governing.max()),
            unit: unit(governing.limit().period()).into(),
            name: governing.public_name().to_string(),
        }),
        limit_remaining: clamped(governing.remaining()),
        duration_until_reset: Some(prost_types::Duration {
            seconds: reset.as_secs().try_into().unwrap_or(i64::MAX),
            nanos: reset.subsec_nanos().try_into().unwrap_or(0),
        }),
    }
}

fn clamped(number: u64) -> u32 {
    number.try_into().unwrap_or(u32::MAX)
}

/// Returns the longest unit of Envoy that is not longer than the period.
fn unit(period: Period) -> Unit {
    let units = [
        (365 * Period::DAY.as_millis(), Unit::Year),
        (Period::MONTH.as_millis(), Unit::Month),
        (Period::WEEK.as_millis(), Unit::Week),
        (Period::DAY.as_millis(), Unit::Day),
        (Period::HOUR.as_millis(), Unit::Hour),
        (Period::MINUTE.as_millis(), Unit::Minute),
    ];
    let fits = |(millis, _): &&(u64, Unit)| *millis <= period.as_millis();
    units.iter().find(fits).map_or(Unit::Second, |(_, unit)| *unit)
}

/// Returns the names of the rules in shadow that would have denied the request.
fn would_deny(decision: &Decision) -> Vec<&str> {
    let rules = decision.parts().filter(|part| part.is_shadow() && part.is_over());
    rules.filter_map(|part| part.rule()).collect()
}

/// Returns the dynamic metadata with the names of rules.
fn metadata(rules: &[&str]) -> Struct {
    let values = rules.iter().map(|rule| Value { kind: Some(Kind::StringValue((*rule).into())) });
    let list = Value { kind: Some(Kind::ListValue(ListValue { values: values.collect() })) };
    Struct { fields: [(SHADOW.to_owned(), list)].into() }
}
