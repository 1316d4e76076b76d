//! Line charts for the documents. The first column of a table is on the horizontal axis, and each
//! further column is a line. The first line is ours. Both axes are logarithmic.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use crate::Result;
use crate::report::{Cell, Table};

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 400.0;
/// The edges of the plot, in px. The names of the lines are on the right.
const LEFT: f64 = 64.0;
const RIGHT: f64 = WIDTH - 214.0;
const TOP: f64 = 92.0;
const BOTTOM: f64 = 344.0;

/// Colours for light and dark pages. The background is painted, so that text is readable on both.
const STYLE: &str = "\
text{font:13px system-ui,sans-serif;fill:#59636e}.name{font-size:17px;font-weight:600;fill:#1f2328}
.ground{fill:#fff}.grid{stroke:#d1d9e0}.strong{fill:#1f2328;font-weight:600}
path{fill:none}.line{stroke-width:2;stroke-linejoin:round}
.c0{stroke:#0969da}.f0{fill:#0969da}.c1{stroke:#bc4c00}.f1{fill:#bc4c00}
.c2{stroke:#8250df}.f2{fill:#8250df}.c3{stroke:#1a7f37}.f3{fill:#1a7f37}
@media(prefers-color-scheme:dark){text{fill:#9198a1}.name,.strong{fill:#f0f6fc}
.ground{fill:#0d1117}.grid{stroke:#3d444d}
.c0{stroke:#4493f8}.f0{fill:#4493f8}.c1{stroke:#f0883e}.f1{fill:#f0883e}
.c2{stroke:#ab7df8}.f2{fill:#ab7df8}.c3{stroke:#3fb950}.f3{fill:#3fb950}}";

/// The texts of a chart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chart {
    /// The name of its file.
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// One line about the method.
    pub(crate) note: &'static str,
    /// The quantity on the vertical axis, with its unit.
    pub(crate) unit: &'static str,
}

impl Chart {
    /// Draws the columns of a table, and prints the link to the chart.
    pub(crate) fn draw(&self, table: &Table) -> Result {
        let file = folder().join(self.name).with_extension("svg");
        std::fs::write(&file, self.svg(table)).map_err(|error| format!("{file:?}: {error}"))?;
        println!("![{}](charts/{}.svg)\n", self.title, self.name);
        Ok(())
    }

    fn svg(&self, table: &Table) -> String {
        let lines: Vec<Vec<(f64, f64)>> =
            (1..table.columns.len()).map(|column| points(table, column)).collect();
        let all = || lines.iter().flatten();
        let columns: Vec<f64> = table.rows.iter().filter_map(|row| number(row.first()?)).collect();
        let low = all().map(|point| point.1).fold(f64::INFINITY, f64::min);
        let ticks = ticks(low, all().map(|point| point.1).fold(0.0, f64::max));
        let x = scale(&columns, LEFT + 12.0, RIGHT - 12.0);
        let y = scale(&ticks, BOTTOM, TOP);

        let mut svg = self.head(table, &lines);
        for tick in &ticks {
            let (at, text, name) = (y(*tick), y(*tick) + 4.5, label(*tick));
            let _ = writeln!(svg, r#"<path class="grid" d="M{LEFT} {at:.1}H{RIGHT}"/>"#);
            let _ = writeln!(svg, r#"<text x="56" y="{text:.1}" text-anchor="end">{name}</text>"#);
        }
        for column in &columns {
            let (at, below, name) = (x(*column), BOTTOM + 20.0, label(*column));
            let text =
                format!(r#"<text x="{at:.1}" y="{below}" text-anchor="middle">{name}</text>"#);
            let _ = writeln!(svg, r#"<path class="grid" d="M{at:.1} {BOTTOM}v5"/>{text}"#);
        }
        for (number, points) in lines.iter().enumerate().rev() {
            let points: Vec<_> = points.iter().map(|point| (x(point.0), y(point.1))).collect();
            let path = points.iter().map(|(x, y)| format!("L{x:.1} {y:.1}")).collect::<String>();
            let path = path.replacen('L', "M", 1);
            let _ = writeln!(svg, r#"<path class="line c{number}" d="{path}"/>"#);
            for (x, y) in points {
                let _ =
                    writeln!(svg, r#"<circle class="f{number}" cx="{x:.1}" cy="{y:.1}" r="3.5"/>"#);
            }
            let (name, at) = (escape(&table.columns[number + 1]), TOP + 22.0 * number as f64);
            let (mark, text) = (RIGHT + 14.0, RIGHT + 38.0);
            let strong = if number == 0 { r#" class="strong""# } else { "" };
            let _ = writeln!(svg, r#"<path class="line c{number}" d="M{mark} {at}h18"/>"#);
            let _ = writeln!(svg, r#"<text{strong} x="{text}" y="{}">{name}</text>"#, at + 4.5);
        }
        svg + "</svg>\n"
    }

    /// Returns the beginning of the chart, with its numbers as a text for screen readers.
    fn head(&self, table: &Table, lines: &[Vec<(f64, f64)>]) -> String {
        let mut described = String::new();
        for (name, points) in table.columns.iter().skip(1).zip(lines) {
            let points =
                points.iter().map(|(x, y)| format!("{} at {}", Cell::Number(*y), label(*x)));
            let _ = write!(described, "{name}: {}. ", points.collect::<Vec<_>>().join(", "));
        }
        let [title, note, unit] = [self.title, self.note, self.unit].map(escape);
        let (described, below) = (escape(&described), escape(&table.columns[0]));
        let (middle, foot) = ((LEFT + RIGHT) / 2.0, HEIGHT - 14.0);
        format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" aria-labelledby="title desc">
<title id="title">{title}</title>
<desc id="desc">{described}</desc>
<style>{STYLE}</style>
<rect class="ground" width="{WIDTH}" height="{HEIGHT}" rx="8"/>
<text class="name" x="16" y="28">{title}</text>
<text x="16" y="50">{note}</text>
<text x="16" y="76">{unit}</text>
<text x="{middle}" y="{foot}" text-anchor="middle">{below}</text>
"#
        )
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../rl-core/docs/charts")
}

const fn number(cell: &Cell) -> Option<f64> {
    match cell {
        Cell::Number(number) if number.is_finite() => Some(*number),
        _ => None,
    }
}

/// Returns the points of a column. A cell without a number is no point.
fn points(table: &Table, column: usize) -> Vec<(f64, f64)> {
    let point = |row: &Vec<Cell>| Some((number(row.first()?)?, number(row.get(column)?)?));
    table.rows.iter().filter_map(point).collect()
}

/// Returns a logarithmic scale, which maps the first and the last of `numbers` to these px.
fn scale(numbers: &[f64], from: f64, to: f64) -> impl Fn(f64) -> f64 + use<> {
    let (low, high) = (numbers[0], numbers[numbers.len() - 1]);
    move |number| from + (to - from) * (number / low).ln() / (high / low).ln()
}

/// Returns round numbers, the first at most `low` and the last at least `high`. They are powers of
/// ten. If the axis spans few powers, 2 and 5 times each power are included.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let steps: &[f64] = if last - first > 3 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let of_power = |power| steps.iter().map(move |step| step * 10_f64.powi(power));
    let all: Vec<f64> = (first..=last).flat_map(of_power).collect();
    let from = all.iter().rposition(|tick| *tick <= low * 1.000_001).unwrap_or(0);
    let to = all.iter().position(|tick| *tick >= high * 0.999_999).unwrap_or(all.len() - 1);
    all[from..=to.max(from + 1)].to_vec()
}

/// Formats a number for an axis: `0.5`, `250`, `1024`, `10 k`, `2 M`.
fn label(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{} M", value / 1e6),
        value if value >= 1e3 && value % 1e3 == 0.0 => format!("{} k", value / 1e3),
        value => value.to_string(),
    }
}

/// Escapes text for use between tags.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_marked_and_every_line_is_named() {
        let mut table = Table::new("cost", ["subjects", "ours & all", "theirs"]);
        for row in [[1.0, 25.0, 26.0], [1e4, 40.0, f64::NAN], [1e7, 310.5, 500.0]] {
            table.row(row.map(Cell::Number));
        }
        let (name, title, note, unit) = ("subjects", "Cost", "note", "ns");
        let svg = Chart { name, title, note, unit }.svg(&table);
        assert_eq!(svg.matches("<circle ").count(), 5);
        assert!(svg.contains(">ours &amp; all</text>") && svg.contains(">10 M</text>"), "{svg}");
    }

    #[test]
    fn ticks_are_round_and_enclose_the_numbers() {
        assert_eq!(ticks(23.0, 310.0), [20.0, 50.0, 100.0, 200.0, 500.0]);
        assert_eq!(ticks(10.0, 1e6), [10.0, 100.0, 1e3, 1e4, 1e5, 1e6]);
    }

    #[test]
    fn the_page_on_performance_shows_every_chart_and_no_other() {
        let page = std::fs::read_to_string(folder().join("../PERFORMANCE.md")).unwrap();
        let mut drawn = 0;
        for file in std::fs::read_dir(folder()).unwrap() {
            let link = format!("](charts/{})", file.unwrap().file_name().into_string().unwrap());
            assert!(page.contains(&link), "PERFORMANCE.md lacks {link}");
            drawn += 1;
        }
        assert_eq!(page.matches("](charts/").count(), drawn);
    }
}
