//! The subjects and limits that all measurements on Redis use.

use std::error::Error;

use rl_core::{Limit, Period, Subject};

/// The number of subjects, if a measurement does not set another.
pub(super) const SUBJECTS: usize = 10_000;

/// Returns the id of the subject with this number. The id is part of all its keys.
pub(super) fn id(n: usize) -> String {
    format!("consumer-{n:08}")
}

/// Returns the first `count` subjects.
pub(super) fn subjects(count: usize) -> Vec<Subject> {
    (0..count).map(|n| Subject::consumer(&id(n))).collect()
}

/// Returns limits of `max` units in each of six periods.
pub(super) fn limits(max: u32) -> Result<Vec<Limit>, Box<dyn Error>> {
    let limit = |period| Ok(Limit::new(max.into(), period)?);
    Period::NAMED.into_iter().map(limit).collect()
}
