//! The text form of a limit: `MAX "/" [COUNT] PERIOD (":" OPTION)*`. A concurrency limit is written
//! as `MAX ":concurrency"` with its lease.

use std::fmt;
use std::str::FromStr;

use super::algorithm::{MAX_LOGGED, MAX_PERMITS};
use super::limit::{DEFAULT_LEASE, DEFAULT_RETRY_HINT};
use super::{Algorithm, Anchor, InvalidLimit, InvalidPeriod, Limit, Period, Refill};

const MAX: &str = "a whole number of units, 9007199254740991 at most";
const NEGATIVE: &str = "a whole number of units, not negative";
const ONE_LIMIT: &str = "one limit in each text";
const PERIOD: &str = "an optional count and, in lower case, ms, second or s, minute or m, hour or h, \
                      day or d, week or w, month or mo";
const SPAN: &str = "a period from 1ms to 100 years";
const AFTER_MAX: &str = "\"/\" and a period, or \":concurrency\"";
const ALGORITHM: &str = "one of clock, sliding-log, sliding-window, sliding-window-counter, token-bucket, gcra, requests, unit=NAME, shadow";
const NO_OPTION: &str = "the end of the text, requests, unit=NAME or shadow";
const BURST: &str = "burst=N";
const SOME_BURST: &str = "a burst of at least 1";
const SOME_CAPACITY: &str = "a capacity of at least 1";
const BUCKET: &str = "capacity=N, refill=greedy or refill=interval, each once";
const PRECISION: &str = "precision=PERIOD";
const OFFSET: &str = "offset=PERIOD, or the end of the text, requests, unit=NAME or shadow";
const SHORT_OFFSET: &str = "an offset shorter than the period, or at most 27 days for a month";
const CAPACITY: &str = "a burst or capacity N with N × max at most 9007199254740991, and at most \
                        50 years to fill";
const HALF_SPAN: &str = "a period of at most 50 years for this algorithm";
const BUCKETS: &str = "a precision that makes at most 200 buckets";
const LOG: &str = "at most 100000 units for a log, which remembers each of them";
const PERMITS: &str = "at most 10000 units at the same time";
const CONCURRENCY: &str = "lease=PERIOD or retry=PERIOD, each once";
const UNITS: &str = "a unit of 1 to 16 characters of a-z 0-9 -, such as tokens";
const REQUESTS_ALONE: &str = "no other unit for a limit that counts requests";

// The messages above contain these numbers.
const _: () = assert!(MAX_LOGGED == 100_000 && MAX_PERMITS == 10_000);

// The last options of the text form, in this order.
const REQUESTS: &str = ":requests";
const UNIT: &str = ":unit=";
const SHADOW: &str = ":shadow";

const DEFAULT_UNIT: &str = "requests";

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_enforced(self, f)?;
        if self.counts_requests() {
            f.write_str(REQUESTS)?;
        } else if self.unit() != DEFAULT_UNIT {
            write!(f, "{UNIT}{}", self.unit())?;
        }
        if self.is_shadow() { f.write_str(SHADOW) } else { Ok(()) }
    }
}

/// Writes a limit without the options that come last: `:requests`, `:unit=` and `:shadow`.
fn write_enforced(limit: &Limit, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    // Default values are not written.
    if let Algorithm::Concurrency = limit.algorithm() {
        write!(f, "{}:concurrency", limit.max())?;
        if limit.period() != DEFAULT_LEASE {
            write!(f, ":lease={}", limit.period())?;
        }
        return match limit.retry_period() {
            DEFAULT_RETRY_HINT => Ok(()),
            hint => write!(f, ":retry={hint}"),
        };
    }
    write!(f, "{}/{}", limit.max(), limit.period())?;
    let number = |f: &mut fmt::Formatter<'_>, name: &str, number: u64| {
        if number == limit.max() { Ok(()) } else { write!(f, ":{name}={number}") }
    };
    match limit.algorithm() {
        Algorithm::FixedWindow { anchor: Anchor::FirstRequest } | Algorithm::Concurrency => Ok(()),
        Algorithm::FixedWindow { anchor: Anchor::Clock } => f.write_str(":clock"),
        Algorithm::FixedWindow { anchor: Anchor::ClockOffset(offset) } => {
            write!(f, ":clock:offset={offset}")
        }
        Algorithm::SlidingLog => f.write_str(":sliding-log"),
        Algorithm::SlidingWindow { precision } => {
            write!(f, ":sliding-window:precision={precision}")
        }
        Algorithm::SlidingWindowCounter => f.write_str(":sliding-window-counter"),
        Algorithm::TokenBucket { capacity, refill } => {
            f.write_str(":token-bucket")?;
            number(f, "capacity", capacity)?;
            match refill {
                Refill::Greedy => Ok(()),
                Refill::Interval => f.write_str(":refill=interval"),
            }
        }
        Algorithm::Gcra { burst } => {
            f.write_str(":gcra")?;
            number(f, "burst", burst)
        }
    }
}

