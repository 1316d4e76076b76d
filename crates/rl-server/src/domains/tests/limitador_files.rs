//! Files of limitador, with the decisions that it describes.

use std::time::Duration;

use super::{Server, limitador, limitador_error};
use crate::grpc::messages::Code;

const EXAMPLE: &str = "
---
- namespace: test_namespace
  max_value: 1000000
  seconds: 60
  conditions:
  variables:
- namespace: test_namespace
  max_value: 5
  seconds: 60
  conditions:
    - \"descriptors[0]['req.method'] == 'POST'\"
  variables:
    - descriptors[0]['user_id']
";

#[tokio::test]
async fn the_example_limits_each_user_that_writes() {
    let imported = limitador(EXAMPLE);
    let server = Server::new(&imported.domains);
    let post = |user| [("req.method", "POST"), ("user_id", user)];
    for user in ["alice", "bob"] {
        let allowed = server.allowed("test_namespace", &[&post(user)], 6).await;
        assert_eq!(allowed, 5, "{user}");
    }
    for entries in [
        &[("req.method", "GET"), ("user_id", "alice")][..],
        // Without one of the variables, the limit does not apply.
        &[("req.method", "POST")],
        &[("user_id", "alice")],
    ] {
        assert_eq!(server.allowed("test_namespace", &[entries], 9).await, 9, "{entries:?}");
    }
    // The rule of all requests counts them in the same step.
    let response = server.call("test_namespace", &[&[("x", "y")]]).await;
    assert_eq!(response.statuses[0].limit_remaining, 1_000_000 - 5 - 5 - 27 - 1);
    assert_eq!(server.allowed("other", &[&post("alice")], 9).await, 9);
}

#[tokio::test]
async fn the_example_of_the_sandbox_limits_by_method_and_path() {
    let file = "
---
- namespace: test_namespace
  max_value: 10
  seconds: 60
  conditions:
    - \"descriptors[0]['req.method'] == 'GET'\"
    - \"descriptors[0]['req.path'] != '/json'\"
  variables: []
- namespace: test_namespace
  max_value: 5
  seconds: 60
  conditions:
    - \"descriptors[0]['req.method'] == 'POST'\"
    - \"descriptors[0]['req.path'] != '/json'\"
  variables: []
- namespace: test_namespace
  max_value: 50000
  seconds: 10
  conditions:
    - \"descriptors[0]['req.method'] == 'GET'\"
    - \"descriptors[0]['req.path'] == '/json'\"
  variables: []
";
    let server = Server::new(&limitador(file).domains);
    for (method, path, attempts, expected) in [
        ("GET", "/a", 7, 7),
        ("GET", "/b", 7, 3),
        ("POST", "/a", 6, 5),
        ("GET", "/json", 99, 99),
        ("POST", "/json", 99, 99),
        ("PUT", "/a", 99, 99),
    ] {
        let request = [("req.method", method), ("req.path", path)];
        let allowed = server.allowed("test_namespace", &[&request], attempts).await;
        assert_eq!(allowed, expected, "{method} {path}");
    }
}

#[tokio::test]
async fn the_example_of_the_documentation_counts_only_requests_with_the_entries() {
    // The conditions and variables of the documentation, and whether its request is counted.
    for (conditions, variables, is_counted) in [
        ("[\"descriptors[0].KEY_A == 'VALUE_A'\"]", "[]", true),
        ("[\"descriptors[0].KEY_B == 'VALUE_B'\"]", "[]", false),
        (
            "[\"descriptors[0].KEY_A == 'VALUE_A'\", \"descriptors[0].OTHER_KEY == 'WRONG_VALUE'\"]",
            "[]",
            false,
        ),
        ("[]", "[\"descriptors[0].MY_VAR\"]", false),
        ("[\"descriptors[0].KEY_B == 'VALUE_B'\"]", "[\"descriptors[0].MY_VAR\"]", false),
        ("[]", "[\"descriptors[0].OTHER_KEY\"]", true),
    ] {
        let file = format!(
            "- {{ namespace: example.org, max_value: 1, seconds: 60, conditions: {conditions}, \
             variables: {variables} }}"
        );
        let server = Server::new(&limitador(&file).domains);
        let request = [("KEY_A", "VALUE_A"), ("OTHER_KEY", "OTHER_VALUE")];
        let allowed = server.allowed("example.org", &[&request], 2).await;
        assert_eq!(allowed == 1, is_counted, "{conditions} {variables}");
    }
}

