//! The results of a run: tables, goals and charts. They are printed as they arrive, and `--json`
//! writes them to a file.
//!
//! | field of the file | content |
//! |---|---|
//! | `machine` | the processor and the build profile |
//! | `tables` | `title`, `columns`, `rows`: a name, and the other cells as estimates |
//! | `goals` | `what`, `bound`, `measured` (an estimate), `verdict` |
//!
//! An estimate has the fields `median`, `low` and `high`.

use std::fmt;

use serde::Serialize;

use crate::charts::Chart;
use crate::measure::{Estimate, cores};
use crate::{Options, Result};

/// The results of one run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    machine: String,
    tables: Vec<Table>,
    goals: Vec<Goal>,
    #[serde(skip)]
    pub(crate) options: Options,
}

impl Report {
    /// Creates a report, and prints the machine.
    pub(crate) fn begin(options: Options) -> Self {
        let machine = machine();
        println!("{machine}\n");
        Self { machine, tables: Vec::new(), goals: Vec::new(), options }
    }

    /// Returns the number of rounds of a measurement: `full`, or one in a short run.
    pub(crate) const fn rounds(&self, full: usize) -> usize {
        self.size(full, 1)
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

    /// Adds a goal: a quantity that must reach `floor`.
    pub(crate) fn at_least<E: Into<Estimate>>(
        &mut self,
        what: impl ToString,
        floor: f64,
        value: E,
    ) {
        self.goal(&what, format!(">= {floor}"), value.into(), |value| value >= floor);
    }

    /// Adds a goal: a quantity that must not exceed `most`.
    pub(crate) fn at_most<E: Into<Estimate>>(&mut self, what: impl ToString, most: f64, value: E) {
        self.goal(&what, format!("<= {most}"), value.into(), |value| value <= most);
    }

    /// Adds a goal. It is reached only if the whole interval reaches it.
    fn goal(
        &mut self,
        what: &dyn ToString,
        bound: String,
        measured: Estimate,
        reaches: impl Fn(f64) -> bool,
    ) {
        let verdict = match [measured.low, measured.high].map(reaches) {
            [true, true] => "reached",
            [false, false] => "missed",
            _ => "unclear",
        };
        self.goals.push(Goal { what: what.to_string(), bound, measured, verdict });
    }

    /// Prints the goals, and writes the report to a file if that is wanted.
    pub(crate) fn end(&self) -> Result {
        for Goal { what, bound, measured, verdict } in &self.goals {
            println!("{verdict:7}  {bound:>8}  {:>20}  {what}", measured.to_string());
        }
        let Some(file) = &self.options.json else { return Ok(()) };
        let text = serde_json::to_string_pretty(self)?;
        std::fs::write(file, text + "\n").map_err(|error| format!("{file}: {error}").into())
    }
}

/// A bound on a quantity, with the measured value.
#[derive(Debug, Serialize)]
struct Goal {
    what: String,
    bound: String,
    measured: Estimate,
    verdict: &'static str,
}

/// A table of plain text. Each row has a name, and cells that are aligned to the right. NaN is an
/// empty cell.
#[derive(Debug, Serialize)]
pub(crate) struct Table {
    title: String,
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<(String, Vec<Estimate>)>,
}

impl Table {
    /// Creates a table. The first column is that of the names.
    pub(crate) fn new<C: Into<String>>(title: &str, columns: impl IntoIterator<Item = C>) -> Self {
        let columns = columns.into_iter().map(Into::into).collect();
        Self { title: title.to_owned(), columns, rows: Vec::new() }
    }

    /// Adds a row.
    pub(crate) fn row<C, R>(&mut self, name: impl ToString, cells: R)
    where
        R: IntoIterator<Item = C>,
        C: Into<Estimate>,
    {
        self.rows.push((name.to_string(), cells.into_iter().map(Into::into).collect()));
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows = vec![self.columns.clone()];
        for (name, cells) in &self.rows {
            rows.push(
                [name.clone()].into_iter().chain(cells.iter().map(Estimate::to_string)).collect(),
            );
        }
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
        let widths: Vec<_> = (0..self.columns.len()).filter_map(width).collect();
        writeln!(f, "{}", self.title)?;
        for row in &rows {
            let mut line = format!("  {:<width$}", row[0], width = widths[0]);
            for (cell, width) in row.iter().zip(&widths).skip(1) {
                line.push_str(&format!("  {cell:>width$}"));
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// Returns the processor, its number of cores, and the build profile. The ratios of unoptimised
/// programs are meaningless.
fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("unknown processor", |(_, model)| model.trim());
    let profile =
        if cfg!(debug_assertions) { "DEBUG BUILD: RUN WITH --release" } else { "release" };
    format!("{model}, {} cores, {profile}", cores())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_is_reached_only_by_the_whole_interval() {
        let mut report = Report::begin(Options::default());
        let of = |low, high| Estimate { median: low, low, high };
        report.at_least("", 5.0, of(5.0, 13.0));
        report.at_least("", 5.0, of(4.9, 5.3));
        report.at_least("", 5.0, of(3.0, 4.9));
        report.at_most("", 96.0, of(72.0, 96.0));
        report.at_most("", 96.0, f64::NAN);
        let verdicts: Vec<_> = report.goals.iter().map(|goal| goal.verdict).collect();
        assert_eq!(verdicts, ["reached", "unclear", "missed", "reached", "missed"]);
    }

    #[test]
    fn columns_are_aligned_and_numbers_have_three_digits() {
        let mut table = Table::new("speed", ["case", "ns", "ratio"]);
        table.row("one key", [9.25, 10.0]);
        table.row("a million", [1234.5, f64::NAN]);
        let expected = "\
speed
  case         ns  ratio
  one key    9.25     10
  a million  1234
";
        assert_eq!(table.to_string(), expected);
    }
}