impl FromStr for Limit {
    type Err = ParseLimitError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (rest, is_shadow) = strip(text, SHADOW);
        let (rest, unit) = match rest.rfind(UNIT) {
            Some(at) if !rest[at + UNIT.len()..].contains(':') => {
                (&rest[..at], Some((at + UNIT.len(), &rest[at + UNIT.len()..])))
            }
            _ => (rest, None),
        };
        let (rest, counts_requests) = strip(rest, REQUESTS);
        let limit = read_enforced(text, rest)?;
        let limit = if counts_requests { limit.count_requests() } else { limit };
        let limit = match unit {
            Some((at, unit)) => limit.with_unit(unit).map_err(|invalid| {
                let counts_requests = InvalidLimit::Unit { counts_requests: true };
                let expected = if invalid == counts_requests { REQUESTS_ALONE } else { UNITS };
                ParseLimitError::new(text, at, expected)
            })?,
            None => limit,
        };
        Ok(if is_shadow { limit.shadow() } else { limit })
    }
}

/// Parses a limit from `enforced`, which is `whole` without the options that come last.
fn read_enforced(whole: &str, enforced: &str) -> Result<Limit, ParseLimitError> {
    let text = enforced;
    let error = |at: usize, expected| ParseLimitError::new(whole, at, expected);

    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let is_negative = text.starts_with('-');
    let expected = if is_negative { NEGATIVE } else { MAX };
    let max: u64 = text[..digits].parse().map_err(|_| error(0, expected))?;
    // A comma directly after the digits probably separates thousands. That text is refused
    // below, because the `/` is missing. A later comma means that the text has several limits.
    if let Some(comma) = text.find(',').filter(|comma| *comma > digits) {
        return Err(error(comma, ONE_LIMIT));
    }
    if let Some(rest) = text[digits..].strip_prefix(':') {
        let parts = LimitTextParts { text: whole, rest: Some(rest), at: digits, next: digits + 1 };
        return parts.concurrency(max);
    }
    let rest = text[digits..].strip_prefix('/').ok_or(error(digits, AFTER_MAX))?;
    let mut parts =
        LimitTextParts { text: whole, rest: Some(rest), at: digits + 1, next: digits + 1 };

    let period = parts.next().unwrap_or_default();
    let period = parts.period(period)?;
    let limit = Limit::new(max, period).map_err(|_| error(0, MAX))?;
    let Some(algorithm) = parts.next() else { return Ok(limit) };
    let named_at = parts.at;
    let algorithm = match algorithm {
        "clock" => Algorithm::FixedWindow { anchor: parts.clock()? },
        "sliding-log" => Algorithm::SlidingLog,
        "sliding-window" => Algorithm::SlidingWindow { precision: parts.precision()? },
        "sliding-window-counter" => Algorithm::SlidingWindowCounter,
        "token-bucket" => parts.token_bucket(max)?,
        "gcra" => Algorithm::Gcra { burst: parts.burst(max)? },
        _ => return Err(error(named_at, ALGORITHM)),
    };
    if parts.next().is_some() {
        return Err(error(parts.at, NO_OPTION));
    }
    limit.with_algorithm(algorithm).map_err(|invalid| match invalid {
        InvalidLimit::TooPrecise { .. } => error(named_at, BUCKETS),
        InvalidLimit::TooLong { .. } => error(named_at, HALF_SPAN),
        InvalidLimit::LogTooLong { .. } => error(0, LOG),
        InvalidLimit::OffsetTooLong { .. } => parts.error_in_value(SHORT_OFFSET),
        _ => error(named_at, CAPACITY),
    })
}

fn strip<'a>(text: &'a str, suffix: &str) -> (&'a str, bool) {
    text.strip_suffix(suffix).map_or((text, false), |rest| (rest, true))
}

/// An iterator over the parts of a limit's text that colons separate, with the position of each
/// part.
struct LimitTextParts<'a> {
    text: &'a str,
    rest: Option<&'a str>,
    /// The position of the current part.
    at: usize,
    /// The position of the next part.
    next: usize,
}

