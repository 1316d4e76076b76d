//! The numbers and words of a chart.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Chart {
    /// The name of its file.
    pub(crate) name: String,
    pub(crate) title: String,
    /// One line about the method.
    pub(crate) note: String,
    pub(crate) plot: Plot,
}

/// The form of a chart.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Plot {
    Lines(Lines),
    Bars(Bars),
}

/// Lines of a chart. The first one is our limiter.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Lines {
    /// The quantity on the horizontal axis.
    pub(crate) x: Axis,
    /// The measured quantity with its unit.
    pub(crate) y: Axis,
    pub(crate) lines: Vec<Line>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Axis {
    pub(crate) label: String,
    /// Whether the axis is logarithmic. A linear axis begins at 0.
    pub(crate) is_logarithmic: bool,
}

impl Axis {
    pub(crate) fn linear(label: &str) -> Self {
        Self { label: label.to_owned(), is_logarithmic: false }
    }

    pub(crate) fn logarithmic(label: &str) -> Self {
        Self { label: label.to_owned(), is_logarithmic: true }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

/// Bars on a logarithmic scale.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Bars {
    pub(crate) unit: String,
    pub(crate) bars: Vec<Bar>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Bar {
    pub(crate) name: String,
    pub(crate) value: f64,
    pub(crate) is_ours: bool,
}

impl Line {
    pub(crate) fn new(name: &str, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        Self { name: name.to_owned(), points: points.into_iter().collect() }
    }
}
