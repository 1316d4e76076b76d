//! Bounds the number of limiters that have series of their own.

use std::collections::BTreeMap;

use rl_core::stats::OTHER_NAME;

use crate::catalogue::{LIMIT_MAX, LIMIT_PERIOD, STORE_UP};
use crate::sample::{Sample, SampleValue};

/// The largest number of limiters with series of their own.
pub(crate) const MAX_LIMITERS: usize = 100;

/// The labels whose values are replaced.
const REPLACED: [&str; 5] = ["file", "limit", "limiter", "rule", "store"];

/// Adds the numbers of many limiters up, under the common name `(other)` for limiters, stores, rule
/// files, rules and limits. [`STORE_UP`] is 0 if it is 0 for one of them. Settings of limits are
/// left out, because they have no sum.
pub(crate) fn combine(samples: Vec<Sample>) -> Vec<Sample> {
    let is_sum = |sample: &Sample| ![LIMIT_MAX, LIMIT_PERIOD].contains(&sample.series);
    let mut combined = BTreeMap::<(&str, Vec<String>), Sample>::new();
    for mut sample in samples.into_iter().filter(is_sum) {
        for (name, label) in sample.series.labels.iter().zip(&mut sample.labels) {
            if REPLACED.contains(name) {
                OTHER_NAME.clone_into(label);
            }
        }
        let key = (sample.series.name, sample.labels.clone());
        match combined.get_mut(&key) {
            Some(sum) if sum.series == STORE_UP => sum.value = least(&sum.value, &sample.value),
            Some(sum) => add(&mut sum.value, &sample.value),
            None => drop(combined.insert(key, sample)),
        }
    }
    combined.into_values().collect()
}

fn least(one: &SampleValue, other: &SampleValue) -> SampleValue {
    let is_zero = |value: &SampleValue| *value == SampleValue::Count(0);
    if is_zero(one) { one.clone() } else { other.clone() }
}

/// Adds `value` to `sum`, which belongs to the same series.
fn add(sum: &mut SampleValue, value: &SampleValue) {
    match (sum, value) {
        (SampleValue::Count(sum), SampleValue::Count(value)) => *sum += value,
        (SampleValue::Number(sum), SampleValue::Number(value)) => *sum += value,
        (SampleValue::Histogram(sum), SampleValue::Histogram(value)) => {
            for (count, other) in sum.counts.iter_mut().zip(&value.counts) {
                *count += other;
            }
            sum.sum += value.sum;
        }
        _ => {}
    }
}
