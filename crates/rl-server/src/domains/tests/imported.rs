//! The rules that are read from the files of other services, their errors, and the printed file.

use std::path::Path;

use super::{Imported, envoy, envoy_error, limitador, text};
use crate::domains::envoy_files;
use crate::domains::rule::DomainRule;
use crate::domains::rule_file::to_rule_file;
use crate::domains::section::read_domains;

const EXAMPLE: &str = "
---
domain: rl
descriptors:
  - key: category
    value: account
    rate_limit:
      replaces:
        - name: bkthomps
        - name: fake_name
        - name: absent
      unit: minute
      requests_per_unit: 4
  - key: source_cluster
    value: proxy
    descriptors:
      - key: destination_cluster
        value: fake
        rate_limit:
          name: fake_name
          unit: week
          requests_per_unit: 2
  - key: foo
    rate_limit:
      unit: minute
      requests_per_unit: 2
    descriptors:
      - key: bar
        value: bkthomps
        rate_limit:
          name: bkthomps
          unit: year
          requests_per_unit: 1
      - key: baz
        value: shady
        rate_limit:
          unit: month
          requests_per_unit: 3
        shadow_mode: true
      - key: bay
        rate_limit:
          unlimited: true
  - key: file
    value: a**/*
    detailed_metric: true
  - key: yes
    value: \"line\\nbreak \\\"é\\\" 10\"
    share_threshold: false
    value_to_metric: true
    rate_limit: { unit: day, requests_per_unit: 4294967295 }
  - key: service
    value: service_1
    quota_mode: true
    metadata: { any: [thing, 1] }
    rate_limit: { unit: hour, requests_per_unit: 1 }
  - key: service
    value: svc*prod
    share_threshold: true
    quota_mode: true
    rate_limit: { unit: second, requests_per_unit: 0 }
";

#[test]
fn rules_have_the_names_of_their_keys_and_values() {
    let Imported { domains, differences } = envoy(EXAMPLE);
    let names: Vec<&str> = domains["rl"].keys().map(String::as_str).collect();
    let expected = [
        "category_account",
        "source_cluster_proxy.destination_cluster_fake",
        "foo",
        "foo.bar_bkthomps",
        "foo.baz_shady",
        "foo.bay",
        "file_a**/*",
        "yes_line\nbreak \"é\" 10",
        "service_service_1",
        "service_svc*prod",
    ];
    assert_eq!(names, expected);
    let rule = |name: &str| &domains["rl"][name];
    assert_eq!(
        rule("category_account").replaces,
        ["foo.bar_bkthomps", "source_cluster_proxy.destination_cluster_fake"]
    );
    assert_eq!(rule("foo.bar_bkthomps").limits, ["1/365days:clock"]);
    assert_eq!(rule("file_a**/*").descriptor, ["file=a*/*"]);
    assert_eq!(rule("service_svc*prod").descriptor, ["service=svc**prod"]);
    assert!(rule("foo.baz_shady").shadow);
    let expected = [
        "a request that one of its descriptors denies",
        "edge.yaml:17:14: name: ",
        "edge.yaml:21:17: unit week: ",
        "edge.yaml:37:17: unit month: ",
        "edge.yaml:43:10: detailed_metric: ",
        "edge.yaml:46:10: value_to_metric: ",
        "edge.yaml:51:10: quota_mode: ",
        "edge.yaml:51:10: metadata: ",
        "edge.yaml:5:10: replaces \"absent\": no rule has this name",
    ];
    assert_eq!(differences.len(), expected.len(), "{differences:#?}");
    for (difference, expected) in differences.iter().zip(expected) {
        assert!(difference.starts_with(expected), "{difference}, expected {expected}");
    }
    assert!(differences[6].ends_with("(and 1 more)"), "{differences:#?}");
}

#[test]
fn the_printed_file_has_the_same_rules() {
    let files = [
        envoy(EXAMPLE),
        envoy("domain: 'null'"),
        limitador(
            "- { namespace: a b, max_value: 5, seconds: 90, name: 'true', \
             conditions: [\"descriptors[0]['x'] == 'é \\t'\", \"descriptors[1].y != '-'\"], \
             variables: [\"descriptors[0]['u']\", user_id] }",
        ),
    ];
    for imported in files {
        let printed = to_rule_file(&imported);
        let read = read_domains(Path::new("limits.yaml"), &printed).unwrap();
        assert_eq!(read, imported.domains, "{printed}");
        let comments = printed.lines().filter(|line| line.starts_with("# * "));
        assert_eq!(comments.count(), imported.differences.len());
    }
    let printed = to_rule_file(&envoy(
        "domain: edge\ndescriptors: [{ key: path, value: /api/*, rate_limit: { unit: hour, requests_per_unit: 5 } }]",
    ));
    let expected = "domains:\n  \"edge\":\n    \"path_/api/*\":\n      descriptor: \"path=/api/*\"\n      limits: 5/hour:clock\n";
    assert!(printed.ends_with(expected), "{printed}");
    // Texts that YAML reads as values of other types.
    for name in [
        "null",
        "true",
        "yes",
        "1e3",
        "0x1f",
        "~",
        "",
        "- a",
        "a: b",
        "12:30:00",
        "Infinity",
        "9/second:",
        "2024-01-01",
        "@a",
        "%b",
        "!c",
        "*d",
        "&e",
    ] {
        let rules =
            [(name.to_owned(), DomainRule { per: vec![name.to_owned()], ..DomainRule::default() })];
        let domains = [(name.to_owned(), rules.into_iter().collect())].into_iter().collect();
        let printed = to_rule_file(&Imported { domains, differences: Vec::new() });
        let read = read_domains(Path::new("limits.yaml"), &printed).unwrap();
        assert_eq!(read[name][name].per, [name], "{printed}");
    }
}

