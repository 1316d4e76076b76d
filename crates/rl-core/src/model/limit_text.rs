//! The text form of a limit: `MAX "/" [COUNT] PERIOD (":" OPTION)*`.

use std::fmt;
use std::str::FromStr;

use super::{Algorithm, Anchor, InvalidPeriod, Limit, MAX_UNITS, Period};

const EXPECTED_MAX: &str = "a whole number of units, 9007199254740991 at most";
const EXPECTED_PERIOD: &str =
    "an optional count and a period: ms, second, minute, hour, day, week or month";
const EXPECTED_SPAN: &str = "a period from 1ms to 100 years";
const EXPECTED_OPTION: &str = "the option \"clock\", once";

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.max(), self.period())?;
        match self.algorithm() {
            Algorithm::FixedWindow { anchor: Anchor::FirstRequest } => Ok(()),
            Algorithm::FixedWindow { anchor: Anchor::Clock } => f.write_str(":clock"),
        }
    }
}

impl FromStr for Limit {
    type Err = ParseLimitError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = |at: usize, expected| ParseLimitError::new(text, at, expected);

        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let max: u64 = text[..digits].parse().map_err(|_| error(0, EXPECTED_MAX))?;
        let rest = text[digits..].strip_prefix('/').ok_or(error(digits, "\"/\""))?;

        let mut parts = rest.split(':');
        let mut at = digits + 1;
        let period_text = parts.next().unwrap_or_default();
        let period: Period = period_text.parse().map_err(|why| match why {
            InvalidPeriod::UnknownUnit => error(at, EXPECTED_PERIOD),
            _ => error(at, EXPECTED_SPAN),
        })?;
        at += period_text.len() + 1;

        let mut limit = Self::new(max, period).map_err(|_| error(0, EXPECTED_MAX))?;
        let mut anchored = false;
        for option in parts {
            if option != "clock" || anchored {
                return Err(error(at, EXPECTED_OPTION));
            }
            limit = limit.anchored(Anchor::Clock);
            anchored = true;
            at += option.len() + 1;
        }
        debug_assert!(limit.max() <= MAX_UNITS);
        Ok(limit)
    }
}

/// Text that is not a [`Limit`]: it names the text, the column and what was expected there.
///
/// # Examples
///
/// ```
/// let error = "10/fortnight".parse::<rl_core::Limit>().unwrap_err();
/// assert_eq!(error.column(), 4);
/// assert!(error.to_string().starts_with(r#"limit "10/fortnight", column 4: expected "#));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseLimitError {
    text: String,
    column: usize,
    expected: &'static str,
}

impl ParseLimitError {
    fn new(text: &str, at: usize, expected: &'static str) -> Self {
        // A hostile configuration value may be long; an error need not be.
        const SHOWN: usize = 64;
        let column = text.char_indices().take_while(|(byte, _)| *byte < at).count() + 1;
        let mut shown: String = text.chars().take(SHOWN).collect();
        if shown.len() < text.len() {
            shown.push('…');
        }
        Self { text: shown, column, expected }
    }

    /// The column at which the text went wrong, counted in characters from 1.
    #[must_use]
    pub const fn column(&self) -> usize {
        self.column
    }

    /// What was expected there.
    #[must_use]
    pub const fn expected(&self) -> &'static str {
        self.expected
    }
}

impl fmt::Display for ParseLimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "limit {:?}, column {}: expected {}", self.text, self.column, self.expected)
    }
}

impl std::error::Error for ParseLimitError {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    #[rustfmt::skip]
    fn text_that_is_no_limit_is_refused_with_its_column() {
        let cases = [
            // text                    | column | expected
            ("",                         1,       EXPECTED_MAX),
            ("-1/second",                1,       EXPECTED_MAX),
            ("ten/second",               1,       EXPECTED_MAX),
            ("9007199254740992/second",  1,       EXPECTED_MAX),
            ("99999999999999999999/s",   1,       EXPECTED_MAX),
            ("10",                       3,       "\"/\""),
            ("10 /second",               3,       "\"/\""),
            ("10/",                      4,       EXPECTED_PERIOD),
            ("10/fortnight",             4,       EXPECTED_PERIOD),
            ("10/0seconds",              4,       EXPECTED_SPAN),
            ("10/200000days",            4,       EXPECTED_SPAN),
            ("10/second:",               11,      EXPECTED_OPTION),
            ("10/second:clocks",         11,      EXPECTED_OPTION),
            ("10/second:clock:clock",    17,      EXPECTED_OPTION),
            ("10/secönd",                4,       EXPECTED_PERIOD),
        ];
        for (text, column, expected) in cases {
            let error = text.parse::<Limit>().unwrap_err();
            assert_eq!((error.column(), error.expected()), (column, expected), "{text}");
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
            let limit = Limit::new(max, Period::from_millis(millis).unwrap()).unwrap().anchored(anchor);
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
