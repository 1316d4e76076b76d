//! Bounds the number of rules that may match one request, in near-linear time.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash};

/// The largest number of segments of a path, labels of a host, and digits of an address that are
/// compared.
const LENGTH: usize = 16;

/// The properties of a request: its method, and three sequences, each with its length.
const PROPERTIES: usize = 1 + 3 * (1 + LENGTH);

/// Hashes of the values that a request must have in its properties; `None` stands for any value.
///
/// No request satisfies two requirements with different hashes in one property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Requirements([Option<u64>; PROPERTIES]);

/// A sequence in a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sequence {
    /// The segments of the path.
    Path,
    /// The labels of the host, the last first.
    Host,
    /// The hexadecimal digits of the client's address, each with the version of the address.
    Address,
}

impl Requirements {
    /// Creates requirements that every request satisfies.
    pub(super) const fn none() -> Self {
        Self([None; PROPERTIES])
    }

    /// Requires a method.
    pub(super) fn with_method(mut self, method: &str) -> Self {
        self.0[0] = Some(hash(method));
        self
    }

    /// Requires a sequence that begins with `values`, in which `None` stands for any value. If
    /// `is_whole`, the sequence has no further values.
    pub(super) fn with_sequence<T: Hash>(
        mut self,
        sequence: Sequence,
        values: impl Iterator<Item = Option<T>>,
        is_whole: bool,
    ) -> Self {
        let begin = 1 + sequence as usize * (1 + LENGTH);
        let mut length = 0;
        for value in values {
            if length < LENGTH {
                self.0[begin + 1 + length] = value.map(hash);
            }
            length += 1;
        }
        self.0[begin] = is_whole.then(|| hash(length));
        self
    }

    /// Adds the requirements of values of which one suffices. Keeps only those that all of them
    /// have in common.
    pub(super) fn with_any<T>(self, values: &[T], add: impl Fn(Self, &T) -> Self) -> Self {
        let each = values.iter().map(|value| add(self.clone(), value));
        let common = each.reduce(|mut common, other| {
            for (one, other) in common.0.iter_mut().zip(&other.0) {
                *one = one.filter(|_| one == other);
            }
            common
        });
        common.unwrap_or(self)
    }
}

fn hash(value: impl Hash) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(value)
}

/// Returns an upper bound of the number of rules that one request may match.
///
/// `alternatives` yields the position of a rule with its requirements, once for each of several
/// requirements of which one suffices. The positions ascend.
pub(super) fn most_matches(alternatives: impl Iterator<Item = (usize, Requirements)>) -> usize {
    let alternatives: Vec<_> = alternatives.collect();
    bound(alternatives.iter().collect(), 0)
}

/// Returns an upper bound for rules that the properties before `property` do not distinguish.
///
/// A request has one value of the property. So it matches only the rules that require this value,
/// and those that require none.
fn bound(mut rules: Vec<&(usize, Requirements)>, property: usize) -> usize {
    if rules.len() <= 1 || property == PROPERTIES {
        rules.dedup_by_key(|(position, _)| *position);
        return rules.len();
    }
    let mut by_value = HashMap::<u64, Vec<_>>::new();
    let mut others = Vec::new();
    for rule in rules {
        match rule.1.0[property] {
            Some(value) => by_value.entry(value).or_default().push(rule),
            None => others.push(rule),
        }
    }
    let most = by_value.into_values().map(|rules| bound(rules, property + 1)).max();
    most.unwrap_or(0) + bound(others, property + 1)
}
