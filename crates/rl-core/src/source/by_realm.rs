use super::{PolicyFuture, PolicySource};
use crate::maybe_ready::MaybeReady;
use crate::model::{Realm, Subject};
use crate::policy::Policy;

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
