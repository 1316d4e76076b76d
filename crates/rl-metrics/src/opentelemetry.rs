//! Observable instruments of OpenTelemetry.

use opentelemetry::KeyValue;
use opentelemetry::metrics::Meter;
use rl_core::stats::Histogram;

use crate::catalogue::{CATALOGUE, Series, SeriesKind};
use crate::registry::Metrics;
use crate::sample::{Sample, SampleValue};
use crate::text::bound_text;

/// Registers an observable instrument for each series. They are read when the reader of the meter
/// provider collects.
///
/// OpenTelemetry has no observable histograms. A histogram becomes three counters: `NAME_bucket` with
/// the attribute `le`, `NAME_sum` and `NAME_count`, as in the text format of Prometheus.
pub fn register(metrics: &Metrics, meter: &Meter) {
    for series in CATALOGUE {
        match series.kind {
            SeriesKind::Counter => counter(metrics, meter, *series, "", count_of),
            SeriesKind::Gauge => gauge(metrics, meter, *series),
            SeriesKind::Histogram => {
                counter(metrics, meter, *series, "_count", |sample, observe| {
                    let count = histogram_of(sample).map_or(0, Histogram::count);
                    observe(count as f64, &attributes(sample, None));
                });
                counter(metrics, meter, *series, "_sum", |sample, observe| {
                    let sum = histogram_of(sample).map_or(0.0, |histogram| histogram.sum);
                    observe(sum, &attributes(sample, None));
                });
                counter(metrics, meter, *series, "_bucket", |sample, observe| {
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
    metrics: &Metrics,
    meter: &Meter,
    series: Series,
    suffix: &str,
    report: fn(&Sample, Observe<'_>),
) {
    let metrics = metrics.clone();
    let name = format!("{}{suffix}", series.name);
    meter
        .f64_observable_counter(name)
        .with_description(series.help)
        .with_callback(move |observer| {
            let observe =
                |number: f64, attributes: &[KeyValue]| observer.observe(number, attributes);
            for sample in metrics.samples().iter().filter(|sample| sample.series == series) {
                report(sample, &observe);
            }
        })
        .build();
}

fn gauge(metrics: &Metrics, meter: &Meter, series: Series) {
    let metrics = metrics.clone();
    meter
        .f64_observable_gauge(series.name)
        .with_description(series.help)
        .with_callback(move |observer| {
            for sample in metrics.samples().iter().filter(|sample| sample.series == series) {
                count_of(sample, &|number, attributes| observer.observe(number, attributes));
            }
        })
        .build();
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
