//! Line charts for the documents. The first column of a table is on the horizontal axis, and each
//! further column is a line with its name at its end. The first line is ours.

use std::path::{Path, PathBuf};

use crate::Result;
use crate::measure::Estimate;
use crate::report::Table;
use crate::svg::{Svg, escape};

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 400.0;
/// The edges of the plot, in px. The names are on the right.
const LEFT: f64 = 64.0;
const RIGHT: f64 = WIDTH - 214.0;
const TOP: f64 = 92.0;
const BOTTOM: f64 = 344.0;
/// The minimum distance between names, in px.
const NAME: f64 = 17.0;

/// Colours for light and dark pages. The background is painted, so that text is readable on both.
const STYLE: &str = "\
text{font:13px system-ui,sans-serif;fill:#59636e}.name{font-size:17px;font-weight:600;fill:#1f2328}
.ground{fill:#fff}.grid{stroke:#d1d9e0}.axis{stroke:#818b98}.strong{fill:#1f2328;font-weight:600}
path{fill:none}.line{stroke-width:2;stroke-linejoin:round}
.ours{stroke-width:3}
.c0{stroke:#0969da}.f0{fill:#0969da}.c1{stroke:#bc4c00}.f1{fill:#bc4c00}.c2{stroke:#8250df}.f2{fill:#8250df}
.c3{stroke:#1a7f37}.f3{fill:#1a7f37}.c4{stroke:#bf3989}.f4{fill:#bf3989}.c5{stroke:#59636e}.f5{fill:#59636e}
@media(prefers-color-scheme:dark){text{fill:#9198a1}.name,.strong{fill:#f0f6fc}.ground{fill:#0d1117}
.grid{stroke:#3d444d}.axis{stroke:#656c76}
.c0{stroke:#4493f8}.f0{fill:#4493f8}.c1{stroke:#f0883e}.f1{fill:#f0883e}.c2{stroke:#ab7df8}.f2{fill:#ab7df8}
.c3{stroke:#3fb950}.f3{fill:#3fb950}.c4{stroke:#db61a2}.f4{fill:#db61a2}.c5{stroke:#9198a1}.f5{fill:#9198a1}}";

/// The number of colours.
const COLOURS: usize = 6;

/// The texts and scales of a chart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chart {
    /// The name of its file.
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// One line about the method.
    pub(crate) note: &'static str,
    /// The quantity on the vertical axis, with its unit.
    pub(crate) unit: &'static str,
    /// Whether both axes are logarithmic. A linear axis begins at 0.
    pub(crate) is_logarithmic: bool,
}

/// A line, and its points.
type Line<'a> = (&'a str, Vec<(f64, f64)>);

impl Chart {
    /// Draws the columns of a table, and prints the link to the chart.
    pub(crate) fn draw(&self, table: &Table) -> Result {
        let file = folder().join(self.name).with_extension("svg");
        std::fs::write(&file, self.svg(table)).map_err(|error| format!("{file:?}: {error}"))?;
        println!("![{}](charts/{}.svg)\n", self.title, self.name);
        Ok(())
    }

    fn svg(&self, table: &Table) -> String {
        let lines = lines(table);
        let span = |of: fn(&(f64, f64)) -> f64| {
            let all = lines.iter().flat_map(|(_, points)| points).map(of);
            all.fold((f64::INFINITY, 0.0), |(low, high): (f64, f64), value| {
                (low.min(value), high.max(value))
            })
        };
        let (xs, ys) = (span(|point| point.0), span(|point| point.1));
        let ticks = ticks(self.is_logarithmic, ys);
        let x = self.scale(xs, LEFT + 12.0, RIGHT - 12.0);
        let y = self.scale((ticks[0], ticks[ticks.len() - 1]), BOTTOM, TOP);

        let described = describe(&lines);
        let mut svg = Svg::new((WIDTH, HEIGHT), self.title, &described, STYLE, self.title);
        svg.text(16.0, 50.0, self.note);
        for tick in ticks {
            svg.path("grid", format_args!("M{LEFT} {:.1}H{RIGHT}", y(tick)));
            svg.level(56.0, y(tick), label(tick));
        }
        let longest = lines.iter().max_by_key(|(_, points)| points.len());
        for (value, _) in longest.map_or(&[][..], |(_, points)| points) {
            svg.path("axis", format_args!("M{:.1} {BOTTOM}v5", x(*value)));
            svg.below(x(*value), BOTTOM + 20.0, label(*value));
        }
        svg.path("axis", format_args!("M{LEFT} {BOTTOM}H{RIGHT}"));
        svg.text(16.0, 76.0, self.unit);
        svg.below((LEFT + RIGHT) / 2.0, HEIGHT - 14.0, escape(&table.columns[0]));
        let mut ends = Vec::new();
        for (number, (_, points)) in lines.iter().enumerate().rev() {
            let (ours, colour) = (if number == 0 { " ours" } else { "" }, number % COLOURS);
            let points: Vec<_> = points.iter().map(|point| (x(point.0), y(point.1))).collect();
            let path: Vec<_> = points.iter().map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
            svg.path(&format!("line{ours} c{colour}"), format_args!("M{}", path.join("L")));
            for (x, y) in &points {
                svg.circle(&format!("f{colour}"), *x, *y, 3.5);
            }
            ends.insert(0, points.last().copied().unwrap_or((RIGHT, TOP)));
        }
        let places = apart(&ends.iter().map(|end| end.1).collect::<Vec<_>>());
        for (number, ((from, end), place)) in ends.into_iter().zip(places).enumerate() {
            let (colour, from, to) = (number % COLOURS, from + 5.0, RIGHT + 8.0);
            let path = format!("M{from:.1} {end:.1}L{to:.1} {place:.1}");
            svg.add(format_args!(r#"<path class="c{colour}" stroke-opacity=".6" d="{path}"/>"#));
            let strong = if number == 0 { r#" class="strong""# } else { "" };
            let (at, text, name) = (RIGHT + 13.0, place + 4.5, escape(lines[number].0));
            svg.add(format_args!(r#"<text{strong} x="{at}" y="{text:.1}">{name}</text>"#));
        }
        svg.finish()
    }

    /// Returns a function from numbers to px.
    fn scale(&self, (low, high): (f64, f64), from: f64, to: f64) -> impl Fn(f64) -> f64 + use<> {
        let is_logarithmic = self.is_logarithmic;
        move |value| {
            let part =
                if is_logarithmic { (value / low).ln() / (high / low).ln() } else { value / high };
            from + (to - from) * part
        }
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../rl-core/docs/charts")
}

/// Returns the columns of a table as lines. An empty cell is no point.
fn lines(table: &Table) -> Vec<Line<'_>> {
    let points = |column: usize| {
        let point = |(x, cells): &(String, Vec<Estimate>)| {
            Some((x.parse().ok()?, cells[column].median)).filter(|(_, y)| y.is_finite())
        };
        table.rows.iter().filter_map(point).collect()
    };
    let names = table.columns.iter().skip(1).enumerate();
    names.map(|(column, name)| (name.as_str(), points(column))).collect()
}

/// Returns round numbers for an axis, the last at or above `high`: for a linear axis about five
/// from 0, for a logarithmic one the first at most `low`.
fn ticks(is_logarithmic: bool, (low, high): (f64, f64)) -> Vec<f64> {
    if !is_logarithmic {
        let power = 10_f64.powi((high / 5.0).log10().floor() as i32);
        let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|step| step * power);
        let step = steps.into_iter().find(|step| high / step <= 5.0).unwrap_or(10.0 * power);
        return (0..=(high / step).ceil() as u32).map(|n| f64::from(n) * step).collect();
    }
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let steps: &[f64] = if last - first > 3 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let powers = first..=last;
    let all: Vec<f64> =
        powers.flat_map(|power| steps.iter().map(move |step| step * 10_f64.powi(power))).collect();
    let from = all.iter().rposition(|tick| *tick <= low * 1.000_001).unwrap_or(0);
    let to = all.iter().position(|tick| *tick >= high * 0.999_999).unwrap_or(all.len() - 1);
    all[from..=to.max(from)].to_vec()
}

/// Returns a position for the name of each line, close to the end of the line. The positions are
/// moved apart so that no names overlap and no name is below the plot.
fn apart(ends: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..ends.len()).collect();
    order.sort_by(|one, other| ends[*one].total_cmp(&ends[*other]));
    let mut places = ends.to_vec();
    for pair in order.windows(2) {
        places[pair[1]] = places[pair[1]].max(places[pair[0]] + NAME);
    }
    let mut most = BOTTOM;
    for place in order.into_iter().rev() {
        places[place] = places[place].min(most);
        most = places[place] - NAME;
    }
    places
}

/// Returns the numbers of all lines as a text.
fn describe(lines: &[Line<'_>]) -> String {
    let points = |points: &[(f64, f64)]| {
        let points = points.iter().map(|(x, y)| format!("{} at {}", Estimate::from(*y), label(*x)));
        points.collect::<Vec<_>>().join(", ")
    };
    lines.iter().map(|line| format!("{}: {}. ", line.0, points(&line.1))).collect()
}

/// Formats a number for an axis: `0.5`, `250`, `1 024`, `10 k`, `2 M`.
fn label(value: f64) -> String {
    let short = |value: f64, unit: &str| {
        let text = format!("{value:.2}");
        format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
    };
    match value {
        1_024.0 => "1 024".to_owned(),
        value if value >= 1e6 => short(value / 1e6, " M"),
        value if value >= 1e3 => short(value / 1e3, " k"),
        value => short(value, ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_marked_and_every_line_is_named() {
        let mut table = Table::new("cost", ["subjects", "ours & all", "theirs"]);
        for (x, ours, theirs) in [(1.0, 25.0, 26.0), (1e4, 40.0, f64::NAN), (1e7, 310.5, 500.0)] {
            table.row(x, [ours, theirs]);
        }
        let (name, title, note, unit) = ("subjects", "Cost", "note", "ns");
        let svg = Chart { name, title, note, unit, is_logarithmic: true }.svg(&table);
        assert_eq!(svg.matches("<circle ").count(), 5);
        assert!(svg.contains(">ours &amp; all</text>") && svg.contains(">10 M</text>"), "{svg}");
    }

    #[test]
    fn ticks_are_round_and_enclose_the_numbers() {
        assert_eq!(ticks(true, (23.0, 310.0)), [20.0, 50.0, 100.0, 200.0, 500.0]);
        assert_eq!(ticks(true, (10.0, 1e6)), [10.0, 100.0, 1e3, 1e4, 1e5, 1e6]);
        assert_eq!(ticks(false, (1.0, 9.3)), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
    }

    #[test]
    fn names_do_not_overlap_and_stay_beside_the_plot() {
        let places = apart(&[344.0, 100.0, 101.0, 343.0]);
        assert_eq!(places, [BOTTOM, 100.0, 117.0, BOTTOM - NAME]);
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
