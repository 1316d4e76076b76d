//! The decision server's gRPC services, over a socket, as Envoy and Kuadrant call them.

mod kuadrant;
mod on_redis;
mod operation;
mod records;

use std::net::Ipv4Addr;

use http::uri::PathAndQuery;
use rl_core::adapter::HttpLimiter;
use rl_core::rules::Rules;
use rl_core::{MemoryStore, RateLimiter, RateLimiterBuilder};
use rl_serve::{HttpServer, Shutdown};
use rl_server::DecisionService;
use rl_server::domains::{Domains, compile};
use rl_server::grpc::messages::{
    Code, Entry, RateLimitDescriptor, RateLimitOverride, RateLimitRequest, RateLimitResponse, Unit,
};
use rl_server::grpc::{Health, services};
use rl_tests::web::new_year;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// A server of the domain `edge`, and a connection to it.
struct Served {
    service: DecisionService,
    health: Health,
    channel: Channel,
}

impl Served {
    /// Serves rules of the domain `edge` in memory, on a clock that does not move.
    async fn in_memory(rules: Value) -> Self {
        let store = MemoryStore::builder().clock(new_year()).build();
        Self::new(rules, RateLimiter::builder().store(store)).await
    }

    /// Serves rules of the domain `edge`.
    async fn new(rules: Value, limiter: RateLimiterBuilder) -> Self {
        let domains: Domains = serde_json::from_value(json!({ "edge": rules })).unwrap();
        let rules = compile(&domains, Rules::new(), None).unwrap();
        let limiter = limiter.rules(rules).build().unwrap();
        let service = DecisionService::new(HttpLimiter::new(limiter));
        let (services, health) = services(&service).await;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = HttpServer::new(services).http2_only();
        tokio::spawn(async move { server.serve(listener, &Shutdown::new()).await });
        let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
        Self { service, health, channel: endpoint.connect().await.unwrap() }
    }

