//! Bar charts. Each bar is a limiter, with its name on the left and its value on the right.

use std::fmt::Write;

use super::chart::{Bars, Chart};
use super::frame::{WIDTH, escape, head};
use super::scale::{Scale, label, logarithmic_ticks};

/// The left end of all bars and the right end of the longest bar, in px. The names are on the left.
const LEFT: f64 = 300.0;
const RIGHT: f64 = WIDTH - 76.0;
const TOP: f64 = 72.0;
/// The distance between bars, and the thickness of a bar.
const PITCH: f64 = 25.0;
const BAR: f64 = 15.0;

pub(super) fn draw(chart: &Chart, bars: &Bars) -> String {
    let values = || bars.bars.iter().map(|bar| bar.value);
    let (low, high) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
    // The scale begins below the smallest value, so that the shortest bar is visible too.
    let ticks = logarithmic_ticks(low / 2.0, high);
    let x = Scale::logarithmic((ticks[0], ticks[ticks.len() - 1]), LEFT, RIGHT);
    let bottom = TOP + PITCH * bars.bars.len() as f64;

    let described = bars.bars.iter().map(|bar| format!("{}: {}", bar.name, short(bar.value)));
    let described = described.collect::<Vec<_>>().join(", ");
    let mut svg = head(chart, bottom + 56.0, &format!("{}. {described}", bars.unit));
    for tick in &ticks {
        let (at, below, name) = (x.at(*tick), bottom + 18.0, label(*tick));
        let _ = writeln!(svg, r#"<path class="grid" d="M{at:.1} {TOP}V{bottom}"/>"#);
        let _ =
            writeln!(svg, r#"<text x="{at:.1}" y="{below}" text-anchor="middle">{name}</text>"#);
    }
    for (place, bar) in bars.bars.iter().enumerate() {
        let y = TOP + PITCH * place as f64 + (PITCH - BAR) / 2.0;
        let (end, text) = (x.at(bar.value), y + BAR - 3.0);
        let (width, before, behind) = (end - LEFT, LEFT - 10.0, end + 7.0);
        let (class, strong) = if bar.is_ours { ("f0", "strong") } else { ("other", "") };
        let (name, value) = (escape(&bar.name), short(bar.value));
        let _ = writeln!(
            svg,
            r#"<rect class="{class}" x="{LEFT}" y="{y:.1}" width="{width:.1}" height="{BAR}" rx="2"/>"#
        );
        let _ = writeln!(
            svg,
            r#"<text class="{strong}" x="{before}" y="{text:.1}" text-anchor="end">{name}</text>"#
        );
        let _ = writeln!(
            svg,
            r#"<text class="value {strong}" x="{behind:.1}" y="{text:.1}">{value}</text>"#
        );
    }
    let (middle, foot) = ((LEFT + RIGHT) / 2.0, bottom + 42.0);
    let unit = escape(&bars.unit);
    let _ = writeln!(svg, r#"<text x="{middle}" y="{foot}" text-anchor="middle">{unit}</text>"#);
    svg + "</svg>\n"
}

fn short(value: f64) -> String {
    match value {
        value if value >= 10_000.0 => label((value / 100.0).round() * 100.0),
        value if value >= 10.0 => format!("{value:.0}"),
        value => format!("{value:.1}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::chart::{Bar, Plot};
    use super::*;

    #[test]
    fn the_longest_bar_is_the_greatest_number_and_ours_is_marked() {
        let bar = |name: &str, value, is_ours| Bar { name: name.into(), value, is_ours };
        let bars = vec![bar("ours", 40.0, true), bar("theirs", 4_000.0, false)];
        let bars = Bars { unit: "ns".into(), bars };
        let chart = Chart {
            name: "peers".into(),
            title: "Peers".into(),
            note: String::new(),
            plot: Plot::Bars(bars.clone()),
        };
        let svg = draw(&chart, &bars);
        let width = |class: &str| -> f64 {
            let rect = svg.split(&format!("<rect class=\"{class}\"")).nth(1).unwrap();
            rect.split("width=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap()
        };
        assert!(width("f0") > 0.0 && width("other") > 2.0 * width("f0"), "{svg}");
        assert!(svg.contains(">4000</text>"), "{svg}");
    }
}
