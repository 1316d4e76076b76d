//! Charts of the last hour, drawn as SVG.
//!
//! ```text
//!  20 per second                            the largest value that the scale shows
//!                │     ▁▂▃▅▂ │▁▁▂           steps: each sample is drawn for the time that it covers
//!                ┴───────────┴───────────
//!              13:15       13:30            labels, placed in percent so that the text keeps its size
//! ```

use std::fmt::Write as _;

use maud::{Markup, html};
use rl_core::time::Timestamp;

use super::text;

/// The time between two labels, in microseconds.
const TICK: u64 = 15 * 60 * 1_000_000;

/// The height of the SVG view box. Its width is the time that the chart shows, in milliseconds.
const HEIGHT: f64 = 1_000.0;

/// The time that a chart shows.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeAxis {
    pub(super) start: Timestamp,
    pub(super) end: Timestamp,
    /// The time of the first recorded number. It may be before `start`.
    pub(super) begun: Timestamp,
}

/// A number that applies from `start` to `end`; `None` if it is unknown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) start: Timestamp,
    pub(super) end: Timestamp,
    pub(super) value: Option<f64>,
}

/// A curve of a chart.
#[derive(Clone, Debug)]
pub(super) struct Curve {
    /// The name of the style of the curve: `allowed`, `denied`, `shadow`, `median` or `slow`.
    pub(super) style: &'static str,
    pub(super) steps: Vec<Step>,
    /// Whether the area below the curve is filled.
    pub(super) is_filled: bool,
}

impl TimeAxis {
    fn millis(self) -> u64 {
        (self.end.micros_since(self.start) / 1_000).max(1)
    }

    /// Returns the position of a time in milliseconds.
    fn x(self, time: Timestamp) -> u64 {
        (time.micros_since(self.start) / 1_000).min(self.millis())
    }

    /// Returns the position of a time as `12.34%`.
    fn percent(self, time: Timestamp) -> String {
        format!("{:.2}%", self.x(time) as f64 * 100.0 / self.millis() as f64)
    }

    /// Returns each quarter of an hour within the axis. The flag is set for full and half hours.
    fn ticks(self) -> impl Iterator<Item = (Timestamp, bool)> {
        let first = self.start.as_micros() / TICK + 1;
        let last = self.end.as_micros() / TICK;
        (first..=last).map(|tick| (Timestamp::from_micros(tick * TICK), tick % 2 == 0))
    }
}

impl Curve {
    fn largest(&self) -> f64 {
        self.steps.iter().filter_map(|step| step.value).fold(0.0, f64::max)
    }

    /// Returns the drawing commands of the curve. Steps without a number are gaps.
    fn path(&self, axis: TimeAxis, scale: f64) -> String {
        let mut path = String::new();
        let mut last = None;
        for step in &self.steps {
            let Some(value) = step.value else {
                last = None;
                continue;
            };
            let (from, to) = (axis.x(step.start), axis.x(step.end));
            let y = HEIGHT - (value / scale).min(1.0) * HEIGHT;
            // A filled curve is drawn as rectangles, an open one as a line of steps.
            let _ = match last {
                _ if self.is_filled => write!(path, "M{from} {HEIGHT}V{y:.0}H{to}V{HEIGHT}Z"),
                Some(end) if end == from => write!(path, "V{y:.0}H{to}"),
                _ => write!(path, "M{from} {y:.0}H{to}"),
            };
            last = Some(to);
        }
        path
    }
}

/// Returns the smallest number that is at least `value` and is 1, 2 or 5 times a power of ten.
pub(super) fn round_up(value: f64) -> f64 {
    if value <= 0.0 || !value.is_finite() {
        return 1.0;
    }
    let power = 10_f64.powf(value.log10().floor());
    let factors = [1.0, 2.0, 5.0, 10.0];
    // Tolerate rounding errors: for a `value` that is itself such a number, the product may be a
    // little too small.
    let fits = |factor: &f64| factor * power >= value * (1.0 - 1e-9);
    factors.into_iter().find(fits).unwrap_or(10.0) * power
}

