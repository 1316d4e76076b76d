use prost::Message;
use prost_types::FileDescriptorProto;
use rl_server::grpc::messages::{Code, RateLimitRequest, RateLimitResponse};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};

use super::{SHOULD_RATE_LIMIT, Served, descriptor, request, user_rules};

const ENVOY: &str = "envoy.service.ratelimit.v3.RateLimitService";
const KUADRANT: &str = "kuadrant.service.ratelimit.v1.RateLimitService";

#[tokio::test]
async fn a_message_that_is_too_large_is_refused_and_the_connection_goes_on() {
    let served = Served::in_memory(user_rules(&["9/hour"])).await;
    let large = request([descriptor("user", "alice"), descriptor("path", &"a".repeat(1 << 20))]);
    let refused = served.call::<_, RateLimitResponse>(SHOULD_RATE_LIMIT, large).await;
    assert_eq!(refused.unwrap_err().code(), tonic::Code::OutOfRange);
    // A header of Envoy has at most 60 KiB, and may be in several descriptors.
    let path = descriptor("path", &"a".repeat(60 << 10));
    let mut usual = vec![path; 16];
    usual.insert(0, descriptor("user", "alice"));
    let usual = request(usual);
    let (code, statuses) = served.decide(usual).await;
    assert_eq!((code, statuses[0]), (Code::Ok, (Code::Ok, 8)), "the large one charged nothing");
}

#[tokio::test]
async fn a_method_that_the_services_do_not_have_is_unimplemented() {
    let served = Served::in_memory(user_rules(&["9/hour"])).await;
    for path in [
        "/envoy.service.ratelimit.v3.RateLimitService/Other",
        "/kuadrant.service.ratelimit.v1.RateLimitService/ShouldRateLimit",
        "/envoy.service.ratelimit.v2.RateLimitService/ShouldRateLimit",
    ] {
        let error = served.call::<_, RateLimitResponse>(path, RateLimitRequest::default()).await;
        assert_eq!(error.unwrap_err().code(), tonic::Code::Unimplemented, "{path}");
    }
}

#[tokio::test]
async fn the_health_service_reports_the_status_that_was_set() {
    let served = Served::in_memory(user_rules(&["9/hour"])).await;
    let mut client = HealthClient::new(served.channel.clone());
    for (is_healthy, expected) in [
        (None, ServingStatus::Serving),
        (Some(false), ServingStatus::NotServing),
        (Some(true), ServingStatus::Serving),
    ] {
        if let Some(is_healthy) = is_healthy {
            served.health.set(is_healthy).await;
        }
        for service in ["", ENVOY, KUADRANT] {
            let check = HealthCheckRequest { service: service.to_owned() };
            let status = client.check(check).await.unwrap().into_inner().status();
            assert_eq!(status, expected, "{service}");
        }
    }
    let unknown = HealthCheckRequest { service: "other".into() };
    assert_eq!(client.check(unknown).await.unwrap_err().code(), tonic::Code::NotFound);
}

/// Asks the reflection service one question.
async fn reflected(served: &Served, question: MessageRequest) -> MessageResponse {
    let mut client = ServerReflectionClient::new(served.channel.clone());
    let request = ServerReflectionRequest { host: String::new(), message_request: Some(question) };
    let requests = futures::stream::iter([request]);
    let mut answers = client.server_reflection_info(requests).await.unwrap().into_inner();
    let answer: ServerReflectionResponse = answers.message().await.unwrap().unwrap();
    answer.message_response.unwrap()
}

#[tokio::test]
async fn reflection_lists_the_services_and_describes_their_methods() {
    let served = Served::in_memory(user_rules(&["9/hour"])).await;
    let list = MessageRequest::ListServices(String::new());
    let MessageResponse::ListServicesResponse(listed) = reflected(&served, list).await else {
        panic!("the list of services")
    };
    let names: Vec<_> = listed.service.into_iter().map(|service| service.name).collect();
    for name in [ENVOY, KUADRANT, "grpc.health.v1.Health"] {
        assert!(names.iter().any(|known| known == name), "{name}: {names:?}");
    }
    for (service, methods) in [
        (ENVOY, vec!["ShouldRateLimit"]),
        (KUADRANT, vec!["CheckRateLimit", "Report", "Reserve", "Commit"]),
    ] {
        let symbol = MessageRequest::FileContainingSymbol(service.to_owned());
        let MessageResponse::FileDescriptorResponse(files) = reflected(&served, symbol).await
        else {
            panic!("the file of {service}")
        };
        let file = FileDescriptorProto::decode(&*files.file_descriptor_proto[0]).unwrap();
        let described = file.service[0].method.iter().map(|method| method.name());
        assert_eq!(described.collect::<Vec<_>>(), methods);
    }
}
