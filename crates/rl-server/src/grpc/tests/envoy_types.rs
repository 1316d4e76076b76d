//! The messages have the bytes of those that are generated from Envoy's descriptions.

use std::fmt::Debug;

use crate::grpc::messages::{
    Code, DescriptorStatus, Entry, HeaderValue, RateLimit, RateLimitDescriptor, RateLimitOverride,
    RateLimitRequest, RateLimitResponse, Unit,
};
use envoy_types::pb::envoy::config::core::v3::HeaderValue as EnvoyHeader;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor as EnvoyDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor as of_descriptor;
use envoy_types::pb::envoy::service::ratelimit::v3 as envoy;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response as of_response;
use envoy_types::pb::envoy::r#type::v3::RateLimitUnit;
use envoy_types::pb::google::protobuf as google;
use prost::Message;
use prost_types::value::Kind;
use prost_types::{Duration, ListValue, Struct, Value};

/// Checks that both messages have the same bytes, and that each is read from those of the other.
fn assert_same<A, B>(ours: &A, theirs: &B)
where
    A: Message + Default + PartialEq + Debug,
    B: Message + Default + PartialEq + Debug,
{
    let (written, expected) = (ours.encode_to_vec(), theirs.encode_to_vec());
    assert_eq!(written, expected, "{ours:?}");
    assert_eq!(B::decode(&*written).unwrap(), *theirs);
    assert_eq!(A::decode(&*expected).unwrap(), *ours);
}

fn units() -> [(Unit, of_response::rate_limit::Unit); 8] {
    use of_response::rate_limit::Unit as Theirs;
    [
        (Unit::Unknown, Theirs::Unknown),
        (Unit::Second, Theirs::Second),
        (Unit::Minute, Theirs::Minute),
        (Unit::Hour, Theirs::Hour),
        (Unit::Day, Theirs::Day),
        (Unit::Week, Theirs::Week),
        (Unit::Month, Theirs::Month),
        (Unit::Year, Theirs::Year),
    ]
}

fn our_header(text: &str) -> HeaderValue {
    HeaderValue { key: format!("x-{text}"), value: text.to_owned() }
}

fn their_header(text: &str) -> EnvoyHeader {
    EnvoyHeader { key: format!("x-{text}"), value: text.to_owned(), raw_value: Vec::new() }
}

#[test]
fn requests_have_the_bytes_of_envoy() {
    for hits in [None, Some(0), Some(1), Some(u64::MAX)] {
        for is_negative_hits in [false, true] {
            let entries = vec![Entry::new("remote_address", "192.0.2.1"), Entry::new("", "ü")];
            let limit = RateLimitOverride { requests_per_unit: 42, unit: Unit::Month.into() };
            let ours = RateLimitDescriptor {
                entries: entries.clone(),
                limit: Some(limit),
                hits_addend: hits,
                is_negative_hits,
            };
            let ours = RateLimitRequest {
                domain: "edge".into(),
                descriptors: vec![ours, RateLimitDescriptor::default()],
                hits_addend: 7,
            };
            let entry = |entry: Entry| of_descriptor::Entry {
                key: String::from_utf8(entry.key).unwrap(),
                value: String::from_utf8(entry.value).unwrap(),
            };
            let theirs = EnvoyDescriptor {
                entries: entries.into_iter().map(entry).collect(),
                limit: Some(of_descriptor::RateLimitOverride {
                    requests_per_unit: 42,
                    unit: RateLimitUnit::Month.into(),
                }),
                hits_addend: hits.map(|value| google::UInt64Value { value }),
                is_negative_hits,
            };
            let theirs = envoy::RateLimitRequest {
                domain: "edge".into(),
                descriptors: vec![theirs, EnvoyDescriptor::default()],
                hits_addend: 7,
            };
            assert_same(&ours, &theirs);
        }
    }
    assert_same(&RateLimitRequest::default(), &envoy::RateLimitRequest::default());
}

#[test]
fn units_of_overrides_have_the_numbers_of_envoy() {
    for (ours, theirs) in [
        (Unit::Unknown, RateLimitUnit::Unknown),
        (Unit::Second, RateLimitUnit::Second),
        (Unit::Minute, RateLimitUnit::Minute),
        (Unit::Hour, RateLimitUnit::Hour),
        (Unit::Day, RateLimitUnit::Day),
        (Unit::Month, RateLimitUnit::Month),
        (Unit::Year, RateLimitUnit::Year),
    ] {
        let (unit, requests_per_unit) = (ours.into(), u32::MAX);
        let override_of_theirs =
            of_descriptor::RateLimitOverride { requests_per_unit, unit: theirs.into() };
        assert_same(&RateLimitOverride { requests_per_unit, unit }, &override_of_theirs);
    }
}

#[test]
fn responses_have_the_bytes_of_envoy() {
    for (code, their_code) in [
        (Code::Unknown, of_response::Code::Unknown),
        (Code::Ok, of_response::Code::Ok),
        (Code::OverLimit, of_response::Code::OverLimit),
    ] {
        for (unit, their_unit) in units() {
            // Both sides have the well-known types of prost.
            let text = |text: &str| Value { kind: Some(Kind::StringValue(text.into())) };
            let values = vec![
                text("edge.trial"),
                Value { kind: Some(Kind::NumberValue(0.5)) },
                Value { kind: Some(Kind::BoolValue(true)) },
                Value { kind: Some(Kind::NullValue(0)) },
            ];
            let list = Value { kind: Some(Kind::ListValue(ListValue { values })) };
            let metadata = Struct { fields: [("would_deny".to_owned(), list)].into() };
            let reset = Duration { seconds: 59, nanos: 999_999_999 };
            let status = DescriptorStatus {
                code: code.into(),
                current_limit: Some(RateLimit {
                    requests_per_unit: 10,
                    unit: unit.into(),
                    name: "edge.user/minute".into(),
                }),
                limit_remaining: u32::MAX,
                duration_until_reset: Some(reset),
            };
            let ours = RateLimitResponse {
                overall_code: code.into(),
                statuses: vec![DescriptorStatus::default(), status],
                response_headers_to_add: vec![our_header("a"), our_header("b")],
                request_headers_to_add: vec![our_header("c")],
                raw_body: b"{\"code\":429}".to_vec(),
                dynamic_metadata: Some(metadata.clone()),
            };
            let their_status = of_response::DescriptorStatus {
                code: their_code.into(),
                current_limit: Some(of_response::RateLimit {
                    requests_per_unit: 10,
                    unit: their_unit.into(),
                    name: "edge.user/minute".into(),
                }),
                limit_remaining: u32::MAX,
                duration_until_reset: Some(converted(&reset)),
                ..Default::default()
            };
            let theirs = envoy::RateLimitResponse {
                overall_code: their_code.into(),
                statuses: vec![of_response::DescriptorStatus::default(), their_status],
                response_headers_to_add: vec![their_header("a"), their_header("b")],
                request_headers_to_add: vec![their_header("c")],
                raw_body: b"{\"code\":429}".to_vec(),
                dynamic_metadata: Some(converted(&metadata)),
                ..Default::default()
            };
            assert_same(&ours, &theirs);
        }
    }
}

/// Converts between two definitions of a well-known type.
fn converted<T: Message + Default>(message: &impl Message) -> T {
    T::decode(&*message.encode_to_vec()).unwrap()
}
