//! The policy and the number of processors that every server uses.

use std::error::Error;
use std::sync::LazyLock;

use rl_core::{Limit, Period, Policy};

pub(super) static CORES: LazyLock<usize> =
    LazyLock::new(|| std::thread::available_parallelism().map_or(1, |count| count.get()));

/// Returns a policy of `max` units in each of six periods.
pub(super) fn policy(max: u32) -> Result<Policy, Box<dyn Error>> {
    let periods = Period::NAMED.map(|period| Limit::new(max.into(), period));
    Ok(Policy::new(periods.into_iter().collect::<Result<Vec<_>, _>>()?)?)
}
