//! The section `domains` of a rule file.

use std::path::Path;

use rl_core::rules::Rules;

use super::Server;
use crate::domains::rule::Charge;
use crate::domains::section::{read_domains, read_sections};
use crate::grpc::messages::Code;

const YAML: &str = "
rules:
  fleet: { limits: 5000/second }
server: { listen: '127.0.0.1:1' }
domains:
  edge:
    per-address: { descriptor: [remote_address], limits: [2/minute, 1000/hour] }
    banned: { descriptor: remote_address=50.0.0.5, limits: 0/second }
    open: { descriptor: path=/open }
    writes: { when: \"descriptors[0].method != 'GET'\", per: 'descriptors[0].user', limits: 1/hour }
    tokens: { descriptor: user, limits: 100/hour, charge: after, shadow: true }
    instead: { descriptor: [user=bob], limits: 1/day, replaces: tokens }
";

const TOML: &str = r#"
[rules.fleet]
limits = "5000/second"

[server]
listen = "127.0.0.1:1"

[domains.edge]
per-address = { descriptor = ["remote_address"], limits = ["2/minute", "1000/hour"] }
banned = { descriptor = "remote_address=50.0.0.5", limits = "0/second" }
open = { descriptor = "path=/open" }
tokens = { descriptor = "user", limits = "100/hour", charge = "after", shadow = true }
instead = { descriptor = ["user=bob"], limits = "1/day", replaces = "tokens" }

[domains.edge.writes]
when = "descriptors[0].method != 'GET'"
per = "descriptors[0].user"
limits = "1/hour"
"#;

#[tokio::test]
async fn yaml_toml_and_json_have_the_same_structure() {
    let yaml = read_domains(Path::new("limits.yaml"), YAML).unwrap();
    assert_eq!(yaml["edge"]["tokens"].charge, Charge::After);
    assert_eq!(yaml["edge"].len(), 6);
    assert_eq!(read_domains(Path::new("limits.toml"), TOML).unwrap(), yaml);
    let json = r#"{ "domains": { "edge": { "open": { "descriptor": ["path=/open"] } } } }"#;
    let json = read_domains(Path::new("limits.json"), json).unwrap();
    assert_eq!(json["edge"]["open"], yaml["edge"]["open"]);
    assert!(read_domains(Path::new("limits.yaml"), "rules: {}").unwrap().is_empty());

    let server = Server::new(&yaml);
    let post = [("method", "POST"), ("user", "alice")];
    assert_eq!(server.allowed("edge", &[&post], 2).await, 1);
    assert_eq!(server.allowed("edge", &[&[("remote_address", "192.0.2.1")]], 3).await, 2);
    assert_eq!(server.allowed("edge", &[&[("remote_address", "50.0.0.5")]], 1).await, 0);
}

#[test]
fn rules_of_the_file_and_of_domains_are_kept_together() {
    let path = Path::new("limits.yaml");
    let rules = read_sections(path, YAML, Rules::new(), None).unwrap();
    let names: Vec<&str> = rules.names().collect();
    assert_eq!(
        names,
        [
            "edge.per-address",
            "edge.banned",
            "edge.writes",
            "edge.tokens",
            "edge.instead",
            "edge.override"
        ]
    );
}

#[test]
fn a_rule_file_with_domains_is_read_by_the_library() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("limits.yaml");
    std::fs::write(&path, YAML).unwrap();
    let builder = rl_core::rules::RulesFile::builder(&path)
        .sections(|path, text, rules| read_sections(path, text, rules, None));
    let rules = builder.pause(std::time::Duration::from_millis(10)).read().unwrap();
    assert!(rules.names().any(|name| name == "edge.writes"));
    assert!(rules.names().any(|name| name == "fleet"));
}

