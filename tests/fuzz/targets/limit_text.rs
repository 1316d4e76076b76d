//! Limits as text. Every limit that is parsed from a text can be written as a text, and parsing
//! that text yields the same limit.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rl_core::{Limit, MAX_UNITS, Policy};

fuzz_target!(|text: &str| {
    match text.parse::<Limit>() {
        Ok(limit) => {
            let written = limit.to_string();
            let again: Limit = written.parse().expect("the written text can be parsed");
            assert_eq!(limit, again, "{written}");
            assert_eq!(again.to_string(), written);
            assert!(limit.max() <= MAX_UNITS && limit.capacity() <= MAX_UNITS);
            assert!(limit.period().as_millis() > 0);
            let _ = Policy::new([limit]);
        }
        Err(error) => {
            assert!((1..=text.chars().count() + 1).contains(&error.column()), "{error}");
            assert!(error.to_string().len() < 2_000);
        }
    }
});
