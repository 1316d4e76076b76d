//! The examples in the documentation of Envoy's rate limit service, with the decisions that it
//! describes.

use std::time::Duration;

use super::{Server, envoy};
use crate::grpc::messages::Code;

/// The entries of one descriptor.
type Entries = &'static [(&'static str, &'static str)];

/// The descriptors of a request, the number of requests in a row, and how many of them are allowed.
type Case = (&'static [Entries], usize, usize);

/// Sends the requests of each case in their order, to one server.
async fn check(domain: &str, file: &str, cases: &[Case]) {
    let server = Server::new(&envoy(file).domains);
    for (descriptors, attempts, expected) in cases {
        let allowed = server.allowed(domain, descriptors, *attempts).await;
        assert_eq!(allowed, *expected, "{domain}: {descriptors:?}");
    }
}

#[tokio::test]
async fn example_1_has_a_limit_for_each_of_two_values() {
    let file = "
domain: mongo_cps
descriptors:
  - key: database
    value: users
    rate_limit:
      unit: second
      requests_per_unit: 500

  - key: database
    value: default
    rate_limit:
      unit: second
      requests_per_unit: 500
";
    let cases: [Case; 4] = [
        (&[&[("database", "users")]], 501, 500),
        (&[&[("database", "default")]], 501, 500),
        (&[&[("database", "other")]], 501, 501),
        (&[&[("Database", "users")]], 501, 501),
    ];
    check("mongo_cps", file, &cases).await;
}

const EXAMPLE_2: &str = "
domain: messaging
descriptors:
  # Only allow 5 marketing messages a day
  - key: message_type
    value: marketing
    descriptors:
      - key: to_number
        rate_limit:
          unit: day
          requests_per_unit: 5

  # Only allow 100 messages a day to any unique phone number
  - key: to_number
    rate_limit:
      unit: day
      requests_per_unit: 100
";

#[tokio::test]
async fn example_2_limits_each_number_alone_and_with_its_kind_of_message() {
    let cases: [Case; 5] = [
        (&[&[("message_type", "marketing"), ("to_number", "2061111111")]], 6, 5),
        (&[&[("message_type", "marketing"), ("to_number", "2062222222")]], 6, 5),
        (&[&[("message_type", "other"), ("to_number", "2061111111")]], 6, 6),
        (&[&[("message_type", "marketing")]], 6, 6),
        (&[&[("to_number", "2061111111")]], 101, 100),
    ];
    check("messaging", EXAMPLE_2, &cases).await;
    let cases: [Case; 1] = [(
        &[
            &[("message_type", "marketing"), ("to_number", "2061111111")],
            &[("to_number", "2061111111")],
        ],
        6,
        5,
    )];
    check("messaging", EXAMPLE_2, &cases).await;
}

/// The difference that is printed at the start: that service charges the other descriptors too.
#[tokio::test]
async fn a_request_that_one_descriptor_denies_charges_no_other() {
    let server = Server::new(&envoy(EXAMPLE_2).domains);
    let marketing: Entries = &[("message_type", "marketing"), ("to_number", "2061111111")];
    let number: Entries = &[("to_number", "2061111111")];
    for _ in 0..50 {
        server.call("messaging", &[marketing, number]).await;
    }
    assert_eq!(server.allowed("messaging", &[number], 101).await, 95);
}

#[tokio::test]
async fn example_3_prefers_the_value_over_the_key_alone() {
    let file = "
domain: edge_proxy_per_ip
descriptors:
  - key: remote_address
    rate_limit:
      unit: second
      requests_per_unit: 10

  # Black list IP
  - key: remote_address
    value: 50.0.0.5
    rate_limit:
      unit: second
      requests_per_unit: 0
";
    let cases: [Case; 3] = [
        (&[&[("remote_address", "50.0.0.1")]], 11, 10),
        (&[&[("remote_address", "50.0.0.2")]], 11, 10),
        (&[&[("remote_address", "50.0.0.5")]], 1, 0),
    ];
    check("edge_proxy_per_ip", file, &cases).await;
}

#[tokio::test]
async fn example_4_matches_descriptors_of_the_same_depth() {
    let shallow = "
domain: example4
descriptors:
  - key: key
    value: value
    rate_limit:
      requests_per_unit: 300
      unit: second
";
    let deep = "
domain: example4
descriptors:
  - key: key
    value: value
    descriptors:
      - key: subkey
        rate_limit:
          requests_per_unit: 300
          unit: second
";
    let request: &[Entries] = &[&[("key", "value"), ("subkey", "subvalue")]];
    check("example4", shallow, &[(request, 301, 301)]).await;
    check("example4", deep, &[(request, 301, 300)]).await;
}

#[tokio::test]
async fn example_5_reports_an_unlimited_descriptor() {
    let file = "
domain: internal
descriptors:
  - key: ldap
    rate_limit:
      unlimited: true

  - key: azure
    rate_limit:
      unit: minute
      requests_per_unit: 100
";
    let cases: [Case; 2] =
        [(&[&[("ldap", "any")]], 1_000, 1_000), (&[&[("azure", "any")]], 101, 100)];
    check("internal", file, &cases).await;
    let server = Server::new(&envoy(file).domains);
    let response = server.call("internal", &[&[("ldap", "any")], &[("unknown", "any")]]).await;
    let remaining = response.statuses.iter().map(|status| status.limit_remaining);
    assert_eq!(remaining.collect::<Vec<_>>(), [u32::MAX, 0]);
}

#[tokio::test]
async fn example_6_denies_nothing_in_shadow() {
    let file = "
domain: example6
descriptors:
  - key: service
    descriptors:
      - key: user
        value: user-a
        rate_limit:
          requests_per_unit: 10
          unit: second
        shadow_mode: true
      - key: user
        value: user-b
        rate_limit:
          requests_per_unit: 20
          unit: second
";
    let cases: [Case; 3] = [
        (&[&[("service", "auth-service"), ("user", "user-a")]], 50, 50),
        (&[&[("service", "auth-service"), ("user", "user-b")]], 21, 20),
        (&[&[("service", "other-service"), ("user", "user-b")]], 21, 20),
    ];
    check("example6", file, &cases).await;
}

#[tokio::test]
async fn example_7_replaces_the_limit_that_is_named() {
    let file = "
domain: example7
descriptors:
  - key: key_1
    value: value_1
    descriptors:
      - key: user
        value: bkthomps
        rate_limit:
          name: specific_limit
          requests_per_unit: 5
          unit: second
  - key: key_2
    value: value_2
    descriptors:
      - key: user
        value: bkthomps
        rate_limit:
          replaces:
            - name: specific_limit
          requests_per_unit: 10
          unit: second
";
    const FIRST: Entries = &[("key_1", "value_1"), ("user", "bkthomps")];
    const SECOND: Entries = &[("key_2", "value_2"), ("user", "bkthomps")];
    check("example7", file, &[(&[FIRST], 6, 5), (&[SECOND], 11, 10)]).await;
    // The limit that was replaced is not charged.
    check("example7", file, &[(&[FIRST, SECOND], 11, 10), (&[FIRST], 6, 5)]).await;
}

#[tokio::test]
async fn example_8_limits_values_that_are_not_named_each_on_its_own() {
    let file = "
domain: example8
descriptors:
  - key: key1
    detailed_metric: true
    rate_limit:
      unit: minute
      requests_per_unit: 10
  - key: key1
    value: value1
    rate_limit:
      unit: minute
      requests_per_unit: 20
";
    let cases: [Case; 3] = [
        (&[&[("key1", "unspecified_value")]], 11, 10),
        (&[&[("key1", "unspecified_value2")]], 11, 10),
        (&[&[("key1", "value1")]], 21, 20),
    ];
    check("example8", file, &cases).await;
}

#[tokio::test]
async fn example_9_matches_wildcards_anywhere() {
    let file = |key: &str, value: &str| {
        format!(
            "
domain: example9
descriptors:
  - key: {key}
    value: {value}
    rate_limit:
      unit: minute
      requests_per_unit: 20
"
        )
    };
    let cases: [Case; 4] = [
        (&[&[("key1", "value1")]], 21, 20),
        (&[&[("key1", "value2")]], 21, 20),
        (&[&[("key1", "valueXYZ")]], 21, 20),
        (&[&[("key1", "other")]], 21, 21),
    ];
    check("example9", &file("key1", "value*"), &cases).await;
    let cases: [Case; 3] = [
        (&[&[("path", "/api/123/action")]], 21, 20),
        (&[&[("path", "/api/user-id/action")]], 21, 20),
        (&[&[("path", "/api/123/other")]], 21, 21),
    ];
    check("example9", &file("path", "/api/*/action"), &cases).await;
    let cases: [Case; 3] = [
        (&[&[("route", "/api/v1/resource/123/action")]], 21, 20),
        (&[&[("route", "/api/v2/resource/456/action")]], 21, 20),
        (&[&[("route", "/api/v2/other/456/action")]], 21, 21),
    ];
    check("example9", &file("route", "/api/*/resource/*/action"), &cases).await;
}

#[tokio::test]
async fn example_10_limits_requests_and_ignores_the_settings_of_metrics() {
    let file = "
domain: example10
descriptors:
  - key: route
    value_to_metric: true
    descriptors:
      - key: http_method
        value_to_metric: true
        descriptors:
          - key: subject_id
            rate_limit:
              unit: minute
              requests_per_unit: 60
";
    let cases: [Case; 2] = [
        (&[&[("route", "api"), ("http_method", "GET"), ("subject_id", "123")]], 61, 60),
        (&[&[("route", "web"), ("http_method", "POST"), ("subject_id", "456")]], 61, 60),
    ];
    check("example10", file, &cases).await;
    let file = "
domain: example10_wildcard
descriptors:
  - key: user
    value_to_metric: true
    descriptors:
      - key: action
        value: read*
        value_to_metric: true
        descriptors:
          - key: resource
            rate_limit:
              unit: minute
              requests_per_unit: 100
";
    let cases: [Case; 3] = [
        (&[&[("user", "alice"), ("action", "readfile"), ("resource", "documents")]], 101, 100),
        (&[&[("user", "alice"), ("action", "readall"), ("resource", "documents")]], 101, 100),
        (&[&[("user", "alice"), ("action", "write"), ("resource", "documents")]], 101, 101),
    ];
    check("example10_wildcard", file, &cases).await;
}

#[tokio::test]
async fn example_11_shares_a_limit_among_all_values_that_match() {
    let file = "
domain: example11
descriptors:
  # With share_threshold: true, all files/* matches share the same threshold
  - key: files
    value: files/*
    share_threshold: true
    rate_limit:
      unit: hour
      requests_per_unit: 10

  # Without share_threshold, each files_no_share/* match has its own isolated threshold
  - key: files_no_share
    value: files_no_share/*
    share_threshold: false
    rate_limit:
      unit: hour
      requests_per_unit: 10
";
    let cases: [Case; 6] = [
        (&[&[("files", "files/a.pdf")]], 5, 5),
        (&[&[("files", "files/b.csv")]], 5, 5),
        (&[&[("files", "files/c.txt")]], 1, 0),
        (&[&[("files_no_share", "files_no_share/a.pdf")]], 11, 10),
        (&[&[("files_no_share", "files_no_share/b.csv")]], 11, 10),
        (&[&[("files_no_share", "other")]], 11, 11),
    ];
    check("example11", file, &cases).await;
    let file = "
domain: example11_metrics
descriptors:
  - key: route
    value: api/*
    share_threshold: true
    value_to_metric: true
    descriptors:
      - key: method
        rate_limit:
          unit: minute
          requests_per_unit: 60
";
    let cases: [Case; 3] = [
        (&[&[("route", "api/v1"), ("method", "GET")]], 30, 30),
        (&[&[("route", "api/v2"), ("method", "GET")]], 31, 30),
        (&[&[("route", "api/v1"), ("method", "POST")]], 61, 60),
    ];
    check("example11_metrics", file, &cases).await;
}

/// Envoy's service shares the values of one key, and keeps those of another apart.
#[tokio::test]
async fn values_of_one_key_share_a_limit_while_those_of_another_do_not() {
    let file = "
domain: files
descriptors:
  - key: path
    value: path/*
    share_threshold: true
    descriptors:
      - key: file
        value: file/*
        descriptors:
          - key: type
            rate_limit: { unit: minute, requests_per_unit: 2 }
";
    let cases: [Case; 3] = [
        (&[&[("path", "path/a"), ("file", "file/1"), ("type", "x")]], 3, 2),
        (&[&[("path", "path/b"), ("file", "file/1"), ("type", "x")]], 1, 0),
        (&[&[("path", "path/b"), ("file", "file/2"), ("type", "x")]], 3, 2),
    ];
    check("files", file, &cases).await;
}

#[tokio::test]
async fn windows_begin_at_multiples_of_the_unit() {
    let file = |unit: &str| {
        format!(
            "domain: d\ndescriptors: [{{ key: k, rate_limit: {{ unit: {unit}, requests_per_unit: 1 }} }}]"
        )
    };
    // The clock of the server is half a second after 12:30:30.
    for (unit, left) in [
        ("second", Duration::from_millis(500)),
        ("MINUTE", Duration::from_millis(29_500)),
        ("hour", Duration::from_millis(29 * 60_000 + 29_500)),
        ("Day", Duration::from_millis((11 * 60 + 29) * 60_000 + 29_500)),
    ] {
        let server = Server::new(&envoy(&file(unit)).domains);
        let request: [&[(&str, &str)]; 1] = [&[("k", "v")]];
        assert_eq!(server.allowed("d", &request, 2).await, 1, "{unit}");
        server.clock.advance(left - Duration::from_millis(1));
        assert_eq!(server.allowed("d", &request, 1).await, 0, "{unit}");
        server.clock.advance(Duration::from_millis(1));
        assert_eq!(server.allowed("d", &request, 2).await, 1, "{unit}");
    }
    let year = 365 * 86_400;
    let server = Server::new(&envoy(&file("year")).domains);
    let response = server.call("d", &[&[("k", "v")]]).await;
    let reset = response.statuses[0].duration_until_reset.unwrap().seconds;
    assert_eq!(reset, year - (20_000 * 86_400 + 12 * 3_600 + 30 * 60 + 30) % year - 1);
}

#[tokio::test]
async fn a_descriptor_without_a_limit_is_allowed_beside_a_limited_key() {
    let file = "
domain: test-domain
descriptors:
  - key: key2
    rate_limit: { unit: minute, requests_per_unit: 1 }
  - key: key2
    value: value3
  - key: key5
    value: value5
    rate_limit: { unit: day, requests_per_unit: 1 }
    descriptors:
      - key: subkey5
        value: 5
        rate_limit: { unit: day, requests_per_unit: 2 }
";
    let cases: [Case; 5] = [
        (&[&[("key2", "value3")]], 9, 9),
        (&[&[("key2", "value4")]], 2, 1),
        (&[&[("key5", "value5")]], 2, 1),
        (&[&[("key5", "value5"), ("subkey5", "5")]], 3, 2),
        (&[&[("key5", "value5"), ("subkey5", "6")]], 3, 3),
    ];
    check("test-domain", file, &cases).await;
    let server = Server::new(&envoy(file).domains);
    let response = server.call("other-domain", &[&[("key2", "value4")]]).await;
    assert_eq!(response.overall_code(), Code::Ok);
}
