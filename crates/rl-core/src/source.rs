//! Finds the [`Policy`] of a subject.
//!
//! # Example
//!
//! ```
//! use rl_core::source::{ByRealm, Preset};
//! use rl_core::{Limit, Policy, RateLimiter, Realm};
//!
//! // Consumers get six periods, anonymous addresses 1 000 requests per hour.
//! let limiter = RateLimiter::builder().policies(Preset::OpenBank).build()?;
//!
//! // The same structure with other limits.
//! let consumers = Policy::new([Limit::per_second(50), Limit::per_day(100_000)])?;
//! let anonymous = Policy::new([Limit::per_hour(60)])?;
//! let policies = ByRealm::with_default(anonymous).with(Realm::Consumer, consumers);
//! let limiter = RateLimiter::builder().policies(policies).build()?;
//!
//! // A closure that returns the policy of each subject.
//! let (free, paid) = (Policy::new([Limit::per_hour(60)])?, Policy::new([Limit::per_hour(5_000)])?);
//! let limiter = RateLimiter::builder()
//!     .policies(move |subject: &rl_core::Subject| {
//!         let is_paid = subject.id().as_text().is_some_and(|id| id.starts_with("paid-"));
//!         Some(if is_paid { paid.clone() } else { free.clone() })
//!     })
//!     .build()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::sync::{Arc, LazyLock};

use crate::maybe_ready::MaybeReady;
use crate::model::{Limit, Realm, StoreError, Subject};
use crate::policy::Policy;

/// The result of a look-up: the policy of a subject, or `None` if no limit applies.
pub type PolicyFuture = MaybeReady<Result<Option<Policy>, StoreError>>;

/// Finds the policies of subjects.
///
/// The limiter calls it for every request, so it should answer from memory ([`MaybeReady::ready`]).
/// A source that reads a database should cache the results. A [`Policy`], a [`ByRealm`], a
/// [`Preset`] and every closure `Fn(&Subject) -> Option<Policy>` is a source.
pub trait PolicySource: Send + Sync + 'static {
    /// Looks up the policy of `subject`. Resolves to `None` if no limit applies.
    ///
    /// # Errors
    ///
    /// Resolves to an error if the look-up fails. The failure policy of the limiter then decides.
    fn policy(&self, subject: &Subject) -> PolicyFuture;

    /// Returns the policy of `subject` if the source can return a reference without waiting.
    ///
    /// It must be the policy to which [`policy`](Self::policy) would resolve. The limiter calls
    /// this method first, because a reference costs less than an owned handle. Returns `None` if
    /// the policy has to be looked up, or if no limit applies. The default returns `None`.
    fn cached(&self, subject: &Subject) -> Option<&Policy> {
        let _ = subject;
        None
    }

    /// Returns the source for a rule of this name, if the policies depend on the rule. Rules call it
    /// once. The default returns `None`: the source is the same for all rules.
    fn for_rule(&self, rule: &str) -> Option<Arc<dyn PolicySource>> {
        let _ = rule;
        None
    }
}

/// The same policy for all subjects.
impl PolicySource for Policy {
    fn policy(&self, _: &Subject) -> PolicyFuture {
        MaybeReady::ready(Ok(Some(self.clone())))
    }

    fn cached(&self, _: &Subject) -> Option<&Policy> {
        Some(self)
    }
}

impl<F> PolicySource for F
where
    F: Fn(&Subject) -> Option<Policy> + Send + Sync + 'static,
{
    fn policy(&self, subject: &Subject) -> PolicyFuture {
        MaybeReady::ready(Ok(self(subject)))
    }
}

/// A policy for each named realm, and one for all other realms.
///
/// # Examples
///
/// ```
/// use rl_core::source::ByRealm;
/// use rl_core::{Limit, Policy, Realm};
///
/// let policies = ByRealm::with_default(Policy::new([Limit::per_hour(60)])?)
///     .with(Realm::Consumer, Policy::new([Limit::per_hour(5_000)])?)
///     .unlimited(Realm::custom("staff")?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ByRealm {
    realms: Vec<(Realm, Option<Policy>)>,
    default: Option<Policy>,
}

impl ByRealm {
    /// Creates a source with `policy` for every realm that is not named.
    #[must_use]
    pub const fn with_default(policy: Policy) -> Self {
        Self { realms: Vec::new(), default: Some(policy) }
    }

    /// Creates a source without limits for realms that are not named.
    #[must_use]
    pub const fn unlimited_by_default() -> Self {
        Self { realms: Vec::new(), default: None }
    }

    /// Sets the policy of `realm`.
    #[must_use]
    pub fn with(self, realm: Realm, policy: Policy) -> Self {
        self.set(realm, Some(policy))
    }

    /// Lifts all limits of `realm`.
    #[must_use]
    pub fn unlimited(self, realm: Realm) -> Self {
        self.set(realm, None)
    }

    fn set(mut self, realm: Realm, policy: Option<Policy>) -> Self {
        self.realms.retain(|(known, _)| *known != realm);
        self.realms.push((realm, policy));
        self
    }
}

impl PolicySource for ByRealm {
    fn policy(&self, subject: &Subject) -> PolicyFuture {
        MaybeReady::ready(Ok(self.cached(subject).cloned()))
    }

    fn cached(&self, subject: &Subject) -> Option<&Policy> {
        let named = self.realms.iter().find(|(realm, _)| realm == subject.realm());
        named.map_or(self.default.as_ref(), |(_, policy)| policy.as_ref())
    }
}

/// Policies for a known purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Preset {
    /// An open banking API. Identified callers get 10 requests per second, 100 per minute, 1 000
    /// per hour, 10 000 per day, 50 000 per week and 200 000 per month (of 30 days). Anonymous
    /// callers get 1 000 requests per hour and address. Windows begin with the first request.
    OpenBank,
}

impl Preset {
    /// Returns the preset as a [`ByRealm`], whose policies can be changed.
    #[must_use]
    #[expect(clippy::missing_panics_doc, reason = "its limits make a policy, as every use shows")]
    pub fn policies(self) -> ByRealm {
        match self {
            Self::OpenBank => {
                let of = |limits: &[Limit]| {
                    Policy::new(limits.iter().copied()).expect("limits of different periods")
                };
                let identified = of(&[
                    Limit::per_second(10),
                    Limit::per_minute(100),
                    Limit::per_hour(1_000),
                    Limit::per_day(10_000),
                    Limit::per_week(50_000),
                    Limit::per_month(200_000),
                ]);
                let anonymous = of(&[Limit::per_hour(1_000)]);
                ByRealm::with_default(identified)
                    .with(Realm::Ip, anonymous.clone())
                    .with(Realm::Unknown, anonymous)
            }
        }
    }
}

static OPEN_BANK: LazyLock<ByRealm> = LazyLock::new(|| Preset::OpenBank.policies());

impl PolicySource for Preset {
    fn policy(&self, subject: &Subject) -> PolicyFuture {
        match self {
            Self::OpenBank => OPEN_BANK.policy(subject),
        }
    }

    fn cached(&self, subject: &Subject) -> Option<&Policy> {
        match self {
            Self::OpenBank => OPEN_BANK.cached(subject),
        }
    }
}
