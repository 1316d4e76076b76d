//! Formats times and numbers for display. All times are in UTC.

use std::time::Duration;

use jiff::civil::DateTime;
use rl_core::time::Timestamp;
use rl_core::{FailureKind, OnFailure};
use rl_records::{CallPeriod, Limits};

use crate::context::Context;
use crate::wire::{civil, instant};

/// Formats a time as `2026-11-21 14:05:03`.
pub(super) fn time(time: Timestamp) -> String {
    formatted(time, "%Y-%m-%d %H:%M:%S")
}

/// Formats a time as `2026-11-21`.
pub(super) fn date(time: Timestamp) -> String {
    formatted(time, "%Y-%m-%d")
}

/// Formats a time as `14:05`.
pub(super) fn clock(time: Timestamp) -> String {
    formatted(time, "%H:%M")
}

/// Formats a time for an input field, as `2026-11-21T14:05:03`.
pub(super) fn field(time: Timestamp) -> String {
    formatted(time, "%Y-%m-%dT%H:%M:%S")
}

fn formatted(time: Timestamp, format: &str) -> String {
    civil(time).map_or_else(|| "–".to_owned(), |time| time.strftime(format).to_string())
}

/// Parses the format of [`field`]. The seconds are optional, a space may replace `T`, and a `Z` may
/// follow.
pub(super) fn parse_time(text: &str) -> Option<Timestamp> {
    let text = text.trim().trim_end_matches(['Z', 'z']).trim_end();
    let time: DateTime = text.parse().ok()?;
    instant(time)
}

/// Formats a number as `12 345 678`, with narrow no-break spaces.
pub(super) fn number(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// Formats a rate with three significant digits at most: `0.25`, `12.5`, `1 250`.
pub(super) fn rate(rate: f64) -> String {
    let text = match rate {
        ..10.0 => format!("{rate:.2}"),
        ..100.0 => format!("{rate:.1}"),
        _ => return number(rate.round() as u64),
    };
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Formats a part of a whole as `12.5 %`.
pub(super) fn share(part: u64, whole: u64) -> String {
    format!("{} %", rate(part as f64 * 100.0 / whole.max(1) as f64))
}

/// Formats a time in seconds as `850 µs`, `12.5 ms` or `1.2 s`.
pub(super) fn latency(seconds: f64) -> String {
    match seconds {
        ..1e-6 => format!("{} ns", rate(seconds * 1e9)),
        ..1e-3 => format!("{} µs", rate(seconds * 1e6)),
        ..1.0 => format!("{} ms", rate(seconds * 1e3)),
        _ => format!("{} s", rate(seconds)),
    }
}

/// Formats a duration as `47 min 27 s`, with at most two units, rounded up to seconds.
pub(super) fn span(span: Duration) -> String {
    let secs = span.as_secs() + u64::from(span.subsec_nanos() > 0);
    let (days, hours, minutes) = (secs / 86_400, secs / 3_600 % 24, secs / 60 % 60);
    match secs {
        0..60 => format!("{secs} s"),
        60..3_600 => format!("{minutes} min {} s", secs % 60),
        3_600..86_400 => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

/// Returns a sentence about what happens to calls while the counters have this kind of failure. The
/// standalone server does not know that, because the program of each service sets it.
pub(super) fn consequence(context: &Context, failure: FailureKind) -> &'static str {
    if context.is_stand_alone {
        return "The program of each service sets how it decides now.";
    }
    let limiter = &context.limiter;
    if !limiter.is_enabled() || limiter.is_shadow() {
        return "Calls are allowed as before: the limiter enforces nothing.";
    }
    match limiter.on_failure(failure) {
        OnFailure::Allow => {
            "Until they recover, calls are allowed without limits, except those of blocked consumers."
        }
        OnFailure::Reject => "Until they recover, calls are rejected with 503.",
        _ => "Until they recover, each instance counts by itself, with its share of the limits.",
    }
}

/// Formats a period as `per minute`.
pub(super) const fn period(period: CallPeriod) -> &'static str {
    match period {
        CallPeriod::Second => "per second",
        CallPeriod::Minute => "per minute",
        CallPeriod::Hour => "per hour",
        CallPeriod::Day => "per day",
        CallPeriod::Week => "per week",
        CallPeriod::Month => "per month",
    }
}

/// Formats limits as `10/second, 1000/hour`, or as `no limit`.
pub(super) fn limits(limits: &Limits) -> String {
    if limits.is_empty() { "no limit".to_owned() } else { limits.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_parsed_as_they_are_formatted() {
        let noon = Timestamp::from_secs(1_769_947_200);
        assert_eq!(time(noon), "2026-02-01 12:00:00");
        assert_eq!((date(noon), field(noon)), ("2026-02-01".into(), "2026-02-01T12:00:00".into()));
        for text in [
            "2026-02-01T12:00:00",
            " 2026-02-01T12:00",
            "2026-02-01 12:00:00Z",
            "2026-02-01 12:00 Z",
        ] {
            assert_eq!(parse_time(text), Some(noon), "{text}");
        }
        let last = parse_time("9999-12-31T23:59:59").unwrap();
        assert_eq!(time(last), "9999-12-31 23:59:59");
        for text in ["", "noon", "2026-02-30T12:00", "1969-12-31T23:59:59", "2026-02-01T25:00"] {
            assert_eq!(parse_time(text), None, "{text}");
        }
        assert_eq!(time(Timestamp::from_micros(u64::MAX)), "–");
    }

    #[test]
    fn rates_and_times_have_three_digits() {
        let rates = [(0.0, "0"), (0.251, "0.25"), (5.0, "5"), (12.53, "12.5"), (1_250.4, "1 250")];
        for (value, text) in rates {
            assert_eq!(rate(value), text.replace(' ', "\u{202f}"));
        }
        for (value, text) in
            [(2e-7, "200 ns"), (8.5e-4, "850 µs"), (0.0125, "12.5 ms"), (1.25, "1.25 s")]
        {
            assert_eq!(latency(value), text);
        }
        assert_eq!((share(1, 3), share(0, 0)), ("33.3 %".to_owned(), "0 %".to_owned()));
    }

    #[test]
    fn numbers_and_spans_are_short() {
        let numbers = [(0, "0"), (999, "999"), (1_000, "1 000"), (1_234_567, "1 234 567")];
        for (value, text) in numbers {
            assert_eq!(number(value), text.replace(' ', "\u{202f}"));
        }
        for (micros, text) in [
            (0, "0 s"),
            (1, "1 s"),
            (58_000_001, "59 s"),
            (59_000_001, "1 min 0 s"),
            (60_000_000, "1 min 0 s"),
            (2_847_000_000, "47 min 27 s"),
            (82_800_000_000, "23 h 0 min"),
            (2_592_000_000_000, "30 d 0 h"),
        ] {
            assert_eq!(span(Duration::from_micros(micros)), text, "{micros}");
        }
    }
}
