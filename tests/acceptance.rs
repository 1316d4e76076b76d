//! Checks that `ACCEPTANCE.md` names a test for each criterion, and that every test that it names
//! exists.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The features that are not built yet. A row of `ACCEPTANCE.md` may say `waits for:` only with one
/// of them.
const LATER: [&str; 4] =
    ["algorithms", "failure handling", "performance", "records and management"];

#[derive(Debug)]
struct Row {
    id: String,
    held_by: String,
}

fn rows() -> Vec<Row> {
    let text = fs::read_to_string(folder().join("ACCEPTANCE.md")).unwrap();
    let rows = text.lines().filter_map(|line| {
        let cells: Vec<&str> = line.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ").collect();
        let [id, words, held_by] = cells[..] else { panic!("not three cells: {line}") };
        let is_row = id.starts_with(['S', 'X']) && id[1..].parse::<u32>().is_ok();
        assert!(!words.is_empty(), "{line}");
        is_row.then(|| Row { id: id.to_owned(), held_by: held_by.to_owned() })
    });
    rows.collect()
}

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn every_criterion_has_one_row() {
    let ids: Vec<String> = rows().into_iter().map(|row| row.id).collect();
    let seeds = (1..=164).map(|number| format!("S{number}"));
    let expected: Vec<String> = seeds.chain((1..=20).map(|number| format!("X{number}"))).collect();
    let missing: BTreeSet<_> = expected.iter().filter(|id| !ids.contains(id)).collect();
    assert!(missing.is_empty(), "missing: {missing:?}");
    assert_eq!(ids, expected, "in order, and once each");
}

#[test]
fn every_row_names_its_tests_and_every_named_test_exists() {
    let mut named = 0;
    for Row { id, held_by } in rows() {
        if let Some(work) = held_by.strip_prefix("waits for: ") {
            assert!(LATER.contains(&work), "{id}: {work}");
        } else if let Some(page) = held_by.strip_prefix("documented in ") {
            let page = folder().join("..").join(page.trim_matches('`'));
            assert!(page.exists(), "{id}: {}", page.display());
        } else if let Some(tests) = held_by.strip_prefix("covered by ") {
            for test in tests.split(", ") {
                let (name, module) = test.split_once(' ').unwrap_or((test, ""));
                let (name, module) = (name.trim_matches('`'), module.trim_matches(['(', ')']));
                assert!(is_test(module, name), "{id}: no test {name} in {module}");
                named += 1;
            }
        } else {
            panic!("{id}: neither covered nor documented nor waiting: {held_by}")
        }
    }
    assert!(named > 50);
}

/// Returns whether the module `module`, such as `scenarios` or `rl_core::policy`, has a test called
/// `name`.
fn is_test(module: &str, name: &str) -> bool {
    let Some(file) = file_of(module) else {
        return false;
    };
    let text = fs::read_to_string(&file).unwrap();
    let Some(at) = text.find(&format!("fn {name}(")).or(text.find(&format!("fn {name}<"))) else {
        return false;
    };
    let before = &text[..at];
    // The attributes of a function come after the last empty line before it.
    let attributes = before.rsplit("\n\n").next().unwrap_or_default();
    let is_attributed =
        ["#[test]", "::test]", "::test("].iter().any(|attribute| attributes.contains(attribute));
    is_attributed || is_in_macro(before, "proptest! {") || is_listed(&file, name)
}

/// Returns whether `before` ends inside a macro call that begins with `opening`. The closing brace
/// of the call has the same indentation as `opening`.
fn is_in_macro(before: &str, opening: &str) -> bool {
    let Some(at) = before.rfind(opening) else {
        return false;
    };
    let margin = before[..at].rsplit('\n').next().unwrap_or_default();
    !before[at..].contains(&format!("\n{margin}}}\n"))
}

/// Returns whether the macro `contract!` of the parent module lists the function. The macro makes
/// each function that it lists a test for each adapter.
fn is_listed(file: &Path, name: &str) -> bool {
    let parent = file.with_file_name("mod.rs");
    let text = fs::read_to_string(parent).unwrap_or_default();
    let list = text.split("\ncontract! {").nth(1).unwrap_or_default();
    list.lines().any(|line| line.trim() == format!("{name},"))
}

fn file_of(module: &str) -> Option<PathBuf> {
    let mut parts: Vec<&str> = module.split("::").collect();
    let mut base = folder().to_owned();
    let package = parts[0].replace('_', "-");
    let sources = folder().join("../crates").join(&package).join("src");
    if sources.exists() {
        base = sources;
        parts.remove(0);
    }
    let path = base.join(parts.join("/"));
    [path.with_extension("rs"), path.join("mod.rs")].into_iter().find(|file| file.exists())
}

#[test]
fn a_missing_test_is_found() {
    assert!(is_test("acceptance", "a_missing_test_is_found"));
    assert!(is_test("rl_core::model::limit_text", "text_form_round_trips"));
    for (module, name) in [
        ("acceptance", "is_test"),
        ("acceptance", "a_test_of_another_name"),
        ("rl_core::model::limit_text", "from_str"),
        ("no_such_module", "every_criterion_has_one_row"),
    ] {
        assert!(!is_test(module, name), "{module}::{name}");
    }
}
