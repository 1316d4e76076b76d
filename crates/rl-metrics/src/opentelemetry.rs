//! Observable instruments of OpenTelemetry.

use std::sync::Arc;

use opentelemetry::KeyValue;
use opentelemetry::metrics::Meter;
use rl_core::stats::Histogram;
use rl_core::time::SystemClock;

use crate::catalogue::{CATALOGUE, Series, SeriesKind};
use crate::registry::Metrics;
use crate::sample::{Sample, SampleValue};
use crate::snapshots::{ReaderId, Snapshots};
use crate::text::bound_text;

/// Registers an observable instrument for each series. They are read when the reader of the meter
/// provider collects. All instruments of one collection report the counts of one moment.
///
/// OpenTelemetry has no observable histograms. A histogram becomes three counters: `NAME_bucket`
/// with the attribute `le`, `NAME_sum` and `NAME_count`, as in the text format of Prometheus.
///
/// # Examples
///
/// ```
/// use opentelemetry::metrics::MeterProvider;
/// use opentelemetry_sdk::metrics::{InMemoryMetricExporter, SdkMeterProvider};
/// use rl_core::{Limit, RateLimiter};
/// use rl_metrics::Metrics;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = RateLimiter::builder().limit(Limit::per_minute(100)).build()?;
/// // A service has the exporter of `opentelemetry-otlp` here: `MetricExporter::builder()…`
/// let exporter = InMemoryMetricExporter::default();
/// let provider = SdkMeterProvider::builder().with_periodic_exporter(exporter.clone()).build();
/// let metrics = Metrics::new().limiter(&limiter);
/// rl_metrics::opentelemetry::register(&metrics, &provider.meter("rl"));
///
/// provider.force_flush()?;
/// assert!(!exporter.get_finished_metrics()?.is_empty());
/// # Ok(()) }
/// ```
///
/// # Many limits
///
/// The SDK keeps 2 000 series of an instrument by default. It adds further ones up as one series
/// with the attribute `otel.metric.overflow`. The histogram of a limit has 5 buckets, so 400 limits
/// or more need a higher bound:
///
/// ```
/// use opentelemetry_sdk::metrics::{Instrument, SdkMeterProvider, Stream};
///
/// let provider = SdkMeterProvider::builder().with_view(|instrument: &Instrument| {
///     let bounded = Stream::builder().with_cardinality_limit(20_000).build().ok();
///     bounded.filter(|_| instrument.name().starts_with("rl_"))
/// });
/// ```
pub fn register(metrics: &Metrics, meter: &Meter) {
    let metrics = metrics.clone();
    register_samples(meter, move || metrics.samples());
}

/// Registers the instruments of the samples that `read` returns.
fn register_samples(meter: &Meter, read: impl Fn() -> Vec<Sample> + Send + Sync + 'static) {
    let snapshots = Arc::new(Snapshots::new(read, SystemClock));
    for series in CATALOGUE {
        match series.kind {
            SeriesKind::Counter => counter(&snapshots, meter, *series, "", count_of),
            SeriesKind::Gauge => gauge(&snapshots, meter, *series),
            SeriesKind::Histogram => {
                counter(&snapshots, meter, *series, "_count", |sample, observe| {
                    let count = histogram_of(sample).map_or(0, Histogram::count);
                    observe(count as f64, &attributes(sample, None));
                });
                counter(&snapshots, meter, *series, "_sum", |sample, observe| {
                    let sum = histogram_of(sample).map_or(0.0, |histogram| histogram.sum);
                    observe(sum, &attributes(sample, None));
                });
                counter(&snapshots, meter, *series, "_bucket", |sample, observe| {
                    for (bound, count) in histogram_of(sample).iter().flat_map(|h| h.cumulative()) {
                        observe(count as f64, &attributes(sample, Some(bound)));
                    }
                });
            }
        }
    }
}

/// Reports numbers with their attributes.
type Observe<'a> = &'a dyn Fn(f64, &[KeyValue]);

