//! The book of the decision server builds without a warning, and its links resolve.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

fn root() -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).canonicalize().unwrap()
}

/// Returns the pages of the book, and their texts.
fn pages() -> Vec<(PathBuf, String)> {
    let source = root().join("docs/src");
    let folders = [source.clone(), source.join("gateways")];
    let files = folders.iter().flat_map(|folder| fs::read_dir(folder).unwrap());
    let files = files.map(|file| file.unwrap().path()).filter(|path| path.is_file());
    let pages = files.map(|path| (path.clone(), fs::read_to_string(path).unwrap()));
    let pages: Vec<_> = pages.collect();
    assert!(pages.len() > 10, "{pages:?}");
    pages
}

/// Returns the texts between `before` and `after`.
fn between<'a>(text: &'a str, before: &'a str, after: char) -> impl Iterator<Item = &'a str> {
    text.split(before).skip(1).filter_map(move |rest| rest.split(after).next())
}

/// Returns the anchors of the headings of a page.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let words = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = words.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
}

#[test]
fn the_book_builds_without_a_warning() {
    let folder = TempDir::new().unwrap();
    let program = std::env::var_os("RL_MDBOOK").unwrap_or_else(|| OsString::from("mdbook"));
    let mut command = Command::new(&program);
    command.arg("build").arg(root().join("docs")).arg("--dest-dir").arg(folder.path());
    let output = command.output().unwrap_or_else(|error| panic!("{program:?}: {error}"));
    let log = [output.stdout, output.stderr].concat();
    let log = String::from_utf8(log).unwrap();
    let is_complaint = |line: &&str| ["WARN", "ERROR"].iter().any(|level| line.contains(level));
    let complaints: Vec<_> = log.lines().filter(is_complaint).collect();
    assert!(output.status.success() && complaints.is_empty(), "{log}");
    assert!(folder.path().join("gateways/nginx.html").exists(), "{log}");
}

#[test]
fn links_and_includes_of_the_book_resolve() {
    let mut broken = Vec::new();
    for (path, text) in pages() {
        let folder = path.parent().unwrap();
        for link in between(&text, "](", ')') {
            if link.starts_with("https://") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { path.clone() } else { folder.join(file) };
            let has_anchor = || {
                let text = fs::read_to_string(&target).unwrap_or_default();
                anchor.is_empty() || anchors(&text).contains(anchor)
            };
            if !target.exists() || !has_anchor() {
                broken.push(format!("{}: {link}", path.display()));
            }
        }
        for file in between(&text, "{{#include ", '}') {
            if !folder.join(file).is_file() {
                broken.push(format!("{}: {file}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn every_page_is_in_the_summary_and_every_configuration_on_a_page() {
    let pages = pages();
    let summary = fs::read_to_string(root().join("docs/src/SUMMARY.md")).unwrap();
    let listed: BTreeSet<PathBuf> =
        between(&summary, "](", ')').map(|file| root().join("docs/src").join(file)).collect();
    let mut missing: Vec<PathBuf> = pages
        .iter()
        .map(|(path, _)| path.clone())
        .filter(|path| !path.ends_with("SUMMARY.md") && !listed.contains(path))
        .collect();
    let mut included = BTreeSet::new();
    for (path, text) in &pages {
        for file in between(text, "{{#include ", '}') {
            included.insert(path.parent().unwrap().join(file).canonicalize().unwrap());
        }
    }
    for folder in ["docs/gateways", "docs/clients"] {
        let files = fs::read_dir(root().join(folder)).unwrap().map(|file| file.unwrap().path());
        missing.extend(files.filter(|file| !included.contains(file)));
    }
    assert!(missing.is_empty(), "{missing:#?}");
}
