//! The facade of the crate `metrics`.

use metrics::{Label, counter, gauge};

use crate::catalogue::SeriesKind;
use crate::registry::Metrics;
use crate::sample::{Sample, SampleValue};
use crate::text::bound_text;

impl Metrics {
    /// Reports all series to the recorder of the crate `metrics`. Call it at an interval, such as
    /// that of the exporter.
    ///
    /// A histogram of the facade accepts single values, but no counts of its buckets. So a
    /// histogram becomes the counters `NAME_bucket` with the label `le` and `NAME_count`, and the
    /// gauge `NAME_sum`.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use rl_metrics::Metrics;
    ///
    /// async fn record(metrics: Metrics) {
    ///     let mut interval = tokio::time::interval(Duration::from_secs(10));
    ///     loop {
    ///         interval.tick().await;
    ///         metrics.record();
    ///     }
    /// }
    /// // In the main function: tokio::spawn(record(metrics.clone()));
    /// ```
    #[cfg_attr(docsrs, doc(cfg(feature = "metrics")))]
    pub fn record(&self) {
        for sample in self.samples() {
            let (name, labels) = (sample.series.name, labels(&sample, None));
            match (&sample.value, sample.series.kind) {
                (SampleValue::Count(count), SeriesKind::Counter) => {
                    counter!(name, labels).absolute(*count);
                }
                (SampleValue::Count(count), _) => gauge!(name, labels).set(*count as f64),
                (SampleValue::Number(number), _) => gauge!(name, labels).set(*number),
                (SampleValue::Histogram(histogram), _) => {
                    for (bound, count) in histogram.cumulative() {
                        let labels = self::labels(&sample, Some(bound));
                        counter!(format!("{name}_bucket"), labels).absolute(count);
                    }
                    gauge!(format!("{name}_sum"), labels.clone()).set(histogram.sum);
                    counter!(format!("{name}_count"), labels).absolute(histogram.count());
                }
            }
        }
    }
}

fn labels(sample: &Sample, bound: Option<f64>) -> Vec<Label> {
    let labels = sample.labels().map(|(name, label)| Label::new(name, label.to_owned()));
    labels.chain(bound.map(|bound| Label::new("le", bound_text(bound)))).collect()
}