    /// Calls a method.
    async fn call<In, Out>(&self, path: &'static str, message: In) -> Result<Out, Status>
    where
        In: prost::Message + 'static,
        Out: prost::Message + Default + 'static,
    {
        call(&self.channel, path, message).await
    }

    /// Calls Envoy's service.
    async fn ask(&self, request: RateLimitRequest) -> RateLimitResponse {
        self.call(SHOULD_RATE_LIMIT, request).await.unwrap()
    }

    /// Returns the decisions on a request and on each of its descriptors, and what they leave.
    async fn decide(&self, request: RateLimitRequest) -> (Code, Vec<(Code, u32)>) {
        let response = self.ask(request).await;
        let statuses = response.statuses.iter();
        let statuses = statuses.map(|status| (status.code(), status.limit_remaining));
        (response.overall_code(), statuses.collect())
    }
}

/// Calls a method of a server.
async fn call<In, Out>(channel: &Channel, path: &'static str, message: In) -> Result<Out, Status>
where
    In: prost::Message + 'static,
    Out: prost::Message + Default + 'static,
{
    let mut client = Grpc::new(channel.clone());
    client.ready().await.map_err(|error| Status::unknown(error.to_string()))?;
    let codec = ProstCodec::<In, Out>::default();
    let path = PathAndQuery::from_static(path);
    Ok(client.unary(Request::new(message), path, codec).await?.into_inner())
}

fn descriptor(key: &str, value: &str) -> RateLimitDescriptor {
    let entries = vec![Entry::new(key, value)];
    RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }
}

fn request(descriptors: impl Into<Vec<RateLimitDescriptor>>) -> RateLimitRequest {
    let descriptors = descriptors.into();
    RateLimitRequest { domain: "edge".into(), descriptors, hits_addend: 0 }
}

fn user_rules(limits: &[&str]) -> Value {
    json!({ "user": { "descriptor": ["user"], "limits": limits } })
}

#[tokio::test]
async fn a_response_has_one_status_for_each_descriptor() {
    let served = Served::in_memory(json!({
        "user": { "descriptor": ["user"], "limits": ["1/minute"] },
        "open": { "descriptor": ["open"] },
    }))
    .await;
    let three = [descriptor("other", "x"), descriptor("open", "y"), descriptor("user", "alice")];
    let (code, statuses) = served.decide(request(three.clone())).await;
    assert_eq!(code, Code::Ok);
    assert_eq!(statuses, [(Code::Ok, 0), (Code::Ok, u32::MAX), (Code::Ok, 0)]);
    let response = served.ask(request(three)).await;
    assert_eq!(response.overall_code(), Code::OverLimit);
    let codes: Vec<_> = response.statuses.iter().map(|status| status.code()).collect();
    assert_eq!(codes, [Code::Ok, Code::Ok, Code::OverLimit]);
    assert!(response.statuses[0].current_limit.is_none(), "no rule has the descriptor");
    let wait = response.statuses[2].duration_until_reset.unwrap();
    assert_eq!((wait.seconds, wait.nanos), (60, 0));
    let retry = response.response_headers_to_add.iter().find(|one| one.key == "retry-after");
    assert_eq!(retry.unwrap().value, "60");
}

/// A request whose `hits_addend` is written also if it is 0.
#[derive(Clone, PartialEq, prost::Message)]
struct WithHits {
    #[prost(string, tag = "1")]
    domain: String,
    #[prost(message, repeated, tag = "2")]
    descriptors: Vec<RateLimitDescriptor>,
    #[prost(uint32, optional, tag = "3")]
    hits_addend: Option<u32>,
}

#[tokio::test]
async fn a_cost_of_0_or_none_at_the_request_is_1() {
    let served = Served::in_memory(user_rules(&["10/minute"])).await;
    for (hits_addend, left) in [(None, 9), (Some(0), 8), (Some(1), 7), (Some(5), 2)] {
        let descriptors = vec![descriptor("user", "alice")];
        let message = WithHits { domain: "edge".into(), descriptors, hits_addend };
        let response: RateLimitResponse = served.call(SHOULD_RATE_LIMIT, message).await.unwrap();
        assert_eq!(response.statuses[0].limit_remaining, left, "{hits_addend:?}");
    }
}

#[tokio::test]
async fn the_cost_of_a_descriptor_replaces_that_of_the_request() {
    let served = Served::in_memory(json!({
        "user": { "descriptor": ["user"], "limits": ["10/minute"] },
        "model": { "descriptor": ["model"], "limits": ["100/minute"] },
    }))
    .await;
    let mut model = descriptor("model", "m");
    model.hits_addend = Some(40);
    let both = RateLimitRequest {
        hits_addend: 3,
        ..request([descriptor("user", "alice"), model.clone()])
    };
    let (_, statuses) = served.decide(both.clone()).await;
    assert_eq!(statuses, [(Code::Ok, 7), (Code::Ok, 60)]);
    model.hits_addend = Some(0);
    let (_, statuses) = served.decide(request([model])).await;
    assert_eq!(statuses, [(Code::Ok, 60)], "a cost of 0 charges nothing");
    served.ask(both.clone()).await;
    // 20 units are left of the model's, so nothing is charged to the user either.
    let (code, statuses) = served.decide(both).await;
    assert_eq!((code, statuses), (Code::OverLimit, vec![(Code::Ok, 4), (Code::OverLimit, 20)]));
}

#[tokio::test]
async fn an_unknown_domain_is_allowed_and_counted() {
    let served = Served::in_memory(user_rules(&["1/minute"])).await;
    let user = [descriptor("user", "alice")];
    for asked in 1..=3 {
        let other = RateLimitRequest { domain: "other".into(), ..request(user.clone()) };
        assert_eq!(served.decide(other).await, (Code::Ok, vec![(Code::Ok, 0)]));
        assert_eq!(served.service.unknown_domains(), asked);
    }
    served.ask(request(user)).await;
    assert_eq!(served.service.unknown_domains(), 3, "the domain `edge` is known");
}

/// Fault: with `apply_on_stream_done`, Envoy calls a second time after the response, also for denied
/// requests. A charge of 5 000 tokens on 100 remaining ones that was refused would never exhaust the
/// budget.
#[tokio::test]
async fn a_call_when_the_stream_is_done_charges_beyond_the_limits() {
    let served = Served::in_memory(json!({
        "requests": { "descriptor": ["user"], "limits": ["3/hour"] },
        "tokens": { "descriptor": ["tokens_of"], "limits": ["100/hour"], "charge": "after" },
    }))
    .await;
    let with_tokens = |hits| {
        let tokens =
            RateLimitDescriptor { hits_addend: Some(hits), ..descriptor("tokens_of", "a") };
        request([descriptor("user", "alice"), tokens])
    };
    let done = |hits| {
        let tokens =
            RateLimitDescriptor { hits_addend: Some(hits), ..descriptor("tokens_of", "a") };
        request([tokens])
    };
    assert_eq!(served.decide(with_tokens(0)).await.0, Code::Ok);
    assert_eq!(served.decide(done(5_000)).await.0, Code::Ok);
    assert_eq!(served.decide(with_tokens(0)).await.0, Code::OverLimit);
    // The call after the denied request charges its tokens too.
    assert_eq!(served.decide(done(1)).await.0, Code::Ok);
    // The denied request was not charged to the other rule.
    let (_, statuses) = served.decide(request([descriptor("user", "alice")])).await;
    assert_eq!(statuses, [(Code::Ok, 1)]);
}

#[tokio::test]
async fn a_rule_in_shadow_is_named_in_the_metadata() {
    let rules = json!({ "user": { "descriptor": ["user"], "limits": ["1/hour"], "shadow": true } });
    let served = Served::in_memory(rules).await;
    let response = served.ask(request([descriptor("user", "alice")])).await;
    assert_eq!((response.overall_code(), response.dynamic_metadata), (Code::Ok, None));
    let response = served.ask(request([descriptor("user", "alice")])).await;
    assert_eq!(response.overall_code(), Code::Ok);
    let metadata = response.dynamic_metadata.unwrap();
    let Some(prost_types::value::Kind::ListValue(rules)) = &metadata.fields["would_deny"].kind
    else {
        panic!("{metadata:?}")
    };
    let name = prost_types::value::Kind::StringValue("edge.user".into());
    assert_eq!(rules.values, [prost_types::Value { kind: Some(name) }]);
}

#[tokio::test]
async fn a_unit_that_does_not_exist_is_an_invalid_argument_and_charges_nothing() {
    let served = Served::in_memory(user_rules(&["2/hour"])).await;
    for unit in [0, 8, -1] {
        let limit = Some(RateLimitOverride { requests_per_unit: 5, unit });
        let overridden = RateLimitDescriptor { limit, ..descriptor("model", "m") };
        let both = request([descriptor("user", "alice"), overridden]);
        let error = served.call::<_, RateLimitResponse>(SHOULD_RATE_LIMIT, both).await.unwrap_err();
        assert_eq!(error.code(), tonic::Code::InvalidArgument, "{unit}");
        assert!(error.message().contains(&format!("limit.unit {unit}")), "{}", error.message());
    }
    for unit in i32::from(Unit::Second)..=i32::from(Unit::Week) {
        let limit = Some(RateLimitOverride { requests_per_unit: 5, unit });
        let overridden = RateLimitDescriptor { limit, ..descriptor("unit", &unit.to_string()) };
        let response = served.ask(request([overridden])).await;
        assert_eq!(response.statuses[0].current_limit.as_ref().unwrap().unit, unit);
    }
    let (_, statuses) = served.decide(request([descriptor("user", "alice")])).await;
    assert_eq!(statuses, [(Code::Ok, 1)]);
}

/// Fault: a server that ignored the field would charge the units that have to be refunded.
#[tokio::test]
async fn a_negative_cost_is_refused_and_charges_nothing() {
    let served = Served::in_memory(user_rules(&["9/hour"])).await;
    let back = RateLimitDescriptor {
        hits_addend: Some(5),
        is_negative_hits: true,
        ..descriptor("user", "alice")
    };
    let refused = served.call::<_, RateLimitResponse>(SHOULD_RATE_LIMIT, request([back])).await;
    assert_eq!(refused.unwrap_err().code(), tonic::Code::Unimplemented);
    let (_, statuses) = served.decide(request([descriptor("user", "alice")])).await;
    assert_eq!(statuses, [(Code::Ok, 8)]);
}

#[tokio::test]
async fn a_request_without_descriptors_is_allowed() {
    let served = Served::in_memory(user_rules(&["0/hour"])).await;
    let none: [RateLimitDescriptor; 0] = [];
    assert_eq!(served.decide(request(none)).await, (Code::Ok, vec![]));
}
