//! A picture of requests in flight, as an SVG. Each request is a bar at the top; the number of held
//! permits is drawn at the bottom.

use std::fmt::Write;

use super::in_flight::{END, InFlight};
use super::svg::{LEFT, LEVELS, RIGHT, head, steps};

/// The y position of the lowest denied request, and the distance between two in a column, in px.
const DENIED: f64 = 151.0;
const PITCH: f64 = 10.0;
/// The width of a column of denied requests, in ms.
const COLUMN: u64 = 1_000;
/// The y position of the lowest row of bars, the distance between rows, and the thickness of a bar,
/// in px.
const LINES: f64 = 212.0;
const LINE: f64 = 15.0;
const BAR: f64 = 10.0;
/// The height of the area that shows the number of held permits, in px.
const HEIGHT: f64 = 72.0;

/// The style for a permit that is never released.
const STYLE: &str = "
.lease{fill:none;stroke:#9a6700;stroke-width:1.6;stroke-dasharray:4 3}
@media(prefers-color-scheme:dark){.lease{stroke:#d29922}}";

/// Draws the decisions of `limit`.
pub(super) fn draw(limit: &str, in_flight: &InFlight) -> String {
    let (summary, details) = (in_flight.summary(), in_flight.details());
    let details = format!("Requests over one minute: {details}.");
    let parts = [
        head(limit, &summary, &details, STYLE),
        legend(),
        axes(in_flight.capacity),
        denied(in_flight),
        bars(in_flight),
        levels(in_flight),
        "</svg>\n".to_owned(),
    ];
    parts.concat()
}

fn legend() -> String {
    r#"<rect class="pass" x="17" y="72" width="20" height="10" rx="2"/><text x="43" y="82">in flight</text>
<circle class="deny" cx="119" cy="77" r="4"/><text x="129" y="82">denied</text>
<rect class="lease" x="190" y="72" width="20" height="10" rx="2"/><text x="216" y="82">holder died, its lease goes on</text>
<rect class="used" x="430" y="71" width="18" height="12"/><text x="453" y="82">places taken</text>
<path class="max" d="M552 77h19"/><text x="576" y="82">most at once</text>
"#
    .to_owned()
}

/// Returns the horizontal position of a time, in px.
fn x(at: u64) -> f64 {
    LEFT + (RIGHT - LEFT) * at as f64 / END as f64
}

fn axes(capacity: u64) -> String {
    let mut axes = String::new();
    for seconds in (0..=END / 1_000).step_by(10) {
        let (x, label) = (x(seconds * 1_000), format!("{}:{:02}", seconds / 60, seconds % 60));
        let _ = writeln!(axes, r#"<path class="grid" d="M{x:.1} 104V{LEVELS}"/>"#);
        let _ = writeln!(axes, r#"<text x="{x:.1}" y="330" text-anchor="middle">{label}</text>"#);
    }
    for level in [0, capacity] {
        let y = y(level, capacity);
        let text = y + 4.5;
        let _ = writeln!(axes, r#"<path class="grid" d="M{LEFT} {y:.1}H{RIGHT}"/>"#);
        let _ = writeln!(axes, r#"<text x="40" y="{text:.1}" text-anchor="end">{level}</text>"#);
    }
    axes
}

/// Returns the vertical position of a level, in px.
fn y(level: u64, capacity: u64) -> f64 {
    LEVELS - HEIGHT * level as f64 / capacity as f64
}

/// Draws the denied requests. Those in the same column are stacked.
fn denied(in_flight: &InFlight) -> String {
    let denied: Vec<u64> = in_flight.requests.iter().filter(|r| !r.passed).map(|r| r.at).collect();
    let mut circles = String::new();
    for close in denied.chunk_by(|one, other| one / COLUMN == other / COLUMN) {
        let x = x(close[0]);
        for below in 0..close.len() {
            let y = DENIED - PITCH * below as f64;
            let _ = writeln!(circles, r#"<circle class="deny" cx="{x:.1}" cy="{y:.1}" r="4.0"/>"#);
        }
    }
    circles
}

fn bars(in_flight: &InFlight) -> String {
    let mut bars = String::new();
    let mut bar = |class: &str, line: usize, from: u64, to: u64| {
        // A thin gap separates adjacent bars.
        let (x, width) = (x(from) + 0.7, x(to) - x(from) - 1.4);
        let y = LINES - LINE * line as f64 - BAR / 2.0;
        let _ = writeln!(
            bars,
            r#"<rect class="{class}" x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{BAR}" rx="2"/>"#
        );
    };
    for (line, request) in in_flight.lines() {
        bar("pass", line, request.at, request.until);
        if in_flight.freed(&request) > request.until {
            bar("lease", line, request.until, in_flight.freed(&request));
        }
    }
    bars
}

fn levels(in_flight: &InFlight) -> String {
    let used = steps(&in_flight.used, x, |level| y(level, in_flight.capacity));
    let max = y(in_flight.capacity, in_flight.capacity);
    format!(
        r#"<path class="used" d="M{LEFT} {LEVELS}{used}V{LEVELS}Z"/>
<path class="max" d="M{LEFT} {max:.1}H{RIGHT}"/>
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_is_a_bar_or_a_circle() {
        let in_flight = InFlight::of("4:concurrency").unwrap();
        let picture = draw("4:concurrency", &in_flight);
        // The legend contains one more shape of each class.
        let drawn = ["class=\"pass\"", "class=\"deny\""].map(|of| picture.matches(of).count() - 1);
        assert_eq!(drawn.iter().sum::<usize>(), in_flight.requests.len());
        assert_eq!(picture.matches("class=\"lease\"").count() - 1, 1);
    }
}
