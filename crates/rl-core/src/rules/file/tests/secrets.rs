//! Values of variables, which must not be shown anywhere.

use std::sync::Arc;

use proptest::prelude::*;

use super::super::parse::{Additions, convert, read_text};
use super::super::variables::tests::set_variable;
use super::Directory;
use crate::key::KeySecret;

/// Files with one value, `VALUE`, in each field that variables may be in. In most of them it is not
/// valid.
const FIELDS: &[&str] = &[
    "store: 'VALUE'\nrules: { a: { limits: 1/day } }",
    "secret: 'VALUE'\nrules: { a: { limits: 1/day } }",
    "proxies: 'VALUE'\nrules: { a: { limits: 1/day } }",
    "proxies: [10.0.0.0/8, 'VALUE']\nrules: { a: { limits: 1/day } }",
    "exempt: [{ path: 'VALUE' }]\nrules: { a: { limits: 1/day } }",
    "exempt: [{ header: { x-internal: 'VALUE' } }]\nrules: { a: { limits: 1/day } }",
    "rules: { a: { match: { method: 'VALUE' }, limits: 1/day } }",
    "rules: { a: { match: { path: [/a, 'VALUE'] }, limits: 1/day } }",
    "rules: { a: { match: { host: 'VALUE' }, limits: 1/day } }",
    "rules: { a: { match: { address: 'VALUE' }, limits: 1/day } }",
    "rules: { a: { match: { header: { 'VALUE': b } }, limits: 1/day } }",
    "rules: { a: { match: { header: { x-internal: 'VALUE' } }, limits: 1/day } }",
    "rules: { a: { limits: 'VALUE' } }",
    "rules: { a: { limits: [1/second, 'VALUE'] } }",
    "rules: { a: { limits: { most: 'VALUE' } } }",
    "rules: { a: { limits: { 'VALUE': 1/day } } }",
    "rules: { a: { limits: 1/day, tiers: { pro: 'VALUE' } } }",
    "rules: { a: { limits: 1/day, tiers: { 'VALUE': 1/day } } }",
    "rules: { a: { limits: 1/day, per: 'VALUE' } }",
    "rules: { a: { limits: 1/day, over: 'VALUE' } }",
    "rules: { a: { limits: 1/day, over: { wait: 'VALUE', queue: 1 } } }",
    "rules: { a: { limits: 1/day, missing: 'VALUE' } }",
    "rules: { a: { limits: 1/day, cost: 'VALUE' } }",
    "rules: { a: { limits: 1/day, cost: { response_header: 'VALUE' } } }",
    "rules: { a: { limits: 1/day, shadow: 'VALUE' } }",
    "rules: { 'VALUE': { limits: 1/day } }",
    "keys: { from: 'VALUE', file: k.yaml }\nrules: { a: { limits: 1/day } }",
    "keys: { from: bearer, file: 'VALUE' }\nrules: { a: { limits: 1/day } }",
    "end: 'VALUE'\nrules: { a: { limits: 1/day } }",
];

/// Returns what a file shows: its error, or the `Debug` texts and warnings of its content.
fn shown(text: &str) -> String {
    let additions = Arc::new(Additions::new(KeySecret::random()));
    let path = std::path::Path::new("limits.yaml");
    let content = read_text(path, text.as_bytes(), false)
        .and_then(|file| convert(path, text.as_bytes(), file, None, &additions))
        .map(|content| {
            let set = crate::rules::RuleSet::new(&content.file.rules, &Default::default());
            format!("{:?} {set:?} {:?} {:?}", content.file.rules, content.store, content.warnings)
        });
    match content {
        Ok(shown) => shown,
        Err(error) => {
            let source = std::error::Error::source(&error).map(ToString::to_string);
            format!("{error} {error:?} {source:?}")
        }
    }
}

/// Fault: an error contained what a variable was replaced with, or the text after `file:`.
#[test]
fn a_value_of_a_variable_is_shown_nowhere() {
    const SECRET: &str = "hunter2-hunter2-hunter2";
    set_variable("SECRET", SECRET);
    for field in FIELDS {
        for value in
            ["${SECRET}", "/${SECRET}", "${SECRET} b", "file:${SECRET}", "${RL_NONE:-${SECRET}"]
        {
            let text = field.replace("VALUE", value);
            let shown = shown(&text);
            assert!(!shown.contains("hunter2"), "{text}\n{shown}");
        }
    }
    for (field, expected) in [
        (FIELDS[1], "limits.yaml:1:9: file:${SECRET}: No such file or directory"),
        (
            FIELDS[2],
            "limits.yaml:1:10: \"file:${SECRET}\" with its variables replaced: expected an address",
        ),
        (FIELDS[6], "limits.yaml:1:22: method \"file:${SECRET}\": expected a method in upper case"),
        (
            FIELDS[12],
            "limits.yaml:1:23: limit \"file:${SECRET}\" with its variables replaced: expected a limit",
        ),
    ] {
        let shown = shown(&field.replace("VALUE", "file:${SECRET}"));
        assert!(shown.starts_with(expected), "{shown}");
    }
}

#[test]
fn an_error_about_limits_from_variables_shows_none_of_their_values() {
    set_variable("RATE", "60/hour:unit=hunter2");
    for (rule, expected) in [
        (
            "limits: '${RATE}', cost: 61",
            "rule \"a\": cost 61: expected at most what its limits grant at once",
        ),
        (
            "limits: ['${RATE}', 9/hour]",
            "rule \"a\": two limits would share one counter or name: give one of them another period or algorithm",
        ),
        (
            "limits: 1/day, tiers: { pro: ['${RATE}', '${RATE}'] }",
            "rule \"a\", tier \"pro\": two limits would share one counter or name",
        ),
    ] {
        let shown = shown(&format!("rules: {{ a: {{ {rule} }} }}"));
        assert!(shown.contains(expected) && !shown.contains("hunter2"), "{shown}");
    }
}

#[test]
fn the_path_of_a_file_of_keys_is_shown_as_it_stands_in_the_file() {
    let directory = Directory::new();
    let text =
        "keys: { from: bearer, file: '${CARGO_PKG_DESCRIPTION}' }\nrules: { a: { limits: 1/day } }";
    let error = super::builder(directory.write("limits.yaml", text)).read().unwrap_err();
    assert!(error.to_string().starts_with("${CARGO_PKG_DESCRIPTION}: No such file"), "{error}");
}

proptest! {
    #[test]
    fn no_value_of_a_variable_is_shown(
        secret in "[a-z0-9/:*. \\[\\]{}$%\"'é-]{0,20}",
        field in prop::sample::select(FIELDS),
        is_whole in any::<bool>(),
    ) {
        // The marks make the value recognizable, even if it is shortened, escaped or split.
        let secret = format!("hunter2{secret}hunter2");
        set_variable("SECRET", &secret);
        let value = if is_whole { "${SECRET}" } else { "10/second ${SECRET}" };
        let shown = shown(&field.replace("VALUE", value));
        prop_assert!(!shown.contains("hunter2"), "{}", shown);
    }
}