fn counter(
    snapshots: &Arc<Snapshots>,
    meter: &Meter,
    series: Series,
    suffix: &str,
    report: fn(&Sample, Observe<'_>),
) {
    let (snapshots, reader) = (Arc::clone(snapshots), snapshots.add_reader());
    meter
        .f64_observable_counter(format!("{}{suffix}", series.name))
        .with_description(series.help)
        .with_callback(move |observer| {
            let observe =
                |number: f64, attributes: &[KeyValue]| observer.observe(number, attributes);
            report_samples(&snapshots, reader, series, report, &observe);
        })
        .build();
}

fn gauge(snapshots: &Arc<Snapshots>, meter: &Meter, series: Series) {
    let (snapshots, reader) = (Arc::clone(snapshots), snapshots.add_reader());
    meter
        .f64_observable_gauge(series.name)
        .with_description(series.help)
        .with_callback(move |observer| {
            let observe =
                |number: f64, attributes: &[KeyValue]| observer.observe(number, attributes);
            report_samples(&snapshots, reader, series, count_of, &observe);
        })
        .build();
}

/// Reports the samples of a series as one instrument.
fn report_samples(
    snapshots: &Snapshots,
    reader: ReaderId,
    series: Series,
    report: fn(&Sample, Observe<'_>),
    observe: Observe<'_>,
) {
    let samples = snapshots.read(reader);
    // The samples are sorted by the names of their series.
    let begin = samples.partition_point(|sample| sample.series.name < series.name);
    for sample in samples[begin..].iter().take_while(|sample| sample.series == series) {
        report(sample, observe);
    }
}

fn count_of(sample: &Sample, observe: Observe<'_>) {
    let number = match sample.value {
        SampleValue::Count(count) => count as f64,
        SampleValue::Number(number) => number,
        SampleValue::Histogram(_) => return,
    };
    observe(number, &attributes(sample, None));
}

fn histogram_of(sample: &Sample) -> Option<&Histogram> {
    match &sample.value {
        SampleValue::Histogram(histogram) => Some(histogram),
        _ => None,
    }
}

fn attributes(sample: &Sample, bound: Option<f64>) -> Vec<KeyValue> {
    let labels = sample.labels().map(|(name, label)| KeyValue::new(name, label.to_owned()));
    labels.chain(bound.map(|bound| KeyValue::new("le", bound_text(bound)))).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use opentelemetry::metrics::MeterProvider;
    use opentelemetry_sdk::metrics::data::{AggregatedMetrics, MetricData};
    use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};

    use super::*;
    use crate::catalogue::{DECISIONS, UNITS};

    /// The samples of a collection are computed once, not once for each of some 50 instruments.
    #[test]
    fn a_collection_computes_the_samples_once_and_the_next_one_has_new_counts() {
        let computed = Arc::new(AtomicU64::new(0));
        let read = {
            let computed = Arc::clone(&computed);
            move || {
                let count = 1 + computed.fetch_add(1, Ordering::Relaxed);
                let decisions = Sample::new(DECISIONS, ["one", "store", "allowed"], count);
                vec![decisions, Sample::new(UNITS, ["granted", "one"], count)]
            }
        };
        let exporter = InMemoryMetricExporter::default();
        let reader = PeriodicReader::builder(exporter.clone()).build();
        let provider = SdkMeterProvider::builder().with_reader(reader).build();
        register_samples(&provider.meter("rl"), read);
        for collection in 1..=3 {
            exporter.reset();
            provider.force_flush().unwrap();
            assert_eq!(computed.load(Ordering::Relaxed), collection);
            let exported = exporter.get_finished_metrics().unwrap();
            let scopes = exported.iter().flat_map(|all| all.scope_metrics());
            let metrics = scopes.flat_map(|scope| scope.metrics());
            let mut counts = Vec::new();
            for metric in metrics {
                if let AggregatedMetrics::F64(MetricData::Sum(sum)) = metric.data() {
                    counts.extend(sum.data_points().map(|point| point.value()));
                }
            }
            assert_eq!(counts, [collection as f64; 2]);
        }
    }
}
