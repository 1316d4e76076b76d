//! Line charts. Each line is a limiter, with its name at the end of the line.

use std::fmt::Write;

use super::chart::{Chart, Line, Lines};
use super::frame::{COLOURS, WIDTH, escape, head};
use super::scale::{Scale, label, linear_ticks, logarithmic_ticks};

const HEIGHT: f64 = 400.0;
/// The edges of the plot, in px. The names are on the right.
const LEFT: f64 = 64.0;
const RIGHT: f64 = WIDTH - 214.0;
const TOP: f64 = 92.0;
const BOTTOM: f64 = 344.0;
/// The minimum distance between names.
const NAME: f64 = 17.0;

pub(super) fn draw(chart: &Chart, lines: &Lines) -> String {
    let points = || lines.lines.iter().flat_map(|line| &line.points);
    let span = |of: fn(&(f64, f64)) -> f64| {
        points()
            .map(of)
            .fold((f64::INFINITY, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)))
    };
    let (least, most) = span(|point| point.0);
    let x = if lines.x.is_logarithmic {
        Scale::logarithmic((least, most), LEFT + 12.0, RIGHT - 12.0)
    } else {
        Scale::linear(most, LEFT, RIGHT - 12.0)
    };
    let (low, high) = span(|point| point.1);
    let ticks =
        if lines.y.is_logarithmic { logarithmic_ticks(low, high) } else { linear_ticks(high) };
    let (first, last) = (ticks[0], ticks[ticks.len() - 1]);
    let y = if lines.y.is_logarithmic {
        Scale::logarithmic((first, last), BOTTOM, TOP)
    } else {
        Scale::linear(last, BOTTOM, TOP)
    };

    let mut svg = head(chart, HEIGHT, &describe(lines));
    for tick in &ticks {
        let at = y.at(*tick);
        let (text, name) = (at + 4.5, label(*tick));
        let _ = writeln!(svg, r#"<path class="grid" d="M{LEFT} {at:.1}H{RIGHT}"/>"#);
        let _ = writeln!(svg, r#"<text x="56" y="{text:.1}" text-anchor="end">{name}</text>"#);
    }
    for value in columns(lines) {
        let (at, name) = (x.at(value), label(value));
        let below = BOTTOM + 20.0;
        let _ = writeln!(svg, r#"<path class="axis" d="M{at:.1} {BOTTOM}v5"/>"#);
        let _ =
            writeln!(svg, r#"<text x="{at:.1}" y="{below}" text-anchor="middle">{name}</text>"#);
    }
    let _ = writeln!(svg, r#"<path class="axis" d="M{LEFT} {BOTTOM}H{RIGHT}"/>"#);
    let _ = writeln!(svg, r#"<text x="16" y="76">{}</text>"#, escape(&lines.y.label));
    let (middle, foot) = ((LEFT + RIGHT) / 2.0, HEIGHT - 14.0);
    let below = escape(&lines.x.label);
    let _ = writeln!(svg, r#"<text x="{middle}" y="{foot}" text-anchor="middle">{below}</text>"#);
    for (number, line) in lines.lines.iter().enumerate().rev() {
        svg.push_str(&curve(number, line, x, y));
    }
    svg.push_str(&names(lines, x, y));
    svg + "</svg>\n"
}

/// Returns all positions on the horizontal axis that have a measured value.
fn columns(lines: &Lines) -> Vec<f64> {
    let mut all: Vec<f64> =
        lines.lines.iter().flat_map(|line| &line.points).map(|point| point.0).collect();
    all.sort_by(f64::total_cmp);
    all.dedup();
    all
}

fn curve(number: usize, line: &Line, x: Scale, y: Scale) -> String {
    let (colour, ours) = (number % COLOURS, if number == 0 { " ours" } else { "" });
    let mut path = String::new();
    let mut marks = String::new();
    for (place, point) in line.points.iter().enumerate() {
        let (x, y) = (x.at(point.0), y.at(point.1));
        let _ = write!(path, "{}{x:.1} {y:.1}", if place == 0 { 'M' } else { 'L' });
        let _ = writeln!(marks, r#"<circle class="f{colour}" cx="{x:.1}" cy="{y:.1}" r="3.5"/>"#);
    }
    format!("<path class=\"line{ours} c{colour}\" d=\"{path}\"/>\n{marks}")
}

/// Draws the names at the ends of their lines. Names that overlap are moved apart.
fn names(lines: &Lines, x: Scale, y: Scale) -> String {
    let mut ends: Vec<(usize, f64)> = lines
        .lines
        .iter()
        .enumerate()
        .filter_map(|(number, line)| Some((number, y.at(line.points.last()?.1))))
        .collect();
    ends.sort_by(|one, other| one.1.total_cmp(&other.1));
    let places = apart(&ends.iter().map(|end| end.1).collect::<Vec<_>>());
    let mut names = String::new();
    for ((number, end), place) in ends.into_iter().zip(places) {
        let line = &lines.lines[number];
        let last = line.points.last().map_or(RIGHT, |point| x.at(point.0));
        let (colour, strong) =
            (number % COLOURS, if number == 0 { " class=\"strong\"" } else { "" });
        let (from, to, text) = (last + 5.0, RIGHT + 8.0, place + 4.5);
        let at = RIGHT + 13.0;
        let name = escape(&line.name);
        let _ = writeln!(
            names,
            r#"<path class="c{colour}" stroke-opacity=".6" d="M{from:.1} {end:.1}L{to:.1} {place:.1}"/>"#
        );
        let _ = writeln!(names, r#"<text{strong} x="{at}" y="{text:.1}">{name}</text>"#);
    }
    names
}

/// Returns a position for the name of each line, close to the end of the line. `ends` is in
/// ascending order. The positions are moved apart so that no names overlap and no name is below the
/// plot.
fn apart(ends: &[f64]) -> Vec<f64> {
    let mut places = ends.to_vec();
    for place in 1..places.len() {
        places[place] = places[place].max(places[place - 1] + NAME);
    }
    let mut most = BOTTOM;
    for place in places.iter_mut().rev() {
        *place = place.min(most);
        most = *place - NAME;
    }
    places
}

/// Returns the numbers of all lines as a text.
fn describe(lines: &Lines) -> String {
    let one = |line: &Line| {
        let points: Vec<String> =
            line.points.iter().map(|(x, y)| format!("{} at {}", number(*y), label(*x))).collect();
        format!("{}: {}.", line.name, points.join(", "))
    };
    let all: Vec<String> = lines.lines.iter().map(one).collect();
    format!("{} by {}. {}", lines.y.label, lines.x.label, all.join(" "))
}

/// Formats a number with three significant digits.
fn number(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_do_not_overlap_and_stay_beside_the_plot() {
        let places = apart(&[100.0, 101.0, 180.0, 343.0, 344.0]);
        assert!(places.windows(2).all(|pair| pair[1] - pair[0] >= NAME), "{places:?}");
        assert_eq!((places[2], places[4]), (180.0, BOTTOM));
    }
}
