use std::fmt;
use std::sync::Arc;

use super::{NamedLimit, Policy};
use crate::model::{Algorithm, Anchor, Limit, Refill};
use crate::policy::InvalidPolicy;
use crate::policy::weight::{MOST_WEIGHT, weight};

/// Collects the limits of a [`Policy`].
#[derive(Clone, Default)]
#[must_use]
pub struct PolicyBuilder {
    limits: Vec<(Option<Arc<str>>, Limit)>,
}

impl PolicyBuilder {
    /// Adds a limit that is named after its period: `second`, `15minutes`. A concurrency limit is
    /// named `concurrency`.
    ///
    /// If two limits would get the same name, the fixed window that counts units gets it, or else
    /// the first of them. The names of the others include the algorithm or `requests`:
    /// `second:gcra`, `minute:requests`.
    ///
    /// # Examples
    ///
    /// ```
    /// use rl_core::Policy;
    ///
    /// let limits = ["20/minute:requests", "10000/minute", "600/minute:gcra:burst=50"];
    /// let limits = limits.map(|limit| limit.parse()).into_iter().collect::<Result<Vec<_>, _>>()?;
    /// let policy = Policy::new(limits)?;
    /// let names: Vec<&str> = policy.limits().iter().map(|limit| limit.name()).collect();
    /// assert_eq!(names, ["minute:requests", "minute", "minute:gcra"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn limit(mut self, limit: Limit) -> Self {
        self.limits.push((None, limit));
        self
    }

    /// Adds a limit with the given name.
    pub fn named(mut self, name: &str, limit: Limit) -> Self {
        self.limits.push((Some(name.into()), limit));
        self
    }

    /// Returns whether no limit was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.limits.is_empty()
    }

    /// Validates the limits and creates the policy.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no limit or more than [`Policy::MAX_LIMITS`]. Returns an error
    /// if a name is used twice, or is not 1 to 64 characters of `A-Z a-z 0-9 _ . : * / -`. Names
    /// that differ only in the case of letters are equal. Returns an error if two limits would
    /// count in the same state.
    ///
    /// Returns an error if sliding windows and logs would store more entries than a decision can
    /// read in a short time. Two logs of 100 000 units are allowed, or two windows of 200 buckets.
    pub fn build(self) -> Result<Policy, InvalidPolicy> {
        let limits = named(self.limits);
        if limits.is_empty() {
            return Err(InvalidPolicy::Empty);
        }
        if limits.len() > Policy::MAX_LIMITS {
            return Err(InvalidPolicy::TooMany { count: limits.len() });
        }
        for (i, NamedLimit { name, limit, state, .. }) in limits.iter().enumerate() {
            let fits = |b: u8| b.is_ascii_alphanumeric() || b"_.:*/-".contains(&b);
            if !(1..=64).contains(&name.len()) || !name.bytes().all(fits) {
                return Err(InvalidPolicy::Name { name: name.chars().take(80).collect() });
            }
            // Compare the states before the names: unnamed limits that share a state also share a
            // name, and the shared state is the cause.
            for earlier in &limits[..i] {
                if earlier.state == *state {
                    let (first, second) = (earlier.limit, *limit);
                    return Err(InvalidPolicy::SharedState { limits: Box::new([first, second]) });
                }
                if earlier.name.eq_ignore_ascii_case(name) {
                    return Err(InvalidPolicy::NameTwice { name: name.to_string() });
                }
            }
        }
        if limits.iter().map(|named| weight(named.limit)).sum::<u64>() > MOST_WEIGHT {
            return Err(InvalidPolicy::TooDetailed);
        }
        Ok(Policy::of(limits.into()))
    }
}

impl fmt::Debug for PolicyBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(named(self.limits.clone())).finish()
    }
}

/// Gives names to the limits without one.
fn named(limits: Vec<(Option<Arc<str>>, Limit)>) -> Vec<NamedLimit> {
    let unnamed = || limits.iter().filter(|(name, _)| name.is_none()).map(|(_, limit)| *limit);
    let names: Vec<_> = limits
        .iter()
        .map(|(name, limit)| {
            name.clone().unwrap_or_else(|| {
                let (short, full) = default_names(*limit);
                let mut given = limits.iter().filter_map(|(name, _)| name.as_deref());
                let is_given = given.any(|name| name.eq_ignore_ascii_case(&short));
                let mut rivals = unnamed().filter(|rival| default_names(*rival).0 == short);
                let first = rivals.next();
                let is_only = rivals.next().is_none();
                let is_first =
                    first == Some(*limit) && !unnamed().any(|one| default_names(one).1 == short);
                let is_short = !is_given && (is_only || is_first);
                if is_short { short } else { full }.into()
            })
        })
        .collect();
    names.into_iter().zip(limits).map(|(name, (_, limit))| NamedLimit::new(name, limit)).collect()
}

/// Returns a short name, which is that of the limit's period, and a longer one. Limits with
/// different states have different longer names.
fn default_names(limit: Limit) -> (String, String) {
    let short = match limit.algorithm() {
        Algorithm::Concurrency => "concurrency".to_owned(),
        _ => limit.period().to_string(),
    };
    let mut full = short.clone();
    match limit.algorithm() {
        Algorithm::FixedWindow { anchor: Anchor::FirstRequest } => {}
        Algorithm::FixedWindow { anchor: Anchor::Clock } => full.push_str(":clock"),
        Algorithm::FixedWindow { anchor: Anchor::ClockOffset(offset) } => {
            full.push_str(":clock:");
            full.push_str(&offset.to_string());
        }
        Algorithm::SlidingLog => full.push_str(":sliding-log"),
        Algorithm::SlidingWindow { precision } => {
            full.push_str(":sliding-window:");
            full.push_str(&precision.to_string());
        }
        Algorithm::SlidingWindowCounter => full.push_str(":sliding-window-counter"),
        Algorithm::TokenBucket { refill: Refill::Greedy, .. } => full.push_str(":token-bucket"),
        Algorithm::TokenBucket { refill: Refill::Interval, .. } => {
            full.push_str(":token-bucket:interval");
        }
        Algorithm::Gcra { .. } => full.push_str(":gcra"),
        Algorithm::Concurrency => {
            full.push(':');
            full.push_str(&limit.period().to_string());
        }
    }
    if limit.counts_requests() {
        full.push_str(":requests");
    }
    (short, full)
}
