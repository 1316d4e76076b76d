use std::sync::Arc;

use super::{Role, Roles};
use crate::ApiError;

/// Who makes a request: a name for the log and the history, and what they may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor {
    name: Arc<str>,
    roles: Roles,
}

impl Actor {
    /// Somebody of this name with these roles.
    ///
    /// The name is stored with every change: 1 to 250 bytes without control characters, or the
    /// change is refused.
    #[must_use]
    pub fn new(name: &str, roles: Roles) -> Self {
        Self { name: name.into(), roles }
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

    /// Demands `role`.
    ///
    /// # Errors
    ///
    /// Returns the answer 403, which names the role, if they do not have it.
    pub fn require(&self, role: Role) -> Result<(), ApiError> {
        if self.has(role) { Ok(()) } else { Err(ApiError::missing_role(role)) }
    }
}