impl<'a> LimitTextParts<'a> {
    fn next(&mut self) -> Option<&'a str> {
        let rest = self.rest?;
        let (part, rest) = match rest.split_once(':') {
            Some((part, rest)) => (part, Some(rest)),
            None => (rest, None),
        };
        (self.at, self.rest) = (self.next, rest);
        self.next += part.len() + 1;
        Some(part)
    }

    fn error(&self, expected: &'static str) -> ParseLimitError {
        ParseLimitError::new(self.text, self.at, expected)
    }

    /// Returns an error at the value of the current part: after its `=`, or at its start if it has
    /// none.
    fn error_in_value(&self, expected: &'static str) -> ParseLimitError {
        let name = self.text[self.at..].find('=').map_or(0, |equals| equals + 1);
        ParseLimitError::new(self.text, self.at + name, expected)
    }

    fn period(&self, text: &str) -> Result<Period, ParseLimitError> {
        text.parse().map_err(|why| match why {
            InvalidPeriod::UnknownUnit => self.error(PERIOD),
            _ => self.error(SPAN),
        })
    }

    fn number(&self, text: &str, expected: &'static str) -> Result<u64, ParseLimitError> {
        let is_number = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        text.parse().ok().filter(|_| is_number).ok_or_else(|| self.error(expected))
    }

    fn precision(&mut self) -> Result<Period, ParseLimitError> {
        let part = self.next();
        // If a part is missing, the error points to the end of the text.
        if part.is_none() {
            self.at = self.next;
        }
        let precision = part.and_then(|part| part.strip_prefix("precision="));
        self.period(precision.ok_or_else(|| self.error(PRECISION))?)
    }

    fn clock(&mut self) -> Result<Anchor, ParseLimitError> {
        match self.next() {
            None => Ok(Anchor::Clock),
            Some(part) => {
                let offset = part.strip_prefix("offset=").ok_or_else(|| self.error(OFFSET))?;
                Ok(Anchor::ClockOffset(self.period(offset)?))
            }
        }
    }

    /// Parses a concurrency limit after `MAX` and its colon.
    fn concurrency(mut self, max: u64) -> Result<Limit, ParseLimitError> {
        let after_max = self.at;
        let limit = match self.next() {
            Some("concurrency") => Limit::concurrency(max),
            _ => return Err(ParseLimitError::new(self.text, after_max, AFTER_MAX)),
        };
        let mut limit = limit.map_err(|_| ParseLimitError::new(self.text, 0, PERMITS))?;
        let (mut has_lease, mut has_hint) = (false, false);
        while let Some(part) = self.next() {
            let (is_repeated, changed) = match part.split_once('=') {
                Some(("lease", lease)) => {
                    (std::mem::replace(&mut has_lease, true), limit.with_lease(self.period(lease)?))
                }
                Some(("retry", hint)) => {
                    let hint = self.period(hint)?;
                    (std::mem::replace(&mut has_hint, true), limit.with_retry_hint(hint))
                }
                _ => return Err(self.error(CONCURRENCY)),
            };
            limit = changed.ok().filter(|_| !is_repeated).ok_or(self.error(CONCURRENCY))?;
        }
        Ok(limit)
    }

    fn burst(&mut self, max: u64) -> Result<u64, ParseLimitError> {
        match self.next() {
            None => Ok(max),
            Some(part) => {
                let number = part.strip_prefix("burst=").ok_or_else(|| self.error(BURST))?;
                match self.number(number, BURST)? {
                    0 if max > 0 => Err(self.error_in_value(SOME_BURST)),
                    burst => Ok(burst),
                }
            }
        }
    }

    fn token_bucket(&mut self, max: u64) -> Result<Algorithm, ParseLimitError> {
        let (mut capacity, mut refill) = (None, None);
        while let Some(part) = self.next() {
            match part.split_once('=') {
                Some(("capacity", number)) if capacity.is_none() => {
                    capacity = Some(self.number(number, BUCKET)?);
                    if capacity == Some(0) && max > 0 {
                        return Err(self.error_in_value(SOME_CAPACITY));
                    }
                }
                Some(("refill", "greedy")) if refill.is_none() => refill = Some(Refill::Greedy),
                Some(("refill", "interval")) if refill.is_none() => refill = Some(Refill::Interval),
                _ => return Err(self.error(BUCKET)),
            }
        }
        let (capacity, refill) = (capacity.unwrap_or(max), refill.unwrap_or_default());
        Ok(Algorithm::TokenBucket { capacity, refill })
    }
}

