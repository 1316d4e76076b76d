//! The messages of the rate limit services of Envoy, `envoy.service.ratelimit.v3`, and of Kuadrant,
//! `kuadrant.service.ratelimit.v1`.
//!
//! Only the numbers and types of fields matter on the wire. Fields that the services neither read
//! nor write are left out. The files in `proto/` describe the same messages.

use prost_types::Struct;

/// A request for a decision.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimitRequest {
    /// The domain, which has rules of its own.
    #[prost(string, tag = "1")]
    pub domain: String,
    /// The descriptors.
    #[prost(message, repeated, tag = "2")]
    pub descriptors: Vec<RateLimitDescriptor>,
    /// The cost; 0 means 1.
    #[prost(uint32, tag = "3")]
    pub hits_addend: u32,
}

/// A list of keys and values, with a limit and a cost that replace those of its rule.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimitDescriptor {
    /// The keys and values.
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<Entry>,
    /// The limit in place of the rule's.
    #[prost(message, optional, tag = "2")]
    pub limit: Option<RateLimitOverride>,
    /// The cost in place of the request's. With 0, the rule decides and charges nothing.
    #[prost(message, optional, tag = "3")]
    pub hits_addend: Option<u64>,
    /// Whether the cost is refunded. The services refuse such a request.
    #[prost(bool, tag = "4")]
    pub is_negative_hits: bool,
}

/// A key and a value.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Entry {
    // Gateways send headers of clients, which need not be UTF-8. A `string` of Protocol Buffers has
    // the same bytes, but the whole message would be refused, after which a gateway may let the
    // request pass.
    /// The key.
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// The value.
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
}

impl Entry {
    /// Creates an entry.
    #[must_use]
    pub fn new(key: &str, value: &str) -> Self {
        Self { key: key.into(), value: value.into() }
    }
}

/// A limit that the gateway sets.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct RateLimitOverride {
    /// The units in a period.
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    /// The period.
    #[prost(enumeration = "Unit", tag = "2")]
    pub unit: i32,
}

/// A period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Unit {
    /// None.
    Unknown = 0,
    /// A second.
    Second = 1,
    /// A minute.
    Minute = 2,
    /// An hour.
    Hour = 3,
    /// A day.
    Day = 4,
    /// 30 days.
    Month = 5,
    /// 365 days.
    Year = 6,
    /// A week.
    Week = 7,
}

/// A decision.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimitResponse {
    /// The decision on the request.
    #[prost(enumeration = "Code", tag = "1")]
    pub overall_code: i32,
    /// The decision on each descriptor, in their order.
    #[prost(message, repeated, tag = "2")]
    pub statuses: Vec<DescriptorStatus>,
    /// The headers of the response to the client.
    #[prost(message, repeated, tag = "3")]
    pub response_headers_to_add: Vec<HeaderValue>,
    /// The headers of the request to the service.
    #[prost(message, repeated, tag = "4")]
    pub request_headers_to_add: Vec<HeaderValue>,
    /// The body of a denial.
    #[prost(bytes = "vec", tag = "5")]
    pub raw_body: Vec<u8>,
    /// Values for the log and the filters of the gateway.
    #[prost(message, optional, tag = "6")]
    pub dynamic_metadata: Option<Struct>,
}

/// Whether a request or a descriptor is over its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Code {
    /// Not known.
    Unknown = 0,
    /// Within the limits.
    Ok = 1,
    /// Over a limit.
    OverLimit = 2,
}

/// The decision on a descriptor.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DescriptorStatus {
    /// Whether the descriptor is over a limit.
    #[prost(enumeration = "Code", tag = "1")]
    pub code: i32,
    /// The most restrictive limit; `None` if no rule has the descriptor.
    #[prost(message, optional, tag = "2")]
    pub current_limit: Option<RateLimit>,
    /// The remaining units of that limit.
    #[prost(uint32, tag = "3")]
    pub limit_remaining: u32,
    /// The time until that limit has all its units.
    #[prost(message, optional, tag = "4")]
    pub duration_until_reset: Option<prost_types::Duration>,
}

/// A limit.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RateLimit {
    /// The units in a period.
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    /// The period.
    #[prost(enumeration = "Unit", tag = "2")]
    pub unit: i32,
    /// The name of the limit.
    #[prost(string, tag = "3")]
    pub name: String,
}

/// A header.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct HeaderValue {
    /// The name.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The value.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// A request to hold units until the cost of a request is known.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ReserveRequest {
    /// The domain, which has rules of its own.
    #[prost(string, tag = "1")]
    pub domain: String,
    /// The descriptors. Their costs are ignored.
    #[prost(message, repeated, tag = "2")]
    pub descriptors: Vec<RateLimitDescriptor>,
    /// The estimate of the cost.
    #[prost(uint64, tag = "3")]
    pub amount: u64,
    /// The time after which the units are refunded.
    #[prost(message, optional, tag = "4")]
    pub ttl: Option<prost_types::Duration>,
}

/// Whether the units are held.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ReserveResponse {
    /// The decision on the request.
    #[prost(enumeration = "Code", tag = "1")]
    pub code: i32,
    /// The id of the reservation; empty if none is held.
    #[prost(string, tag = "2")]
    pub reservation_id: String,
}

/// The cost of a request, which ends its reservation.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CommitRequest {
    /// The domain of the reservation.
    #[prost(string, tag = "1")]
    pub domain: String,
    /// The descriptors of the reservation. Their costs are ignored.
    #[prost(message, repeated, tag = "2")]
    pub descriptors: Vec<RateLimitDescriptor>,
    /// The id of the reservation, or empty.
    #[prost(string, tag = "3")]
    pub reservation_id: String,
    /// The cost.
    #[prost(uint64, tag = "4")]
    pub actual_amount: u64,
}

/// The end of a reservation.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct CommitResponse {
    /// Whether the reservation was still held.
    #[prost(bool, tag = "1")]
    pub reservation_released: bool,
}
