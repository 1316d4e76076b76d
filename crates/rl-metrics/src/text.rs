//! The text format of Prometheus, version 0.0.4.

use std::fmt::Write;

use rl_core::stats::Histogram;

use crate::sample::{Sample, SampleValue};

/// The media type of the text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Writes samples as text for Prometheus. Samples of one series must follow each other.
pub(crate) fn render(samples: &[Sample]) -> String {
    let mut text = String::with_capacity(samples.len() * 96);
    let mut last = "";
    for sample in samples {
        let series = sample.series;
        if series.name != last {
            last = series.name;
            let _ = writeln!(text, "# HELP {} {}", series.name, series.help);
            let _ = writeln!(text, "# TYPE {} {}", series.name, series.kind.as_str());
        }
        match &sample.value {
            SampleValue::Count(count) => line(&mut text, sample, "", None, *count),
            SampleValue::Number(number) => line(&mut text, sample, "", None, *number),
            SampleValue::Histogram(histogram) => render_histogram(&mut text, sample, histogram),
        }
    }
    text
}

fn render_histogram(text: &mut String, sample: &Sample, histogram: &Histogram) {
    for (bound, count) in histogram.cumulative() {
        let bound = bound_text(bound);
        line(text, sample, "_bucket", Some(&bound), count);
    }
    line(text, sample, "_sum", None, histogram.sum);
    line(text, sample, "_count", None, histogram.count());
}

/// Writes the upper bound of a histogram bucket as the value of the label `le`.
pub(crate) fn bound_text(bound: f64) -> String {
    if bound.is_infinite() { "+Inf".to_owned() } else { bound.to_string() }
}

fn line(
    text: &mut String,
    sample: &Sample,
    suffix: &str,
    bound: Option<&str>,
    value: impl std::fmt::Display,
) {
    text.push_str(sample.series.name);
    text.push_str(suffix);
    let mut separator = '{';
    for (name, label) in sample.labels().chain(bound.map(|bound| ("le", bound))) {
        text.push(separator);
        text.push_str(name);
        text.push_str("=\"");
        escape(text, label);
        text.push('"');
        separator = ',';
    }
    text.push_str(if separator == ',' { "} " } else { " " });
    let _ = writeln!(text, "{value}");
}

fn escape(text: &mut String, label: &str) {
    if !label.contains(['\\', '"', '\n']) {
        return text.push_str(label);
    }
    for character in label.chars() {
        match character {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            other => text.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::{DECISIONS, DEGRADED};

    #[test]
    fn labels_are_escaped_and_each_series_has_one_head() {
        let samples = [
            Sample::new(DECISIONS, ["a\"b\\c\nd", "store", "allowed"], 3_u64),
            Sample::new(DECISIONS, ["other", "store", "denied"], 0_u64),
            Sample::new(DEGRADED, ["other"], 1_u64),
        ];
        let text = render(&samples);
        let lines: Vec<_> = text.lines().filter(|line| !line.starts_with("# HELP")).collect();
        assert_eq!(
            lines,
            [
                "# TYPE rl_decisions_total counter",
                r#"rl_decisions_total{limiter="a\"b\\c\nd",origin="store",outcome="allowed"} 3"#,
                r#"rl_decisions_total{limiter="other",origin="store",outcome="denied"} 0"#,
                "# TYPE rl_degraded_total counter",
                r#"rl_degraded_total{limiter="other"} 1"#,
            ]
        );
    }
}
