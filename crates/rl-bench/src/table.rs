use std::fmt;

use serde::{Serialize, Serializer};

use crate::measure::Estimate;

/// A table of plain text. The first column is aligned to the left, the others to the right.
#[derive(Debug, Serialize)]
pub(crate) struct Table {
    title: String,
    columns: Vec<String>,
    rows: Vec<Vec<Cell>>,
}

#[derive(Clone, Debug)]
pub(crate) enum Cell {
    /// A text. If it is a number, the JSON report contains a number instead of a text.
    Text(String),
    Ratio(Estimate),
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

impl From<Estimate> for Cell {
    fn from(ratio: Estimate) -> Self {
        Self::Ratio(ratio)
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Ratio(ratio) => ratio.fmt(f),
        }
    }
}

impl Serialize for Cell {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Ratio(ratio) => ratio.serialize(serializer),
            Self::Text(text) => match text.parse::<f64>() {
                Ok(number) if number.is_finite() => serializer.serialize_f64(number),
                _ => serializer.serialize_str(text),
            },
        }
    }
}

impl Table {
    pub(crate) fn new<'a>(title: &str, header: impl IntoIterator<Item = &'a str>) -> Self {
        let columns = header.into_iter().map(str::to_owned).collect();
        Self { title: title.to_owned(), columns, rows: Vec::new() }
    }

    pub(crate) fn row<C: Into<Cell>>(&mut self, cells: impl IntoIterator<Item = C>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts = |row: &Vec<Cell>| row.iter().map(Cell::to_string).collect();
        let mut rows: Vec<Vec<String>> = vec![self.columns.clone()];
        rows.extend(self.rows.iter().map(texts));
        let mut widths = vec![0; rows.iter().map(Vec::len).max().unwrap_or(0)];
        for row in &rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new("speed", ["case", "ns", "ratio"]);
        table.row(["one key", "9", "10.00x"].map(str::to_owned));
        table.row(["a million", "1234", "1.00x"].map(str::to_owned));
        let expected = "\
speed
  case         ns   ratio
  one key       9  10.00x
  a million  1234   1.00x
";
        assert_eq!(table.to_string(), expected);
    }
}