/// The error for a text that is not a [`Limit`]. It contains the text, the column, and what was
/// expected there.
///
/// # Examples
///
/// ```
/// let error = "10/fortnight".parse::<rl_core::Limit>().unwrap_err();
/// assert_eq!(error.column(), 4);
/// assert!(error.to_string().starts_with(r#"limit "10/fortnight", column 4: expected "#));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct ParseLimitError {
    text: String,
    column: usize,
    expected: &'static str,
}

impl ParseLimitError {
    fn new(text: &str, at: usize, expected: &'static str) -> Self {
        // A configuration value from an attacker may be long, so the error shows only its
        // beginning.
        const SHOWN: usize = 64;
        let column = text.char_indices().take_while(|(byte, _)| *byte < at).count() + 1;
        let mut shown: String = text.chars().take(SHOWN).collect();
        if shown.len() < text.len() {
            shown.push('…');
        }
        Self { text: shown, column, expected }
    }

    /// Returns the column of the error, counted in characters from 1.
    #[must_use]
    pub const fn column(&self) -> usize {
        self.column
    }

    /// Returns a description of the text that was expected there.
    #[must_use]
    pub const fn expected(&self) -> &'static str {
        self.expected
    }
}

debug_as_display!(ParseLimitError);

impl fmt::Display for ParseLimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "limit {:?}, column {}: expected {}", self.text, self.column, self.expected)
    }
}

impl std::error::Error for ParseLimitError {}

#[cfg(test)]
mod tests {
    use super::super::MAX_UNITS;
    use super::*;
    use proptest::prelude::*;

    #[test]
    #[rustfmt::skip]
    fn text_that_is_no_limit_is_refused_with_its_column() {
        let cases = [
            // text                         | column | expected
            ("",                              1,       MAX),
            ("-1/second",                     1,       NEGATIVE),
            ("ten/second",                    1,       MAX),
            ("9007199254740992/second",       1,       MAX),
            ("99999999999999999999/s",        1,       MAX),
            ("10",                            3,       AFTER_MAX),
            ("10 /second",                    3,       AFTER_MAX),
            ("10:gcra",                       3,       AFTER_MAX),
            ("10/",                           4,       PERIOD),
            ("10/fortnight",                  4,       PERIOD),
            ("10/Second",                     4,       PERIOD),
            ("10/5MIN",                       4,       PERIOD),
            ("10/second,5/day",               10,      ONE_LIMIT),
            ("10/second:clock, 5:concurrency", 16,     ONE_LIMIT),
            ("1,000/second",                  2,       AFTER_MAX),
            ("10/0seconds",                   4,       SPAN),
            ("10/200000days",                 4,       SPAN),
            ("10/second:",                    11,      ALGORITHM),
            ("10/second:clocks",              11,      ALGORITHM),
            ("10/second:clock:clock",         17,      OFFSET),
            ("10/day:clock:offset=x",         14,      PERIOD),
            ("10/day:clock:offset=1d",        21,      SHORT_OFFSET),
            ("10/month:clock:offset=28d",     23,      SHORT_OFFSET),
            ("10/day:clock:offset=1h:clock",  24,      NO_OPTION),
            ("10/secönd",                     4,       PERIOD),
            ("10/second:gcra:burst=",         16,      BURST),
            ("10/second:gcra:burst=+5",       16,      BURST),
            ("10/second:gcra:burst=0",        22,      SOME_BURST),
            ("10/second:token-bucket:capacity=0", 33,  SOME_CAPACITY),
            ("10/second:gcra:size=5",         16,      BURST),
            ("10/second:gcra:burst=5:clock",  24,      NO_OPTION),
            ("9007199254740991/second:gcra",  25,      CAPACITY),
            ("1/month:gcra:burst=650",       9,       CAPACITY),
            ("1/s:token-bucket:capacity=x",   18,      BUCKET),
            ("1/s:token-bucket:refill=slow",  18,      BUCKET),
            ("1/s:token-bucket:capacity=1:capacity=2", 29, BUCKET),
            ("1/hour:sliding-window",         22,      PRECISION),
            ("1/hour:sliding-window:1minute", 23,      PRECISION),
            ("1/hour:sliding-window:precision=x", 23,  PERIOD),
            ("1/hour:sliding-window:precision=1s", 8,  BUCKETS),
            ("100001/hour:sliding-log",       1,       LOG),
            ("1/hour:sliding-log:clock",      20,      NO_OPTION),
            ("10001:concurrency",             1,       PERMITS),
            ("20:concurrency:30s",            16,      CONCURRENCY),
            ("20:concurrency:lease=x",        16,      PERIOD),
            ("20:concurrency:lease=0s",       16,      SPAN),
            ("20:concurrency:lease=1s:clock", 25,      CONCURRENCY),
            ("2:concurrency:retry=1s:retry=2s", 24,    CONCURRENCY),
            ("2:concurrency:retry=soon",      15,      PERIOD),
            ("2/second:retry=2s",             10,      ALGORITHM),
            ("10/second:unit=",               16,      UNITS),
            ("10/second:unit=Tokens",         16,      UNITS),
            ("10/second:unit=seventeen-letters", 16,   UNITS),
            ("10/second:requests:unit=tokens", 25,     REQUESTS_ALONE),
            ("10/second:unit=tokens:requests", 11,     ALGORITHM),
        ];
        for (text, column, expected) in cases {
            let error = text.parse::<Limit>().unwrap_err();
            assert_eq!((error.column(), error.expected()), (column, expected), "{text}");
        }
    }

