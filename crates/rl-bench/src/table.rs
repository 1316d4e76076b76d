use std::fmt;

/// A table of plain text: the first column to the left, the others to the right.
#[derive(Debug)]
pub(crate) struct Table {
    title: String,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new<'a>(title: &str, header: impl IntoIterator<Item = &'a str>) -> Self {
        let header = header.into_iter().map(str::to_owned).collect();
        Self { title: title.to_owned(), rows: vec![header] }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut widths = vec![0; self.rows.iter().map(Vec::len).max().unwrap_or(0)];
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        writeln!(f, "{}", self.title)?;
        for row in &self.rows {
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
