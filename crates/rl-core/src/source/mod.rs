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

mod by_realm;
mod preset;

pub use by_realm::ByRealm;
pub use preset::Preset;

use crate::maybe_ready::MaybeReady;
use crate::model::StoreError;
use crate::model::Subject;
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