#[tokio::test]
async fn all_limits_of_a_namespace_are_charged_or_none() {
    let file = "
- { namespace: api, max_value: 3, seconds: 1, name: burst, variables: ['descriptors[0].user'] }
- { namespace: api, max_value: 4, seconds: 3600, name: sustained, variables: ['descriptors[0].user'] }
";
    let server = Server::new(&limitador(file).domains);
    let request: [&[(&str, &str)]; 1] = [&[("user", "alice")]];
    // The status is that of the rule with the fewest units left.
    let response = server.call("api", &request).await;
    assert_eq!(response.statuses[0].limit_remaining, 2);
    assert_eq!(server.allowed("api", &request, 9).await, 2);
    server.clock.advance(Duration::from_secs(1));
    // The denials of the first second have charged nothing to the second limit.
    assert_eq!(server.allowed("api", &request, 9).await, 1);
    let response = server.call("api", &request).await;
    let status = &response.statuses[0];
    assert_eq!(status.code(), Code::OverLimit);
    assert_eq!(status.current_limit.as_ref().unwrap().requests_per_unit, 4);
}

#[tokio::test]
async fn windows_begin_at_the_first_request() {
    let file = "- { namespace: api, max_value: 1, seconds: 60 }";
    let server = Server::new(&limitador(file).domains);
    let request: [&[(&str, &str)]; 1] = [&[]];
    assert_eq!(server.allowed("api", &request, 2).await, 1);
    // The clock is 29.5 seconds before the next minute.
    server.clock.advance(Duration::from_millis(59_999));
    assert_eq!(server.allowed("api", &request, 1).await, 0);
    server.clock.advance(Duration::from_millis(1));
    assert_eq!(server.allowed("api", &request, 2).await, 1);
}

