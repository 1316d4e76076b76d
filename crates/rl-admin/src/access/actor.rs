use std::sync::Arc;

use rl_records::Author;

use super::{Role, Roles};
use crate::ApiError;

/// Who makes a request: a name for the log and the history, and what they may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor {
    name: Arc<str>,
    roles: Roles,
    // All of them if not said.
    applications: Option<Arc<[String]>>,
}

impl Actor {
    /// Somebody of this name with these roles.
    ///
    /// The name is stored with every change: 1 to 250 bytes without control characters, or the
    /// change is refused.
    #[must_use]
    pub fn new(name: &str, roles: Roles) -> Self {
        Self { name: name.into(), roles, applications: None }
    }

    /// The same, who edits limits of resources only if these applications alone are under them. What
    /// they may read, and limits of consumers, are not touched by this.
    ///
    /// # Examples
    ///
    /// ```
    /// use rl_admin::{Actor, Roles};
    ///
    /// let owner = Actor::new("olivia", Roles::all()).of_applications(["shop", "wallet"]);
    /// assert!(owner.owns(["shop"]));
    /// assert!(!owner.owns(["shop", "bank"]));
    /// assert!(!owner.owns([""; 0]));
    /// assert!(Actor::new("alice", Roles::all()).owns([""; 0]));
    /// ```
    #[must_use]
    pub fn of_applications<A: Into<String>>(
        mut self,
        applications: impl IntoIterator<Item = A>,
    ) -> Self {
        self.applications = Some(applications.into_iter().map(Into::into).collect());
        self
    }

    /// Whether all of these applications are theirs. What is under no application belongs to those
    /// alone whose applications were not said.
    #[must_use]
    pub fn owns<A: AsRef<str>>(&self, applications: impl IntoIterator<Item = A>) -> bool {
        let Some(own) = &self.applications else { return true };
        let mut applications = applications.into_iter().peekable();
        applications.peek().is_some()
            && applications.all(|app| own.iter().any(|own| own == app.as_ref()))
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What they may do.
    #[must_use]
    pub const fn roles(&self) -> Roles {
        self.roles
    }

    /// Whether they have `role`.
    #[must_use]
    pub const fn has(&self, role: Role) -> bool {
        self.roles.contains(role)
    }

    /// Returns the author for changes by this actor. It may block and unblock consumers if the actor has
    /// the roles for that.
    pub(crate) fn author(&self) -> Author<'_> {
        let may_block = self.has(Role::CanCreateRateLimits);
        let may_unblock = self.has(Role::CanDeleteRateLimits);
        Author::new(&self.name).may_block(may_block).may_unblock(may_unblock)
    }

    /// Demands `role`.
    ///
    /// # Errors
    ///
    /// Returns the answer 403, which names the role, if they do not have it.
    pub fn require(&self, role: Role) -> Result<(), ApiError> {
        if self.has(role) { Ok(()) } else { Err(ApiError::missing_role(role)) }
    }
}