/// Renders a chart. `describe` formats the largest value of the scale, and `outages` are spans that
/// are marked in the background.
pub(super) fn chart(
    axis: TimeAxis,
    curves: &[Curve],
    label: &str,
    describe: impl Fn(f64) -> String,
    outages: &[(Timestamp, Timestamp)],
) -> Markup {
    let scale = round_up(curves.iter().map(Curve::largest).fold(0.0, f64::max));
    let millis = axis.millis();
    html! {
        div.chart role="img" aria-label=(label) {
            p.scale aria-hidden="true" { span { (describe(scale)) } span { "Times in UTC" } }
            svg.plot width="100%" height="150" aria-hidden="true" focusable="false" {
                @for (start, end) in outages {
                    (span(axis, *start, *end, "outage"))
                }
                @for y in ["0", "50%", "100%"] { line.rule x1="0" x2="100%" y1=(y) y2=(y) {} }
                @for (time, _) in axis.ticks() {
                    line.rule x1=(axis.percent(time)) x2=(axis.percent(time)) y1="0" y2="100%" {}
                }
                @if axis.begun > axis.start {
                    (span(axis, axis.start, axis.begun, "before"))
                    line.begun x1=(axis.percent(axis.begun)) x2=(axis.percent(axis.begun)) y1="0" y2="100%" {}
                }
                (curves_of(curves, axis, scale, millis))
            }
            svg.times width="100%" height="20" aria-hidden="true" focusable="false" {
                @for (time, is_half) in axis.ticks() {
                    text.minor[!is_half] x=(axis.percent(time)) y="15" text-anchor="middle" {
                        (text::clock(time))
                    }
                }
            }
        }
    }
}

/// Renders a curve without labels. `scale` is the value at the upper edge.
pub(super) fn spark(axis: TimeAxis, curve: &Curve, scale: f64) -> Markup {
    html! {
        svg.spark width="100%" height="24" aria-hidden="true" focusable="false" {
            rect.ground width="100%" height="100%" {}
            (curves_of(std::slice::from_ref(curve), axis, scale, axis.millis()))
        }
    }
}

fn curves_of(curves: &[Curve], axis: TimeAxis, scale: f64, millis: u64) -> Markup {
    html! {
        svg width="100%" height="100%" viewBox={ "0 0 " (millis) " " (HEIGHT) } preserveAspectRatio="none" {
            @for curve in curves {
                path class={ "curve " (curve.style) @if curve.is_filled { " filled" } }
                    d=(curve.path(axis, scale)) {}
            }
        }
    }
}

fn span(axis: TimeAxis, start: Timestamp, end: Timestamp, style: &str) -> Markup {
    let (from, to) = (axis.x(start), axis.x(end));
    let percent = |x: u64| format!("{:.2}%", x as f64 * 100.0 / axis.millis() as f64);
    html! { rect class=(style) x=(percent(from)) width=(percent(to.saturating_sub(from).max(1))) height="100%" {} }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_secs(1_769_947_200 + seconds)
    }

    const AXIS: TimeAxis = TimeAxis {
        start: Timestamp::from_secs(1_769_947_200),
        end: Timestamp::from_secs(1_769_950_800),
        begun: Timestamp::from_secs(1_769_947_200),
    };

    #[test]
    fn scales_end_at_a_round_number() {
        for (value, rounded) in
            [(0.0, 1.0), (1.0, 1.0), (1.2, 2.0), (20.0, 20.0), (21.0, 50.0), (0.003, 0.005)]
        {
            assert!((round_up(value) - rounded).abs() < 1e-9, "{value}: {}", round_up(value));
        }
        assert!((round_up(f64::NAN) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn samples_are_steps_and_missing_ones_are_gaps() {
        let step =
            |start: u64, value: Option<f64>| Step { start: at(start), end: at(start + 10), value };
        let steps =
            vec![step(0, Some(1.0)), step(10, Some(2.0)), step(20, None), step(30, Some(0.0))];
        let curve = Curve { style: "denied", steps, is_filled: false };
        assert_eq!(curve.path(AXIS, 2.0), "M0 500H10000V0H20000M30000 1000H40000");
        let filled = Curve { is_filled: true, steps: curve.steps[..1].to_vec(), ..curve };
        assert_eq!(filled.path(AXIS, 2.0), "M0 1000V500H10000V1000Z");
    }

    #[test]
    fn labels_are_at_quarters_of_an_hour() {
        let ticks: Vec<_> =
            AXIS.ticks().map(|(time, is_half)| (text::clock(time), is_half)).collect();
        let expected = [("12:15", false), ("12:30", true), ("12:45", false), ("13:00", true)];
        assert_eq!(ticks, expected.map(|(time, is_half)| (time.to_owned(), is_half)));
        assert_eq!(AXIS.percent(at(900)), "25.00%");
    }
}
