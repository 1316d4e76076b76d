//! The results of a run: tables, goals and charts. They are printed as they arrive, and `--json`
//! writes them to a file.
//!
//! | field of the file | content |
//! |---|---|
//! | `machine`, `versions` | the processor and the build profile; the compared libraries |
//! | `tables` | `title`, `columns`, `rows`; a cell is a number, a text, or an estimate with `median`, `low` and `high` |
//! | `goals` | `what`, `unit`, `bound` (`at_least` or `at_most`), `measured` (an estimate), `verdict` |

use std::ffi::OsStr;
use std::fmt;
use std::process::Command;

use serde::Serialize;

use crate::charts::Chart;
use crate::measure::Estimate;
use crate::redis::redis_program;
use crate::{Options, Result};

/// The libraries whose versions are printed.
const LIBRARIES: [&str; 16] = [
    "rl-core",
    "actix-extensible-rate-limit",
    "actix-limitation",
    "actix-web",
    "axum",
    "axum-governor",
    "burster",
    "dashmap",
    "governor",
    "limitador",
    "redis",
    "throttlecrab",
    "tokio",
    "tower",
    "tower_governor",
    "trypema",
];

/// The results of one run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    machine: String,
    versions: Vec<String>,
    tables: Vec<Table>,
    goals: Vec<Goal>,
    #[serde(skip)]
    pub(crate) options: Options,
}

impl Report {
    /// Creates a report, and prints the machine and the versions.
    pub(crate) fn begin(options: Options) -> Self {
        let mut versions = LIBRARIES.map(version).to_vec();
        versions.extend([program("rustc".as_ref()), program(&redis_program())]);
        let machine = machine();
        println!("{machine}\n{}\n", versions.join(", "));
        Self { machine, versions, tables: Vec::new(), goals: Vec::new(), options }
    }

    /// Returns the number of rounds of a measurement: `full`, or one in a short run.
    pub(crate) const fn rounds(&self, full: usize) -> usize {
        if self.options.is_short { 1 } else { full }
    }

    /// Returns a number of subjects, entries or seconds: `full`, or `short` in a short run.
    pub(crate) const fn size(&self, full: usize, short: usize) -> usize {
        if self.options.is_short { short } else { full }
    }

    /// Prints a table, and adds it to the report.
    pub(crate) fn table(&mut self, table: Table) {
        println!("{table}");
        self.tables.push(table);
    }

    /// Prints a table, adds it to the report, and draws its columns as lines.
    pub(crate) fn chart(&mut self, chart: &Chart, table: Table) -> Result {
        if self.options.draws_charts {
            chart.draw(&table)?;
        }
        self.table(table);
        Ok(())
    }

    /// Adds a goal with its measured value.
    pub(crate) fn goal(
        &mut self,
        what: &str,
        bound: Bound,
        unit: &'static str,
        measured: Estimate,
    ) {
        let verdict = bound.verdict(measured);
        self.goals.push(Goal { what: what.to_owned(), bound, unit, measured, verdict });
    }

    /// Prints the goals, and writes the report to a file if that is wanted.
    pub(crate) fn end(&self) -> Result {
        let mut table = Table::new("goals", ["", "floor", "measured", "verdict"]);
        for Goal { what, bound, unit, measured, verdict } in &self.goals {
            table.row([
                what.as_str().into(),
                format!("{bound} {unit}").into(),
                (*measured).into(),
                (*verdict).into(),
            ]);
        }
        if !self.goals.is_empty() {
            println!("{table}");
        }
        let Some(file) = &self.options.json else { return Ok(()) };
        let text = serde_json::to_string_pretty(self)?;
        std::fs::write(file, text + "\n").map_err(|error| format!("{file}: {error}").into())
    }
}

/// A value that must be reached.
#[derive(Debug, Serialize)]
struct Goal {
    what: String,
    unit: &'static str,
    bound: Bound,
    measured: Estimate,
    verdict: &'static str,
}

/// The bound of a goal.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Bound {
    /// Returns the verdict on an estimate. A goal is reached only if the whole interval reaches it.
    fn verdict(self, Estimate { low, high, .. }: Estimate) -> &'static str {
        let reached = [low, high].map(|value| match self {
            Self::AtLeast(floor) => value >= floor,
            Self::AtMost(ceiling) => value <= ceiling,
        });
        match reached {
            [true, true] => "reached",
            [false, false] => "missed",
            _ => "unclear",
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(floor) => write!(f, ">= {floor}"),
            Self::AtMost(ceiling) => write!(f, "<= {ceiling}"),
        }
    }
}

/// A table of plain text. The first column is aligned to the left, the others to the right.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Table {
    title: String,
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<Vec<Cell>>,
}

