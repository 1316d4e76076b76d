//! The numbers of series at one time.

use rl_core::stats::Histogram;

use crate::catalogue::Series;

/// The value of a series for one set of labels.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Sample {
    /// The series.
    pub series: Series,
    /// The values of the labels, in the order of [`Series::labels`].
    pub labels: Vec<String>,
    /// The value.
    pub value: SampleValue,
}

/// The value of a [`Sample`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum SampleValue {
    /// A whole number.
    Count(u64),
    /// Any other number.
    Number(f64),
    /// The counts of a histogram.
    Histogram(Histogram),
}

impl Sample {
    /// Creates a sample. `labels` has one value for each label of the series.
    pub(crate) fn new<const N: usize>(
        series: Series,
        labels: [&str; N],
        value: impl Into<SampleValue>,
    ) -> Self {
        debug_assert_eq!(labels.len(), series.labels.len(), "{}", series.name);
        Self { series, labels: labels.map(str::to_owned).into(), value: value.into() }
    }

    /// Returns the names and the values of the labels.
    pub fn labels(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.series.labels.iter().copied().zip(self.labels.iter().map(String::as_str))
    }
}

impl From<u64> for SampleValue {
    fn from(count: u64) -> Self {
        Self::Count(count)
    }
}

impl From<bool> for SampleValue {
    fn from(is: bool) -> Self {
        Self::Count(is.into())
    }
}

impl From<f64> for SampleValue {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl From<Histogram> for SampleValue {
    fn from(histogram: Histogram) -> Self {
        Self::Histogram(histogram)
    }
}