    #[test]
    #[rustfmt::skip]
    fn every_algorithm_has_a_text() {
        let cases = [
            // read                                      | written
            ("100/60s:gcra",                               "100/minute:gcra"),
            ("100/minute:gcra:burst=100",                  "100/minute:gcra"),
            ("100/minute:gcra:burst=20",                   "100/minute:gcra:burst=20"),
            ("0/minute:gcra:burst=0",                      "0/minute:gcra"),
            ("600/h:sliding-window:precision=60s",         "600/hour:sliding-window:precision=minute"),
            ("600/h:sliding-window:precision=2d",          "600/hour:sliding-window:precision=hour"),
            ("100/minute:sliding-window-counter",          "100/minute:sliding-window-counter"),
            ("60/60m:sliding-log",                         "60/hour:sliding-log"),
            ("100000/hour:sliding-log",                    "100000/hour:sliding-log"),
            ("9/month:clock:offset=14d",                   "9/month:clock:offset=2weeks"),
            ("9/day:clock:offset=16h:requests",            "9/day:clock:offset=16hours:requests"),
            ("20:concurrency",                             "20:concurrency"),
            ("20:concurrency:lease=10s",                   "20:concurrency"),
            ("10000:concurrency:lease=30s",                "10000:concurrency:lease=30seconds"),
            ("20:concurrency:lease=1m",                    "20:concurrency:lease=minute"),
            ("20:concurrency:retry=1s",                    "20:concurrency"),
            ("20:concurrency:retry=5s:lease=1m",           "20:concurrency:lease=minute:retry=5seconds"),
            ("10/second:token-bucket:capacity=50",         "10/second:token-bucket:capacity=50"),
            ("10/second:token-bucket:refill=greedy",       "10/second:token-bucket"),
            ("10/second:unit=requests",                    "10/second"),
            ("10/second:unit=tokens:shadow",               "10/second:unit=tokens:shadow"),
            ("1/s:token-bucket:capacity=50:unit=mega-bytes", "1/second:token-bucket:capacity=50:unit=mega-bytes"),
            ("9/day:token-bucket:refill=interval:capacity=30", "9/day:token-bucket:capacity=30:refill=interval"),
        ];
        for (read, written) in cases {
            let limit: Limit = read.parse().unwrap();
            assert_eq!(limit.to_string(), written);
            assert_eq!(written.parse(), Ok(limit));
        }
    }

    #[test]
    fn long_text_is_cut_in_the_error() {
        let error = "x".repeat(1_000_000).parse::<Limit>().unwrap_err();
        assert!(error.to_string().len() < 200);
    }

    proptest! {
        #[test]
        fn text_form_round_trips(max in 0..=MAX_UNITS, millis in 1..=3_153_600_000_000_u64, clock: bool) {
            let anchor = if clock { Anchor::Clock } else { Anchor::FirstRequest };
            let limit = Limit::new(max, Period::from_millis(millis).unwrap()).unwrap();
            let limit = limit.with_algorithm(Algorithm::FixedWindow { anchor }).unwrap();
            prop_assert_eq!(limit.to_string().parse::<Limit>(), Ok(limit));
        }

        #[test]
        fn any_text_is_a_limit_or_an_error(text in "\\PC*") {
            if let Ok(limit) = text.parse::<Limit>() {
                prop_assert_eq!(limit.to_string().parse::<Limit>(), Ok(limit));
            }
        }
    }
}
