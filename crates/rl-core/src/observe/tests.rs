//! Documents list every log line and every event.

use std::collections::BTreeSet;

/// Returns the texts of all log lines, up to the first punctuation.
fn lines_of_code() -> BTreeSet<&'static str> {
    let calls = include_str!("log.rs").split("tracing::").skip(1);
    let of_lines = calls.filter(|call| {
        ["error!(", "warn!(", "info!(", "debug!("].iter().any(|level| call.starts_with(level))
    });
    let texts = of_lines.map(|call| {
        let (call, _) = call.split_once(");").unwrap();
        call.rsplit('"').nth(1).unwrap_or_else(|| panic!("expected a text: {call}"))
    });
    texts.map(|text| text.split([',', ';', ':']).next().unwrap_or_default()).collect()
}

/// Returns the lines that the tables of the module's documentation list.
fn lines_of_document() -> BTreeSet<&'static str> {
    let (document, _) = include_str!("mod.rs").split_once("//! # Spans").unwrap();
    let rows = document.lines().filter_map(|line| line.strip_prefix("//! | `"));
    // The second column contains a level, or the log line that reports the end of the condition.
    let columns = rows.flat_map(|row| row.split('|').take(2));
    columns
        .filter_map(|column| {
            let column = column.trim();
            let is_level = ["error", "warn", "info", "debug"].iter().any(|l| column.starts_with(l));
            let text = column.trim_matches('`');
            (!is_level && !text.is_empty()).then_some(text)
        })
        .collect()
}

#[test]
fn the_documentation_lists_the_lines_that_the_code_writes() {
    let (code, document) = (lines_of_code(), lines_of_document());
    assert!(code.len() > 30, "{code:#?}");
    let is_listed = |text: &&&str| !document.iter().any(|listed| text.starts_with(listed));
    let missing: Vec<_> = code.iter().filter(is_listed).collect();
    let is_written = |listed: &&&str| !code.iter().any(|text| text.starts_with(**listed));
    let unknown: Vec<_> = document.iter().filter(is_written).collect();
    assert_eq!((missing, unknown), (vec![], vec![]), "lines missing from the document, or unknown");
}

#[test]
fn the_guide_for_operators_lists_each_event() {
    let guide = include_str!("../../docs/OBSERVABILITY.md");
    let (_, events) = guide.split_once("\n## Events\n").unwrap();
    let (events, _) = events.split_once("\n## ").unwrap();
    let arms = include_str!("event.rs").lines().filter_map(|line| line.split_once("{ .. } => \""));
    let words: Vec<_> = arms.map(|(_, word)| word.trim_end_matches("\",")).collect();
    assert!(words.len() >= 20, "{words:#?}");
    for word in words {
        assert!(events.contains(&format!("`{word}`")), "{word}");
    }
}
