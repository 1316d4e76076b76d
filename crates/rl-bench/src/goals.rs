//! The goals of all measurements, and whether the measured values reach them.

use std::fmt;

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use crate::measure::Estimate;
use crate::table::Table;

/// A goal, and its measured value.
#[derive(Clone, Debug)]
pub(crate) struct Goal {
    /// The short name, such as `M1` or `R7`.
    pub(crate) name: &'static str,
    /// A short description of the comparison.
    pub(crate) what: String,
    /// The value that must be reached.
    pub(crate) floor: f64,
    /// An ambitious value, stricter than `floor`.
    pub(crate) moon: f64,
    pub(crate) unit: Unit,
    /// The median; `None` if it could not be measured here.
    pub(crate) measured: Option<f64>,
    /// The interval that contains the true value in 95 of 100 runs. `None` for counts, which do not
    /// vary.
    pub(crate) interval: Option<(f64, f64)>,
}

/// The unit of a [`Goal`], which also determines whether a larger value is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// The factor by which our limiter is faster or smaller. A larger factor is better.
    Times,
    /// A quantity in this unit. A smaller quantity is better.
    AtMost(&'static str),
}

impl Unit {
    const fn is_more_better(self) -> bool {
        matches!(self, Self::Times)
    }

    fn show(self, value: f64) -> String {
        let number = match value {
            value if value.abs() >= 100.0 || value.fract() == 0.0 => format!("{value:.0}"),
            value if value.abs() < 0.1 => format!("{value:.3}"),
            value => format!("{value:.2}"),
        };
        match self {
            Self::Times => format!("{number}x"),
            Self::AtMost("") => number,
            Self::AtMost(sign @ ("x" | "%")) => format!("{number}{sign}"),
            Self::AtMost(name) => format!("{number} {name}"),
        }
    }
}

/// The verdict on a [`Goal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The whole interval reaches [`Goal::moon`].
    Moon,
    /// The whole interval reaches [`Goal::floor`].
    Reached,
    /// The interval contains the floor, so another run may have another verdict.
    Unclear,
    Missed,
    NotMeasured,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Moon => "moon",
            Self::Reached => "reached",
            Self::Unclear => "unclear",
            Self::Missed => "missed",
            Self::NotMeasured => "not measured",
        })
    }
}

impl Goal {
    /// Creates a goal with a measured estimate.
    pub(crate) fn measured(
        name: &'static str,
        what: &str,
        (floor, moon, unit): (f64, f64, Unit),
        Estimate { median, low, high }: Estimate,
    ) -> Self {
        let (measured, interval) = (Some(median), Some((low, high)));
        Self { name, what: what.to_owned(), floor, moon, unit, measured, interval }
    }

    /// Creates a goal with a count, which does not vary.
    pub(crate) fn counted(
        name: &'static str,
        what: &str,
        (floor, moon, unit): (f64, f64, Unit),
        count: f64,
    ) -> Self {
        let (measured, interval) = (Some(count), None);
        Self { name, what: what.to_owned(), floor, moon, unit, measured, interval }
    }

    /// Returns the verdict. A goal counts as reached only if the whole interval reaches it.
    pub(crate) fn verdict(&self) -> Verdict {
        let Some(measured) = self.measured.filter(|measured| measured.is_finite()) else {
            return Verdict::NotMeasured;
        };
        let (low, high) = self.interval.unwrap_or((measured, measured));
        let (worst, best) = if self.unit.is_more_better() { (low, high) } else { (high, low) };
        let reaches = |value: f64, line: f64| {
            if self.unit.is_more_better() { value >= line } else { value <= line }
        };
        if reaches(worst, self.moon) {
            Verdict::Moon
        } else if reaches(worst, self.floor) {
            Verdict::Reached
        } else if reaches(best, self.floor) {
            Verdict::Unclear
        } else {
            Verdict::Missed
        }
    }
}

impl Serialize for Goal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { name, what, floor, moon, unit, measured, interval } = self;
        let unit = match unit {
            Unit::Times => "times",
            Unit::AtMost(name) => name,
        };
        let mut goal = serializer.serialize_struct("Goal", 8)?;
        goal.serialize_field("name", name)?;
        goal.serialize_field("what", what)?;
        goal.serialize_field("floor", floor)?;
        goal.serialize_field("moon", moon)?;
        goal.serialize_field("unit", unit)?;
        goal.serialize_field("measured", measured)?;
        goal.serialize_field("interval", interval)?;
        goal.serialize_field("verdict", &self.verdict().to_string())?;
        goal.end()
    }
}

/// Returns a table of the goals.
pub(crate) fn table(goals: &[Goal]) -> Table {
    let header = ["goal", "floor", "moon", "measured", "interval of 95 %", "verdict"];
    let mut table = Table::new("goals", header);
    for goal in goals {
        let Goal { name, what, floor, moon, unit, measured, interval } = goal;
        let show = |value: f64| unit.show(value);
        table.row([
            format!("{name:<4} {what}"),
            show(*floor),
            show(*moon),
            measured.map_or("-".to_owned(), show),
            interval.map_or("-".to_owned(), |(low, high)| format!("{}..{}", show(low), show(high))),
            goal.verdict().to_string(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn goal(unit: Unit, floor: f64, moon: f64, measured: f64, interval: (f64, f64)) -> Goal {
        let (measured, interval) = (Some(measured), Some(interval));
        Goal { name: "M1", what: "speed".into(), floor, moon, unit, measured, interval }
    }

    #[test]
    fn a_claim_holds_for_the_whole_interval() {
        let times = |measured, interval| goal(Unit::Times, 5.0, 10.0, measured, interval).verdict();
        assert_eq!(times(12.0, (11.0, 13.0)), Verdict::Moon);
        assert_eq!(times(12.0, (9.0, 13.0)), Verdict::Reached);
        assert_eq!(times(5.1, (4.9, 5.3)), Verdict::Unclear);
        assert_eq!(times(4.0, (3.0, 4.9)), Verdict::Missed);
        assert_eq!(times(f64::NAN, (3.0, 4.9)), Verdict::NotMeasured);
    }

    #[test]
    fn lower_is_better_for_cost_goals() {
        let bytes = |measured| Goal {
            interval: None,
            ..goal(Unit::AtMost("bytes"), 96.0, 72.0, measured, (0.0, 0.0))
        };
        assert_eq!(bytes(72.0).verdict(), Verdict::Moon);
        assert_eq!(bytes(95.5).verdict(), Verdict::Reached);
        assert_eq!(bytes(97.0).verdict(), Verdict::Missed);
        let shown = table(&[bytes(95.5)]).to_string();
        assert!(shown.contains("M1   speed  96 bytes  72 bytes  95.50 bytes"), "{shown}");
    }
}