#[test]
fn limits_of_the_same_subject_become_one_rule() {
    let file = "
- { namespace: a, max_value: 5, seconds: 1, conditions: [], variables: ['descriptors[0].u'] }
- { namespace: a, max_value: 100, seconds: 60, conditions: [], variables: ['descriptors[0].u'] }
- { namespace: a, max_value: 7, seconds: 60, conditions: [], variables: ['descriptors[0].u'] }
- { namespace: a, max_value: 9, seconds: 3600, name: named, variables: ['descriptors[0].u'] }
- { namespace: a, max_value: 9, seconds: 86400, name: twice, variables: ['descriptors[0].u'] }
- { namespace: a, max_value: 9, seconds: 86400, name: twice, variables: ['descriptors[0].v'] }
- { namespace: a, max_value: 9, seconds: 90, id: the-id, conditions: [\"descriptors[0].u == 'x'\"] }
- { namespace: b, max_value: 9, seconds: 90 }
";
    let imported = limitador(file);
    let rules: Vec<(&str, &[String])> =
        imported.domains["a"].iter().map(|(name, rule)| (name.as_str(), &*rule.limits)).collect();
    let [(unnamed, of_unnamed), (named, of_named), (first, _), (second, _), (by_id, of_id)] =
        rules.as_slice()
    else {
        panic!("{rules:?}");
    };
    assert!(unnamed.starts_with("limits-"), "{unnamed}");
    assert_eq!(*of_unnamed, ["5/second", "100/minute"]);
    assert_eq!((*named, *of_named), ("named", &["9/hour".to_owned()][..]));
    assert!(first.starts_with("twice-") && second.starts_with("twice-") && first != second);
    assert_eq!((*by_id, *of_id), ("the-id", &["9/90seconds".to_owned()][..]));
    assert_eq!(imported.domains["b"].keys().collect::<Vec<_>>(), ["all"]);
    assert_eq!(imported.differences.len(), 2, "{:#?}", imported.differences);
    assert!(imported.differences[1].starts_with("limits.yaml:4:16: a limit has"));

    // Another maximum keeps the names, and so the counters.
    let changed = limitador(&file.replace("max_value: 5", "max_value: 6"));
    let names = changed.domains["a"].keys().zip(imported.domains["a"].keys());
    assert!(names.into_iter().all(|(one, other)| one == other));
}

#[tokio::test]
async fn the_syntax_of_limitador_1_reads_the_entries_of_all_descriptors() {
    let file = "
- namespace: old
  max_value: 1
  seconds: 60
  conditions: [ \"req.method == 'POST'\", 'tier != \"gold\"', 'kind == plain text' ]
  variables: [ user_id ]
";
    let imported = limitador(file);
    assert_eq!(imported.differences.len(), 5, "{:#?}", imported.differences);
    let server = Server::new(&imported.domains);
    let method = [("req.method", "POST"), ("tier", "silver")];
    let user = |name| [("user_id", name), ("kind", "plain text")];
    assert_eq!(server.allowed("old", &[&method, &user("alice")], 2).await, 1);
    assert_eq!(server.allowed("old", &[&user("bob"), &method], 2).await, 1);
    for request in [
        [&[("req.method", "POST"), ("tier", "gold")], &user("carol")],
        [&[("req.method", "POST"), ("other", "x")], &user("carol")],
        [&method, &[("other", "carol"), ("kind", "plain text")]],
    ] {
        let request: Vec<&[(&str, &str)]> = request.iter().map(|entries| &entries[..]).collect();
        assert_eq!(server.allowed("old", &request, 3).await, 3, "{request:?}");
    }
}

#[test]
fn errors_name_the_place_and_what_is_expected() {
    let one = |fields: &str| format!("- {{ namespace: a, {fields} }}");
    for (file, expected) in [
        ("", "limits.yaml: the file is empty: expected a list of limits"),
        ("[]", "limits.yaml: the file is empty: expected a list of limits"),
        ("limits: []", "limits.yaml:1:1: "),
        (&one("seconds: 1"), "limits.yaml:1:19: missing field `max_value`"),
        (&one("max_value: 1, seconds: 0"), "limits.yaml:1:42: seconds 0: expected 1 second"),
        (&one("max_value: 1, seconds: 99999999999"), "limits.yaml:1:42: seconds 99999999999: "),
        (
            &one("max_value: 9007199254740992, seconds: 1"),
            "limits.yaml:1:30: max_value 9007199254740992: ",
        ),
        (&one("max_value: 1, seconds: 1, policy: x"), "limits.yaml:1:45: unknown field `policy`"),
        (
            &one("max_value: 1, seconds: 1, conditions: [\"limit.name == 'x'\"]"),
            "limits.yaml:1:58: conditions: \"limit.name == 'x'\": variable \"limit\": expected `descriptors`",
        ),
        (
            &one("max_value: 1, seconds: 1, conditions: [\"descriptors[0].x = 'x'\"]"),
            "limits.yaml:1:58: conditions: \"descriptors[0].x = 'x'\", column ",
        ),
        (
            &one("max_value: 1, seconds: 1, variables: [\"descriptor[0].x\"]"),
            "limits.yaml:1:57: variables: \"descriptor[0].x\": variable \"descriptor\"",
        ),
        ("- { namespace: '', max_value: 1, seconds: 1 }", "limits.yaml:1:16: namespace \"\": "),
    ] {
        let error = limitador_error(file);
        assert!(error.starts_with(expected), "{error:?}, expected {expected:?}");
    }
}
