//! The rules of a file of another service.

use indexmap::IndexMap;
use serde_saphyr::Location;

use super::rule::Domains;

/// The rules of a file of another service, and the differences between the two services.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// The rules.
    pub domains: Domains,
    /// The differences between the decisions of that service and those of this one, each with its
    /// place in the files.
    pub differences: Vec<String>,
}

/// The name and text of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamedText {
    pub(super) name: String,
    pub(super) text: String,
}

/// Collects differences: each text once, with its first place.
#[derive(Debug, Default)]
pub(super) struct Differences(IndexMap<String, (String, usize)>);

impl Differences {
    /// Adds a difference that has no place.
    pub(super) fn everywhere(&mut self, text: &str) {
        self.0.entry(text.to_owned()).or_default();
    }

    /// Adds a difference at a place.
    pub(super) fn add(&mut self, file: &str, place: Location, text: String) {
        let (first, count) = self.0.entry(text).or_default();
        if *count == 0 {
            *first = format!("{file}:{}:{}: ", place.line(), place.column());
        }
        *count += 1;
    }

    /// Returns a line for each difference.
    pub(super) fn lines(self) -> Vec<String> {
        let lines = self.0.into_iter().map(|(text, (first, count))| match count {
            0 | 1 => format!("{first}{text}"),
            2 => format!("{first}{text} (and 1 more)"),
            _ => format!("{first}{text} (and {} more)", count - 1),
        });
        lines.collect()
    }
}