#[test]
fn names_are_distinct_also_if_keys_contain_dots() {
    let file = "
domain: d
descriptors:
  - { key: a.b, rate_limit: { unit: day, requests_per_unit: 1 } }
  - { key: a, descriptors: [{ key: b, rate_limit: { unit: day, requests_per_unit: 2 } }] }
";
    let imported = envoy(file);
    let names: Vec<&String> = imported.domains["d"].keys().collect();
    assert_eq!(names.len(), 2);
    assert!(names.iter().all(|name| name.starts_with("a.b-")), "{names:?}");
    assert_eq!(imported, envoy(file), "the names are stable");
}

#[test]
fn errors_name_the_file_the_place_and_what_is_expected() {
    let limit = |fields: &str| {
        format!(
            "domain: d\ndescriptors:\n  - key: k\n    value: v*\n    rate_limit: {{ {fields} }}\n"
        )
    };
    for (file, expected) in [
        ("", "edge.yaml: the file is empty: expected `domain`"),
        ("# a comment\n", "edge.yaml: the file is empty: expected `domain`"),
        ("descriptors: []", "edge.yaml:1:1: "),
        ("domain: ''", "edge.yaml:1:9: domain \"\": expected the name of a domain"),
        ("domain: d\ndescriptors:\n  - a\n", "edge.yaml:3:5: "),
        ("domain: d\ndescriptors:\n  - value: v\n", "edge.yaml:3:5: "),
        ("domain: d\ndescriptors:\n  - key: ''\n", "edge.yaml:3:10: key \"\": expected the key"),
        (
            "domain: d\ndescriptors: [{ key: a=b }]",
            "edge.yaml:2:22: key \"a=b\": expected a key without",
        ),
        (
            "domain: d\ndescriptors: [{ key: a, ratelimit: {} }]",
            "edge.yaml:2:25: unknown field `ratelimit`",
        ),
        ("domain: d\nextra: 1", "edge.yaml:2:1: unknown field `extra`"),
        (
            "domain: d\ndescriptors: [{ key: a, value: v }, { key: a, value: v }]",
            "edge.yaml:2:44: descriptor \"a=v\" occurs twice",
        ),
        (
            "domain: d\ndescriptors: [{ key: a, value: v }, { key: a_v }]",
            "edge.yaml:2:44: descriptor \"a_v\" occurs twice",
        ),
        (
            "domain: d\ndescriptors: [{ key: a, value: v, share_threshold: true }]",
            "edge.yaml:2:22: share_threshold: expected a value with `*`",
        ),
        ("domain: d\ndescriptors: [{ key: a, shadow_mode: maybe }]", "edge.yaml:2:38: "),
        (
            &limit("unit: fortnight, requests_per_unit: 1"),
            "edge.yaml:5:25: unit \"fortnight\": expected second, minute",
        ),
        (&limit("requests_per_unit: 1"), "edge.yaml:5:17: rate_limit: expected `unit`"),
        (&limit("unit: day"), "edge.yaml:5:17: rate_limit: expected `requests_per_unit`"),
        (&limit("unit: day, requests_per_unit: -1"), "edge.yaml:5:49: "),
        (
            &limit("unit: day, requestsperunit: 5"),
            "edge.yaml:5:30: unknown field `requestsperunit`",
        ),
        (
            &limit("unlimited: true, unit: day"),
            "edge.yaml:5:42: unit \"day\": expected none beside `unlimited`",
        ),
        (
            &limit("unit: day, requests_per_unit: 1, replaces: [{ name: }]"),
            "edge.yaml:5:69: replaces: expected the name",
        ),
        (
            &limit("unit: day, requests_per_unit: 1, name: a, replaces: [{ name: a }]"),
            "edge.yaml:5:80: replaces \"a\": expected the name of another",
        ),
    ] {
        let error = envoy_error(file);
        assert!(error.starts_with(expected), "{error:?}, expected {expected:?}");
    }
}

#[test]
fn a_domain_in_two_files_is_an_error_unless_files_are_merged() {
    let first = text("a.yaml", "domain: d\ndescriptors: [{ key: a }]");
    let second = text("b.yaml", "\ndomain: d\ndescriptors: [{ key: b }]");
    let files = [first, second];
    let error = envoy_files::read(&files, false).unwrap_err();
    assert_eq!(
        error,
        "b.yaml:2:9: domain \"d\" is in a.yaml too: expected each domain in one file"
    );
    let merged = envoy_files::read(&files, true).unwrap();
    assert_eq!(merged.domains["d"].keys().collect::<Vec<_>>(), ["a", "b"]);
    let again = [files[0].clone(), text("c.yaml", "domain: d\ndescriptors: [{ key: a }]")];
    let error = envoy_files::read(&again, true).unwrap_err();
    assert!(error.starts_with("c.yaml:2:22: descriptor \"a\" occurs twice"), "{error}");
}