/// A cell of a table.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Cell {
    Text(String),
    /// A number. NaN is an empty cell.
    Number(f64),
    Estimate(Estimate),
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<f64> for Cell {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl From<usize> for Cell {
    fn from(number: usize) -> Self {
        Self::Number(number as f64)
    }
}

impl From<Estimate> for Cell {
    fn from(estimate: Estimate) -> Self {
        Self::Estimate(estimate)
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Number(number) if number.is_nan() => Ok(()),
            Self::Number(number) if number.fract() == 0.0 || *number >= 100.0 => {
                write!(f, "{number:.0}")
            }
            Self::Number(number) if *number >= 10.0 => write!(f, "{number:.1}"),
            Self::Number(number) => write!(f, "{number:.2}"),
            Self::Estimate(estimate) => estimate.fmt(f),
        }
    }
}

impl Table {
    pub(crate) fn new<C: Into<String>>(title: &str, columns: impl IntoIterator<Item = C>) -> Self {
        let columns = columns.into_iter().map(Into::into).collect();
        Self { title: title.to_owned(), columns, rows: Vec::new() }
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push(cells.into_iter().collect());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts = |row: &Vec<Cell>| row.iter().map(Cell::to_string).collect();
        let mut rows: Vec<Vec<String>> = vec![self.columns.clone()];
        rows.extend(self.rows.iter().map(texts));
        let mut widths = vec![0; rows.iter().map(Vec::len).max().unwrap_or(0)];
        for (width, cell) in rows.iter().flat_map(|row| row.iter().enumerate()).collect::<Vec<_>>()
        {
            widths[width] = widths[width].max(cell.chars().count());
        }
        writeln!(f, "{}", self.title)?;
        for row in &rows {
            let mut line = String::new();
            for (place, (cell, width)) in row.iter().zip(&widths).enumerate() {
                match place {
                    0 => line.push_str(&format!("  {cell:<width$}")),
                    _ => line.push_str(&format!("  {cell:>width$}")),
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// Returns the processor, its number of cores, and the build profile. The ratios of unoptimised
/// programs are meaningless.
fn machine() -> String {
    let count = std::thread::available_parallelism().map_or(1, |count| count.get());
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("unknown processor", |(_, model)| model.trim());
    let profile =
        if cfg!(debug_assertions) { "DEBUG BUILD: RUN WITH --release" } else { "release" };
    format!("{model}, {count} cores, {profile}")
}

/// Returns the version of a program, from the first line of its `--version`.
fn program(name: &OsStr) -> String {
    let output = Command::new(name).arg("--version").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let line = text.unwrap_or_default().lines().next().unwrap_or_default().to_owned();
    let short = line.split(" sha").next().unwrap_or_default();
    if short.is_empty() { format!("no {}", name.display()) } else { short.to_owned() }
}

/// Returns the name of a library with its version in the lock file of the workspace. If there are
/// several versions, returns the newest.
fn version(name: &str) -> String {
    let lock = include_str!("../../../Cargo.lock");
    let found = lock.rsplit_once(&format!("name = \"{name}\"\nversion = \""));
    let version = found.and_then(|(_, rest)| rest.split('"').next()).unwrap_or("?");
    format!("{name} {version}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_goal_is_reached_only_by_the_whole_interval() {
        let verdict = |bound: Bound, low, high| bound.verdict(Estimate { median: low, low, high });
        assert_eq!(verdict(Bound::AtLeast(5.0), 5.0, 13.0), "reached");
        assert_eq!(verdict(Bound::AtLeast(5.0), 4.9, 5.3), "unclear");
        assert_eq!(verdict(Bound::AtLeast(5.0), 3.0, 4.9), "missed");
        assert_eq!(verdict(Bound::AtMost(96.0), 72.0, 96.0), "reached");
        assert_eq!(verdict(Bound::AtMost(96.0), f64::NAN, f64::NAN), "missed");
    }

    #[test]
    fn columns_are_aligned_and_numbers_have_three_digits() {
        let mut table = Table::new("speed", ["case", "ns", "ratio"]);
        table.row(["one key".into(), 9.25.into(), Estimate::exact(10.0).into()]);
        table.row(["a million".into(), 1234.5.into(), f64::NAN.into()]);
        let expected = "\
speed
  case         ns  ratio
  one key    9.25  10.00
  a million  1234
";
        assert_eq!(table.to_string(), expected);
        let written = serde_json::to_value(&table).unwrap();
        let ratio = json!({"median": 10.0, "low": 10.0, "high": 10.0});
        assert_eq!(written["rows"], json!([["one key", 9.25, ratio], ["a million", 1234.5, null]]));
    }

    #[test]
    fn every_compared_library_is_in_the_lock_file() {
        for library in LIBRARIES {
            assert!(!version(library).ends_with('?'), "{library}");
        }
    }
}
