//! A picture of a timeline, as an SVG: the requests at the top, and the usage of the limit at the
//! bottom.

use std::fmt::Write;

use super::timeline::{END, Request, Timeline};

/// The left and the right end of the timeline, in px.
pub(super) const LEFT: f64 = 48.0;
pub(super) const RIGHT: f64 = 700.0;
/// The y position of the lowest request, and the distance between two in a column, in px.
const REQUESTS: f64 = 174.0;
const PITCH: f64 = 12.0;
/// The width of a column of requests, in ms.
const COLUMN: u64 = 3_000;
/// The lower edge and the height of the area that shows the usage, in px, and the units at its
/// upper edge.
pub(super) const LEVELS: f64 = 310.0;
const HEIGHT: f64 = 110.0;
const TOP: f64 = 20.0;

/// Colours for light and dark pages. The background is painted, so that text is readable on both.
const STYLE: &str = "\
text{font:13px system-ui,sans-serif;fill:#59636e}.name{font-size:17px;font-weight:600;fill:#1f2328}
.ground{fill:#fff}.grid{stroke:#d1d9e0}.max{stroke:#59636e;stroke-dasharray:5 4}
.edge{stroke:#59636e;stroke-dasharray:1 4;stroke-width:2}
.pass{fill:#0969da}.deny{fill:none;stroke:#cf222e;stroke-width:1.8}
.used{fill:#0969da;fill-opacity:.22}.minute{fill:none;stroke:#9a6700;stroke-width:2}
@media(prefers-color-scheme:dark){text{fill:#9198a1}.name{fill:#f0f6fc}.ground{fill:#0d1117}
.grid{stroke:#3d444d}.max,.edge{stroke:#9198a1}.pass{fill:#4493f8}.deny{stroke:#f85149}
.used{fill:#4493f8;fill-opacity:.3}.minute{stroke:#d29922}}";

/// Draws the decisions of `limit`.
pub(super) fn draw(limit: &str, timeline: &Timeline) -> String {
    let (summary, details) = (timeline.summary(), timeline.details());
    let details = format!("Requests over three minutes: {details}.");
    let parts = [
        head(limit, &summary, &details, ""),
        legend(!timeline.edges.is_empty()),
        axes(),
        timeline.edges.iter().map(|edge| edge_at(*edge)).collect(),
        requests(&timeline.requests),
        levels(timeline),
        "</svg>\n".to_owned(),
    ];
    parts.concat()
}

/// Returns the beginning of a picture. `style` is added to the common style.
pub(super) fn head(limit: &str, summary: &str, details: &str, style: &str) -> String {
    format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 340" width="720" height="340" role="img" aria-labelledby="title desc">
<title id="title">{limit}: {summary}</title>
<desc id="desc">{details}</desc>
<style>{STYLE}{style}</style>
<rect class="ground" width="720" height="340" rx="8"/>
<text class="name" x="16" y="28">{limit}</text>
<text x="16" y="51">{summary}</text>
"#
    )
}

fn legend(has_edges: bool) -> String {
    let edge = r#"<path class="edge" d="M611 70v16"/><text x="620" y="82">window ends</text>
"#;
    let edge = if has_edges { edge } else { "" };
    format!(
        r#"<circle class="pass" cx="21" cy="77" r="4.5"/><text x="31" y="82">admitted</text>
<circle class="deny" cx="107" cy="77" r="4"/><text x="117" y="82">denied</text>
<rect class="used" x="179" y="71" width="18" height="12"/><text x="202" y="82">used</text>
<path class="minute" d="M250 77h18"/><text x="273" y="82">admitted in the last minute</text>
<path class="max" d="M471 77h19"/><text x="495" y="82">most at once</text>
{edge}"#
    )
}

/// Returns the horizontal position of a time, in px.
fn x(at: u64) -> f64 {
    LEFT + (RIGHT - LEFT) * at as f64 / END as f64
}

/// Returns the vertical position of a level, in px.
fn y(level: u64) -> f64 {
    LEVELS - HEIGHT * level as f64 / TOP
}

fn axes() -> String {
    let mut axes = String::new();
    for at in (0..=END).step_by(30_000) {
        let (x, seconds) = (x(at), at / 1_000);
        let (minutes, seconds) = (seconds / 60, seconds % 60);
        if seconds == 0 {
            let _ = writeln!(axes, r#"<path class="grid" d="M{x:.1} 104V{LEVELS}"/>"#);
        }
        let label = format!("{minutes}:{seconds:02}");
        let _ = writeln!(axes, r#"<text x="{x:.1}" y="330" text-anchor="middle">{label}</text>"#);
    }
    for level in [0, 10, 20] {
        let y = y(level);
        let text = y + 4.5;
        let _ = writeln!(axes, r#"<path class="grid" d="M{LEFT} {y:.1}H{RIGHT}"/>"#);
        let _ = writeln!(axes, r#"<text x="40" y="{text:.1}" text-anchor="end">{level}</text>"#);
    }
    axes
}

fn edge_at(at: u64) -> String {
    format!("<path class=\"edge\" d=\"M{:.1} {}V{LEVELS}\"/>\n", x(at), y(20))
}

/// Draws the requests. Those in the same column are stacked, with the first one at the bottom.
fn requests(requests: &[Request]) -> String {
    let mut circles = String::new();
    for (place, request) in requests.iter().enumerate() {
        let column = request.at / COLUMN;
        let below = requests[..place].iter().filter(|other| other.at / COLUMN == column).count();
        let (x, y) = (x(column * COLUMN + COLUMN / 2), REQUESTS - PITCH * below as f64);
        let (class, r) = if request.passed { ("pass", 4.5) } else { ("deny", 4.0) };
        let _ =
            writeln!(circles, r#"<circle class="{class}" cx="{x:.1}" cy="{y:.1}" r="{r:.1}"/>"#);
    }
    circles
}

fn levels(timeline: &Timeline) -> String {
    let [used, passed] = [&timeline.used, &timeline.passed].map(|levels| steps(levels, x, y));
    let max = y(timeline.capacity);
    format!(
        r#"<path class="used" d="M{LEFT} {LEVELS}{used}V{LEVELS}Z"/>
<path class="max" d="M{LEFT} {max:.1}H{RIGHT}"/>
<path class="minute" d="M{LEFT} {LEVELS}{passed}"/>
"#
    )
}

/// Draws a line of steps: vertical at each change, horizontal in between.
pub(super) fn steps(
    levels: &[(u64, u64)],
    x: impl Fn(u64) -> f64,
    y: impl Fn(u64) -> f64,
) -> String {
    let mut path = String::new();
    for (at, level) in levels {
        let _ = write!(path, "H{:.1}V{:.1}", x(*at), y(*level));
    }
    let _ = write!(path, "H{RIGHT}");
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_is_a_dot_and_the_same_timeline_is_the_same_picture() {
        let limit = "10/minute";
        let draw = || draw(limit, &Timeline::of(limit).unwrap());
        let picture = draw();
        // The legend contains two more circles.
        assert_eq!(picture.matches("<circle ").count(), 57 + 2);
        assert_eq!(picture, draw());
    }
}
