use std::fmt;
use std::sync::Arc;

use crate::model::{Cost, Limit, Mode, Subject};
use crate::policy::{LimitSet, Policy};
use crate::time::Timestamp;

/// What a store is asked to decide.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    /// Whose counters: limiters in different namespaces never share one.
    pub namespace: &'a Namespace,
    /// Who is counted.
    pub subject: &'a Subject,
    /// The limits, decided together.
    pub policy: &'a Policy,
    /// What to do with the cost.
    pub mode: Mode,
    /// Units.
    pub cost: Cost,
}

/// Units to give back.
#[derive(Clone, Copy, Debug)]
pub struct Refund<'a> {
    /// Whose counters.
    pub namespace: &'a Namespace,
    /// Who was counted.
    pub subject: &'a Subject,
    /// The limits that were charged.
    pub policy: &'a Policy,
    /// When they were charged: [`Decision::at`](crate::Decision::at).
    pub charged: Timestamp,
    /// Units; those that were charged, at most.
    pub units: u64,
    /// Which of the limits get them back.
    pub of: RefundOf,
    /// The limits to leave alone: those that were not charged, and those that keep what they have.
    pub uncharged: LimitSet,
}

impl Refund<'_> {
    /// Whether there is nothing to give back: no unit, or no limit that is meant.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        (0..self.policy.limits().len()).all(|place| self.units_of(place) == 0)
    }

    /// The units of the limit at `place`: 0 if it is not meant, 1 if it counts requests.
    #[must_use]
    pub fn units_of(&self, place: usize) -> u64 {
        match self.policy.limits().get(place).map(|limit| limit.limit()) {
            Some(limit) if self.of.includes(limit) && !self.uncharged.contains(place) => {
                limit.units(self.units)
            }
            _ => 0,
        }
    }
}

/// Which limits of a policy get units back.
///
/// A request that is done gives its permit back and keeps what it used of the rates; one that was
/// not worth its cost gives back the rates and, while it goes on, keeps its permit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RefundOf {
    /// All of them.
    #[default]
    All,
    /// Those that are not of concurrency.
    Rates,
    /// Those of concurrency.
    Permits,
}

impl RefundOf {
    /// Whether `limit` is meant.
    #[must_use]
    pub const fn includes(self, limit: Limit) -> bool {
        match self {
            Self::All => true,
            Self::Rates => !limit.holds_permits(),
            Self::Permits => limit.holds_permits(),
        }
    }
}

/// A permit to hold on to: what is still held of `units` under the policy's concurrency limits.
#[derive(Clone, Copy, Debug)]
pub struct Renewal<'a> {
    /// Whose counters.
    pub namespace: &'a Namespace,
    /// Who was counted.
    pub subject: &'a Subject,
    /// The limits that were charged.
    pub policy: &'a Policy,
    /// When they were charged, or renewed last.
    pub charged: Timestamp,
    /// Units; those that were charged, at most.
    pub units: u64,
    /// The limits to leave alone: those that were not charged, and those that keep what they have.
    pub uncharged: LimitSet,
}

impl Renewal<'_> {
    /// Whether there is nothing to renew: no unit, or no limit of concurrency. The answer is
    /// `charged` then.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.as_refund().is_empty()
    }

    /// What is taken back to be taken anew.
    pub(crate) const fn as_refund(&self) -> Refund<'_> {
        let Self { namespace, subject, policy, charged, units, uncharged } = *self;
        Refund { namespace, subject, policy, charged, units, uncharged, of: RefundOf::Permits }
    }
}

/// What to forget.
#[derive(Clone, Copy, Debug)]
pub struct Reset<'a> {
    /// Whose counters.
    pub namespace: &'a Namespace,
    /// Who is counted.
    pub subject: &'a Subject,
    /// The limits the subject is under.
    pub policy: &'a Policy,
    /// The place of the limit in the policy; all that is known of the subject if none.
    pub limit: Option<usize>,
}

/// Keeps the counters of limiters that share a store apart: 1 to 64 characters of
/// `A-Z a-z 0-9 _ . -`; `default` unless said.
///
/// # Examples
///
/// ```
/// use rl_core::store::Namespace;
///
/// let login: Namespace = "login".parse()?;
/// assert_ne!(login, Namespace::default());
/// # Ok::<(), rl_core::store::InvalidNamespace>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Namespace {
    name: Arc<str>,
    digest: [u64; 2],
}

impl Namespace {
    fn of(name: &str) -> Self {
        let hash = blake3::hash(name.as_bytes());
        let mut digest = [0; 2];
        for (number, bytes) in digest.iter_mut().zip(hash.as_bytes().as_chunks::<7>().0) {
            *number = bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        }
        Self { name: name.into(), digest }
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.name
    }

    /// Two numbers of 56 bits that no other namespace has.
    #[inline]
    pub(crate) const fn digest(&self) -> [u64; 2] {
        self.digest
    }
}

impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Namespace").field(&self.name).finish()
    }
}

impl Default for Namespace {
    fn default() -> Self {
        Self::of("default")
    }
}

impl std::str::FromStr for Namespace {
    type Err = InvalidNamespace;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let fits = |b: u8| b.is_ascii_alphanumeric() || b"_.-".contains(&b);
        if (1..=64).contains(&name.len()) && name.bytes().all(fits) {
            Ok(Self::of(name))
        } else {
            Err(InvalidNamespace { name: name.chars().take(80).collect() })
        }
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Text that is not a [`Namespace`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidNamespace {
    name: String,
}

impl fmt::Display for InvalidNamespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "namespace {:?}: expected 1 to 64 characters of A-Z a-z 0-9 _ . -", self.name)
    }
}

impl std::error::Error for InvalidNamespace {}
