//! The programs of the cookbook, run for real.
//!
//! Each file in `recipes/` is a program as the cookbook prints it, and has its tests in a module
//! below it.

mod download;
mod outgoing_calls;
mod web_socket;

use rl_core::Limit;
use rl_core::rules::Rules;

const COOKBOOK: &str = include_str!("../crates/rl-core/docs/COOKBOOK.md");
const MIGRATION: &str = include_str!("../crates/rl-core/docs/MIGRATION.md");

#[test]
fn the_cookbook_prints_the_programs_that_these_tests_run() {
    let programs = [
        include_str!("recipes/download.rs"),
        include_str!("recipes/outgoing_calls.rs"),
        include_str!("recipes/web_socket.rs"),
    ];
    for file in programs {
        let (program, _tests) = file.split_once("\n#[cfg(test)]").unwrap();
        assert!(COOKBOOK.contains(&format!("```rust\n{program}```\n")), "not printed:\n{program}");
    }
}

#[test]
fn the_rules_for_users_of_limitador_are_accepted() {
    let (_, rules) = MIGRATION.split_once("```yaml\n").unwrap();
    let (rules, _) = rules.split_once("```").unwrap();
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    std::fs::write(file.path(), rules).unwrap();
    let rules = Rules::from_file(file.path()).unwrap();
    assert_eq!(rules.names().collect::<Vec<_>>(), ["reads", "writes"]);
}

/// The tables have no programs around their limits, so the limits are read here.
#[test]
fn the_limits_in_the_documents_are_valid() {
    let texts = [COOKBOOK, MIGRATION].into_iter().flat_map(|text| text.split('`'));
    let is_limit = |text: &&str| {
        let number = text.split_once('/').map(|(number, _)| number);
        number.is_some_and(|number| number.parse::<u64>().is_ok()) && !text.contains('…')
    };
    let limits = texts.filter(is_limit).collect::<Vec<_>>();
    assert!(limits.len() > 10, "{limits:?}");
    for limit in limits {
        limit.parse::<Limit>().unwrap_or_else(|error| panic!("{limit}: {error}"));
    }
}
