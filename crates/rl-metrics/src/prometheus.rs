//! A collector for the crate `prometheus-client`.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

use crate::catalogue::SeriesKind;
use crate::registry::Metrics;
use crate::sample::{Sample, SampleValue};

/// Exports all series together with the other metrics in a service's registry.
///
/// # Examples
///
/// ```
/// use prometheus_client::encoding::text::encode;
/// use prometheus_client::registry::Registry;
/// use rl_metrics::Metrics;
///
/// let mut registry = Registry::default();
/// registry.register_collector(Box::new(Metrics::new()));
/// let mut text = String::new();
/// encode(&mut text, &registry)?;
/// assert!(text.contains("rl_build_info{"));
/// # Ok::<(), std::fmt::Error>(())
/// ```
impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let samples = self.samples();
        for family in samples.chunk_by(|one, next| one.series.name == next.series.name) {
            let Some(first) = family.first() else { continue };
            let series = first.series;
            let kind = match series.kind {
                SeriesKind::Counter => MetricType::Counter,
                SeriesKind::Gauge => MetricType::Gauge,
                SeriesKind::Histogram => MetricType::Histogram,
            };
            // The encoder appends `_total` to the names of counters, and a full stop to help texts,
            // so both are removed here.
            let name = series.name.strip_suffix("_total").unwrap_or(series.name);
            let help = series.help.strip_suffix('.').unwrap_or(series.help);
            let mut encoder = encoder.encode_descriptor(name, help, None, kind)?;
            for sample in family {
                let labels: Vec<_> = sample.labels().collect();
                encode_sample(sample, encoder.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

fn encode_sample(sample: &Sample, mut encoder: MetricEncoder<'_>) -> fmt::Result {
    match (&sample.value, sample.series.kind) {
        (SampleValue::Count(count), SeriesKind::Counter) => {
            encoder.encode_counter::<NoLabelSet, _, u64>(count, None)
        }
        (SampleValue::Count(count), _) => encoder.encode_gauge(count),
        (SampleValue::Number(number), _) => encoder.encode_gauge(number),
        (SampleValue::Histogram(histogram), _) => {
            let bounds = histogram.bounds.iter().copied().chain([f64::MAX]);
            let buckets: Vec<_> = bounds.zip(histogram.counts.iter().copied()).collect();
            let (sum, count) = (histogram.sum, histogram.count());
            encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
        }
    }
}