#[test]
fn errors_have_a_line_and_a_column() {
    for (file, text, expected) in [
        (
            "a.yaml",
            "domains:\n  d:\n    r: { descriptor: a, limits: 10/fortnight }",
            "line 3, column 8: domain \"d\", rule \"r\": limit \"10/fortnight\", column 4: expected",
        ),
        (
            "a.yaml",
            "domains:\n  d:\n    r: { descriptor: a, limit: 10/day }",
            "line 3, column 25: unknown field `limit`",
        ),
        (
            "a.yaml",
            "domains:\n  d:\n    r: { descriptor: a }\n    r: { descriptor: b }",
            "line 4, column 5: ",
        ),
        (
            "a.yaml",
            "domains: { d: { r: { when: 'a == 1', limits: 1/day } } }",
            "line 1, column 20: domain \"d\", rule \"r\": when: \"a == 1\": variable \"a\"",
        ),
        (
            "a.yaml",
            "domains: { d: { r: { descriptor: a, per: 'descriptors[0].a' } } }",
            "line 1, column 20: domain \"d\", rule \"r\": expected either `descriptor`",
        ),
        (
            "a.yaml",
            "domains: { d: { r: { descriptor: a, disclosed: names } } }",
            "line 1, column 48: disclosed: expected true, false or name",
        ),
        (
            "a.yaml",
            "domains: { d: { r: {} } }",
            "line 1, column 20: domain \"d\", rule \"r\": limits: expected at least one limit",
        ),
        (
            "a.yaml",
            "domains: { d: { r: { descriptor: '=x' } } }",
            "line 1, column 20: domain \"d\", rule \"r\": descriptor \"=x\": expected a key",
        ),
        (
            "a.yaml",
            "domains: { d: { r: { descriptor: a }, s: { descriptor: a } } }",
            "line 1, column 42: domain \"d\", rule \"s\": the descriptor is that of rule \"r\"",
        ),
        (
            "a.yaml",
            "domains: { d: { r: { descriptor: a=x* }, s: { descriptor: [a=x**, b] } } }",
            "line 1, column 45: domain \"d\", rule \"s\": another rule has `*`",
        ),
        (
            "a.yaml",
            "domains: { d: { r: { descriptor: a, replaces: s } } }",
            "line 1, column 20: domain \"d\", rule \"r\": replaces \"s\": expected a rule of the domain",
        ),
        (
            "a.json",
            "{\n  \"domains\": { \"d\": { \"r\": { \"descriptor\": 7.5 } } }\n}",
            "line 2, column ",
        ),
        (
            "a.toml",
            "[domains.d]\nr = { descriptor = \"a\", limits = \"10\" }",
            "line 2, column 5: domain \"d\", rule \"r\": limit \"10\"",
        ),
        (
            "a.toml",
            "[domains.d]\nr = { descriptor = \"a\", limit = \"10\" }",
            "line 2, column 25: unknown field `limit`",
        ),
        (
            "a.toml",
            "[domains.d]\nr = { descriptor = \"a\" }\nr = { descriptor = \"b\" }",
            "line 3, column 1: ",
        ),
    ] {
        let error = read_sections(Path::new(file), text, Rules::new(), None).unwrap_err();
        assert!(error.starts_with(expected), "{error:?}, expected {expected:?}");
    }
}

/// A client that has a network of IPv6 addresses cannot choose its counter.
#[tokio::test]
async fn addresses_of_a_network_are_one_value_also_beside_other_values() {
    let text = "
domains:
  edge:
    users: { descriptor: [user, remote_address], limits: 2/minute }
    hosts: { when: \"descriptors[0].host == 'a'\",
             per: ['descriptors[0].host', 'descriptors[0].remote_address'], limits: 2/minute }
";
    let server = Server::new(&read_domains(Path::new("limits.yaml"), text).unwrap());
    for entry in [("user", "alice"), ("host", "a")] {
        let decide = async |address| {
            let response = server.call("edge", &[&[entry, ("remote_address", address)]]).await;
            response.overall_code
        };
        for address in ["2001:db8::1", "2001:db8::2"] {
            assert_eq!(decide(address).await, i32::from(Code::Ok), "{entry:?} {address}");
        }
        for (address, expected) in [
            ("2001:db8:0:0:1::3", Code::OverLimit),
            ("2001:db8:0:1::1", Code::Ok),
            ("192.0.2.1", Code::Ok),
            ("192.0.2.2", Code::Ok),
        ] {
            assert_eq!(decide(address).await, i32::from(expected), "{entry:?} {address}");
        }
    }
}

/// Fault: the parser of CEL needs a stack for each level, and its end ended the process.
#[test]
fn expressions_of_any_depth_are_read_or_refused() {
    let nested = |count: usize, open: &str, inner: &str, close: &str| {
        format!("{}{inner}{}", open.repeat(count), close.repeat(count))
    };
    for expression in [
        nested(24, "(", "true", ")"),
        nested(24, "[", "1", "]") + " == []",
        nested(100_000, "(", "true", ")"),
        nested(25, "size([", "", "])"),
        nested(24, "true ? ", "true", " : false"),
        nested(90, "true || ", "true", ""),
        nested(900, "!", "true", ""),
        nested(900, "-", "1", "") + " == 1",
        nested(490, "1+", "1", "") + " == 1",
        "descriptors[0]".to_owned() + &".a".repeat(490),
    ] {
        let text = format!("domains: {{ d: {{ r: {{ when: '{expression}', limits: 1/day }} }} }}");
        let read = read_sections(Path::new("a.yaml"), &text, Rules::new(), None);
        assert!(read.is_ok() || read.unwrap_err().contains("expected"), "{expression:.60}");
    }
}
