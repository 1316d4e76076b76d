//! The results of a run, which are printed as they arrive and written to a file for other programs.
//!
//! `--json FILE` writes one object. The names of its fields do not change:
//!
//! | field | content |
//! |---|---|
//! | `format` | 1; if the meaning of a field changes, this number changes |
//! | `machine`, `profile` | the processor, its cores and the system; `release` or a warning |
//! | `versions` | the compared libraries and servers, each as `name version` |
//! | `goals` | `name`, `what`, `floor`, `moon`, `unit` (`times`: more is better; otherwise less is better), `measured`, `interval` of 95 % or `null`, `verdict` |
//! | `tables` | by name: `title`, `columns`, `rows`; a cell is a number, a text, or a ratio with `median`, `low` and `high` |
//! | `charts` | the charts that [`charts`](crate::charts) draws, with all their numbers |

use std::collections::BTreeMap;
use std::error::Error;

use serde::Serialize;

use crate::charts::Chart;
use crate::goals::{self, Goal};
use crate::machine;
use crate::progress::Progress;
use crate::table::Table;

/// The results of one run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    format: u32,
    machine: String,
    profile: &'static str,
    versions: Vec<String>,
    goals: Vec<Goal>,
    tables: BTreeMap<&'static str, Table>,
    charts: Vec<Chart>,
    /// Whether only the measurements with goals run.
    #[serde(skip)]
    pub(crate) goals_only: bool,
    /// The names of the goals to measure; if empty, all.
    #[serde(skip)]
    pub(crate) only: Vec<String>,
    #[serde(skip)]
    progress: Progress,
}

impl Report {
    pub(crate) fn new() -> Self {
        Self {
            format: 1,
            machine: machine::cores(),
            profile: machine::profile(),
            versions: Vec::new(),
            goals: Vec::new(),
            tables: BTreeMap::new(),
            charts: Vec::new(),
            goals_only: false,
            only: Vec::new(),
            progress: Progress::default(),
        }
    }

    /// Returns whether all measurements run, including those that have no goal.
    pub(crate) const fn wants_all(&self) -> bool {
        !self.goals_only && self.only.is_empty()
    }

    /// Returns whether at least one of `goals` is to be measured.
    pub(crate) fn wants(&self, goals: &[&str]) -> bool {
        self.only.is_empty() || goals.iter().any(|goal| self.only.iter().any(|name| name == goal))
    }

    /// Returns the requested goals that were not measured.
    pub(crate) fn unmeasured(&self) -> Vec<&str> {
        let is_measured = |name: &&str| self.goals.iter().any(|goal| goal.name == *name);
        self.only.iter().map(String::as_str).filter(|name| !is_measured(name)).collect()
    }

    /// Begins a measurement of `steps` steps, and prints the versions and the method.
    pub(crate) fn begin(&mut self, title: &str, versions: &[String], how: &str, steps: usize) {
        println!("{title}\n\nmachine   {}", self.machine);
        println!("versions  {}, {}", versions.join(", "), self.profile);
        println!("measured  {}\n", wrapped(how, 10));
        for version in versions {
            if !self.versions.contains(version) {
                self.versions.push(version.clone());
            }
        }
        self.progress = Progress::of(steps);
    }

    pub(crate) fn step(&self, next: &str) {
        self.progress.step(next);
    }

    /// Prints a line without adding it to the report.
    pub(crate) fn say(&self, text: &str) {
        self.progress.beside(|| println!("{text}\n"));
    }

    /// Prints a table, and adds it to the report under a name.
    pub(crate) fn table(&mut self, name: &'static str, table: Table) {
        self.progress.beside(|| println!("{table}"));
        self.tables.insert(name, table);
    }

    pub(crate) fn chart(&mut self, chart: Chart) {
        self.charts.push(chart);
    }

    pub(crate) fn charts(&self) -> &[Chart] {
        &self.charts
    }

    /// Ends a measurement: prints its goals, and adds them to the report.
    pub(crate) fn end(&mut self, mut goals: Vec<Goal>) {
        self.progress = Progress::default();
        goals.retain(|goal| self.wants(&[goal.name]));
        // The goals by algorithm, whose names begin with `E`, come last.
        goals.sort_by_key(|goal| {
            (goal.name.starts_with('E'), goal.name[1..].parse::<u32>().unwrap_or_default())
        });
        println!("{}", goals::table(&goals));
        self.goals.extend(goals);
    }

    /// Prints the goals of all measurements.
    pub(crate) fn print_goals(&self) {
        println!("{}", goals::table(&self.goals));
    }

    /// Writes the whole report to a file.
    pub(crate) fn write(&self, file: &str) -> Result<(), Box<dyn Error>> {
        let text = serde_json::to_string_pretty(self)?;
        std::fs::write(file, text + "\n").map_err(|error| format!("{file}: {error}").into())
    }
}

/// Wraps the text. All lines except the first are indented by `indent`.
fn wrapped(text: &str, indent: usize) -> String {
    const WIDTH: usize = 110;
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        if lines[lines.len() - 1].len() + word.len() + indent > WIDTH {
            lines.push(String::new());
        }
        let line = lines.last_mut().expect("there is always a line");
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.join(&format!("\n{:indent$}", ""))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::goals::Unit;
    use crate::measure::Estimate;
    use crate::table::Cell;

    #[test]
    fn long_lines_are_wrapped_between_words() {
        let text = "word ".repeat(40);
        let lines = wrapped(&text, 10);
        assert!(lines.lines().all(|line| line.len() <= 110), "{lines}");
        assert_eq!(lines.matches("word").count(), 40);
        assert!(lines.lines().nth(1).unwrap().starts_with("          word"), "{lines}");
    }

    #[test]
    fn a_selection_keeps_its_goals_and_names_those_that_are_missing() {
        let mut report = Report::new();
        assert!(report.wants(&["M1"]));
        report.only = ["E2", "E99"].map(str::to_owned).to_vec();
        assert!(report.wants(&["E1", "E2"]) && !report.wants(&["E1", "M2"]));
        let goal = |name| Goal::counted(name, "speed", (0.0, 0.0, Unit::AtMost("")), 0.0);
        report.end(["E2", "M2", "E1"].map(goal).to_vec());
        let names: Vec<&str> = report.goals.iter().map(|goal| goal.name).collect();
        assert_eq!((names, report.unmeasured()), (vec!["E2"], vec!["E99"]));
    }

    #[test]
    fn a_file_has_the_goals_the_tables_and_the_charts() {
        let mut report = Report::new();
        let goal = Goal::counted("R12", "too many", (0.0, 0.0, Unit::AtMost("")), 0.0);
        report.end(vec![goal]);
        let mut table = Table::new("speed", ["case", "ns", "ratio"]);
        let ratio = Estimate { median: 2.0, low: 1.5, high: 2.5 };
        table.row::<Cell>(["one key".into(), "9".into(), ratio.into()]);
        report.table("memory-speed", table);

        let value = serde_json::to_value(&report).unwrap();
        assert_eq!(value["format"], 1);
        let goal = &value["goals"][0];
        assert_eq!((&goal["name"], &goal["verdict"]), (&json!("R12"), &json!("moon")));
        assert_eq!((&goal["measured"], &goal["interval"]), (&json!(0.0), &json!(null)));
        let table = &value["tables"]["memory-speed"];
        assert_eq!(table["columns"], json!(["case", "ns", "ratio"]));
        let ratio = json!({"median": 2.0, "low": 1.5, "high": 2.5});
        assert_eq!(table["rows"], json!([["one key", 9.0, ratio]]));
    }
}
