use std::fmt;
use std::str::FromStr;

/// A permission of an actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Role {
    /// Reads the limits and counters of a consumer, and its list of records.
    CanReadCallLimits,
    /// Sets the limits of a consumer in one step.
    CanSetCallLimits,
    /// Creates records, subscriptions and limits of resources; blocks consumers and applications.
    CanCreateRateLimits,
    /// Changes records, dates of subscriptions and limits of resources.
    CanUpdateRateLimits,
    /// Deletes records and limits of resources; unblocks consumers and applications.
    CanDeleteRateLimits,
    /// Reads active limits, usage and the history; searches; explains decisions.
    CanGetRateLimits,
    /// Resets counters.
    CanResetCallCounters,
    /// Sees the ids of top subjects. Other readers see a keyed hash of them.
    CanSeeSubjectIds,
    /// Changes the status of subscriptions, whatever the effect on the consumer. A billing system
    /// needs no other role.
    CanSetSubscriptionStatus,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 9] = [
        Self::CanReadCallLimits,
        Self::CanSetCallLimits,
        Self::CanCreateRateLimits,
        Self::CanUpdateRateLimits,
        Self::CanDeleteRateLimits,
        Self::CanGetRateLimits,
        Self::CanResetCallCounters,
        Self::CanSeeSubjectIds,
        Self::CanSetSubscriptionStatus,
    ];

    /// Returns the name, such as `CanReadCallLimits`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::CanReadCallLimits => "CanReadCallLimits",
            Self::CanSetCallLimits => "CanSetCallLimits",
            Self::CanCreateRateLimits => "CanCreateRateLimits",
            Self::CanUpdateRateLimits => "CanUpdateRateLimits",
            Self::CanDeleteRateLimits => "CanDeleteRateLimits",
            Self::CanGetRateLimits => "CanGetRateLimits",
            Self::CanResetCallCounters => "CanResetCallCounters",
            Self::CanSeeSubjectIds => "CanSeeSubjectIds",
            Self::CanSetSubscriptionStatus => "CanSetSubscriptionStatus",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Role {
    type Err = UnknownRole;

    fn from_str(name: &str) -> Result<Self, UnknownRole> {
        Self::ALL
            .into_iter()
            .find(|role| role.as_str() == name)
            .ok_or_else(|| UnknownRole { name: name.chars().take(80).collect() })
    }
}

/// The error for a name that is not a [`Role`].
#[derive(Clone, PartialEq, Eq)]
pub struct UnknownRole {
    name: String,
}

rl_core::debug_as_display!(UnknownRole);

impl fmt::Display for UnknownRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = Role::ALL.map(Role::as_str).join(", ");
        write!(f, "role {:?}: expected one of {known}", self.name)
    }
}

impl std::error::Error for UnknownRole {}

/// A set of roles.
///
/// # Examples
///
/// ```
/// use rl_admin::{Role, Roles};
///
/// let viewer = Roles::from_iter([Role::CanReadCallLimits, Role::CanGetRateLimits]);
/// assert!(viewer.contains(Role::CanGetRateLimits));
/// assert!(!viewer.contains(Role::CanSetCallLimits));
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Roles(u16);

impl Roles {
    /// No role.
    pub const NONE: Self = Self(0);

    /// Returns every role.
    #[must_use]
    pub fn all() -> Self {
        Self::from_iter(Role::ALL)
    }

    /// Returns these roles and `role`.
    #[must_use]
    pub const fn with(self, role: Role) -> Self {
        Self(self.0 | 1 << role as u16)
    }

    /// Returns whether the set contains `role`.
    #[must_use]
    pub const fn contains(self, role: Role) -> bool {
        self.0 & 1 << role as u16 != 0
    }

    /// Returns the roles, in the order of [`Role::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Role> {
        Role::ALL.into_iter().filter(move |role| self.contains(*role))
    }
}

impl FromIterator<Role> for Roles {
    fn from_iter<I: IntoIterator<Item = Role>>(roles: I) -> Self {
        roles.into_iter().fold(Self::NONE, Self::with)
    }
}

impl fmt::Debug for Roles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(Role::as_str)).finish()
    }
}
