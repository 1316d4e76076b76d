//! Checks that the tables of requirements and of known faults name tests that exist.

use std::collections::BTreeSet;

use super::source::{files, read, top};

#[derive(Debug)]
struct Row {
    id: String,
    held_by: String,
}

fn rows() -> Vec<Row> {
    let text = read("tests/ACCEPTANCE.md");
    let rows = text.lines().filter_map(|line| {
        let cells: Vec<&str> = line.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ").collect();
        let [id, words, held_by] = cells[..] else { panic!("not three cells: {line}") };
        let is_row = id.starts_with(['S', 'X']) && id[1..].parse::<u32>().is_ok();
        assert!(!words.is_empty(), "{line}");
        is_row.then(|| Row { id: id.to_owned(), held_by: held_by.to_owned() })
    });
    rows.collect()
}

#[test]
fn every_criterion_has_one_row() {
    let ids: Vec<String> = rows().into_iter().map(|row| row.id).collect();
    let seeds = (1..=164).map(|number| format!("S{number}"));
    let expected: Vec<String> = seeds.chain((1..=25).map(|number| format!("X{number}"))).collect();
    let missing: BTreeSet<_> = expected.iter().filter(|id| !ids.contains(id)).collect();
    assert!(missing.is_empty(), "missing: {missing:?}");
    assert_eq!(ids, expected, "in order, and once each");
}

#[test]
fn every_row_names_its_tests_and_every_named_test_exists() {
    let tests = all_tests();
    let mut named = 0;
    for Row { id, held_by } in rows() {
        for name in held_by.split(", ").map(|name| name.trim_matches('`')) {
            // Only the path of a page has a dot.
            if name.contains('.') {
                assert!(top().join(name).is_file(), "{id}: no page {name}");
            } else {
                assert!(is_one_test(&tests, name), "{id}: no test, or several, {name}");
                named += 1;
            }
        }
    }
    assert!(named > 50, "{named}");
}

#[test]
fn every_known_fault_names_tests_that_exist() {
    let tests = all_tests();
    let table = read("tests/known_faults/README.md");
    let rows = table.lines().filter(|line| line.starts_with("| ") && *line != "| fault | tests |");
    let mut named = 0;
    for row in rows {
        let cells = row.strip_suffix(" |").and_then(|row| row.rsplit_once(" | "));
        let (_, names) = cells.unwrap_or_else(|| panic!("not two cells: {row}"));
        for name in names.split(", ").map(|name| name.trim_matches('`')) {
            assert!(is_one_test(&tests, name), "no test, or several, {name}: {row}");
            named += 1;
        }
    }
    assert!(named > 100, "{named}");
}

/// Returns the path of each test, which is that of its file and its name, such as
/// `tests::twins::rust_and_lua_make_equal_decisions`.
fn all_tests() -> Vec<String> {
    // The macro `contract!` makes each function that it lists a test for each adapter.
    let contracts = read("tests/http_contract/mod.rs");
    let (_, contracts) = contracts.split_once("\ncontract! {").unwrap();
    let contracts: BTreeSet<&str> =
        contracts.lines().filter_map(|line| line.trim().strip_suffix(',')).collect();
    let mut tests = Vec::new();
    for file in ["crates", "tests"].iter().flat_map(|folder| files(folder, ".rs")) {
        let module = file.trim_end_matches(".rs").trim_end_matches("/mod").replace('/', "::");
        let text = read(&file);
        let parts: Vec<&str> = text.split("fn ").collect();
        for pair in parts.windows(2) {
            // The attributes of a function come after the last empty line before it.
            let attributes = pair[0].rsplit("\n\n").next().unwrap_or_default();
            let name = pair[1].split(['(', '<']).next().unwrap_or_default();
            let is_attributed = ["#[test]", "::test]", "::test("]
                .iter()
                .any(|attribute| attributes.contains(attribute));
            let is_contract = module.starts_with("tests::http_contract::");
            if is_attributed || (is_contract && contracts.contains(name)) {
                tests.push(format!("{module}::{name}"));
            }
        }
    }
    tests
}

/// Returns whether the path of exactly one test ends with `name`. A table writes the module before
/// the name, as in `on_axum::name`, where several modules have a test of that name.
fn is_one_test(tests: &[String], name: &str) -> bool {
    let end = format!("::{name}");
    tests.iter().filter(|path| path.ends_with(&end)).count() == 1
}

#[test]
fn missing_and_ambiguous_tests_are_found() {
    let tests = all_tests();
    for name in [
        "missing_and_ambiguous_tests_are_found",
        "named_tests::missing_and_ambiguous_tests_are_found",
        "text_form_round_trips",
        "on_axum::a_denied_decision_is_returned_from_a_handler",
        "every_method_is_counted",
    ] {
        assert!(is_one_test(&tests, name), "{name}");
    }
    for name in [
        "",
        "is_one_test",
        "a_test_of_another_name",
        "from_str",
        "ambiguous_tests_are_found",
        "no_such_module::every_criterion_has_one_row",
        "a_denied_decision_is_returned_from_a_handler",
    ] {
        assert!(!is_one_test(&tests, name), "{name}");
    }
}
