use std::sync::Arc;

use rl_core::{Realm, Subject};
use rl_records::Author;
use serde::{Deserialize, Serialize};

use super::role::{Role, Roles};

/// The person or program that makes a request: its name for the log and the history, and its roles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor {
    name: Arc<str>,
    roles: Roles,
    // `None` means that the actor owns all applications.
    applications: Option<Arc<[String]>>,
    // The identity of the actor's token or provider. `None` if another crate authenticated the
    // actor.
    credential: Option<Arc<str>>,
}

/// An actor as a session stores it.
#[derive(Serialize, Deserialize)]
struct StoredActor {
    name: String,
    roles: Vec<String>,
    applications: Option<Vec<String>>,
    credential: Option<String>,
}

impl Actor {
    /// Creates an actor.
    ///
    /// The name is stored with every change, and must have 1 to 250 bytes without control
    /// characters. With any other name, every change is refused.
    #[must_use]
    pub fn new(name: &str, roles: Roles) -> Self {
        Self { name: name.into(), roles, applications: None, credential: None }
    }

    /// Restricts the actor to these applications.
    ///
    /// An application is the consumer of the same name, and a user of each resource that lists it.
    /// The actor sees and edits only the limits, the use and the history of these consumers. It sees
    /// the resources that list one of them, and edits those that list no other application.
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

    /// Sets the identity of the actor's token or provider. Actors with different credentials are
    /// not equal.
    #[must_use]
    pub(crate) fn with_credential(mut self, credential: &str) -> Self {
        self.credential = Some(credential.into());
        self
    }

    /// Returns the identity of the actor's token or provider, if this crate authenticated the actor.
    pub(crate) fn credential(&self) -> Option<&str> {
        self.credential.as_deref()
    }

    /// Returns the actor as a text for [`from_json`](Self::from_json).
    pub(crate) fn to_json(&self) -> String {
        let stored = StoredActor {
            name: self.name.to_string(),
            roles: self.roles.iter().map(|role| role.as_str().to_owned()).collect(),
            applications: self.applications.as_deref().map(ToOwned::to_owned),
            credential: self.credential.as_deref().map(ToOwned::to_owned),
        };
        serde_json::to_string(&stored).expect("texts and lists of them")
    }

    /// Reads an actor from the text of [`to_json`](Self::to_json). Returns `None` for a text of
    /// another version, such as one with a role that this version does not know.
    pub(crate) fn from_json(json: &str) -> Option<Self> {
        let stored: StoredActor = serde_json::from_str(json).ok()?;
        let roles = stored.roles.iter().map(|role| role.parse::<Role>().ok());
        Some(Self {
            name: stored.name.into(),
            roles: roles.collect::<Option<Roles>>()?,
            applications: stored.applications.map(Into::into),
            credential: stored.credential.map(Into::into),
        })
    }

    /// Returns whether the actor owns all of these applications.
    ///
    /// An actor without [`of_applications`](Self::of_applications) owns all applications. Any other
    /// actor owns only the applications that were given there. For such an actor, an empty list
    /// returns `false`.
    #[must_use]
    pub fn owns<A: AsRef<str>>(&self, applications: impl IntoIterator<Item = A>) -> bool {
        let Some(own) = &self.applications else { return true };
        let mut applications = applications.into_iter().peekable();
        applications.peek().is_some()
            && applications.all(|app| own.iter().any(|own| own == app.as_ref()))
    }

    /// Returns the applications to which the actor is restricted, or `None` if it is not.
    pub(crate) fn applications(&self) -> Option<&[String]> {
        self.applications.as_deref()
    }

    /// Returns whether the actor may see the consumer with this id.
    pub(crate) fn sees_consumer(&self, id: &str) -> bool {
        self.owns([id])
    }

    /// Returns whether the actor may see a subject. If it is restricted to applications, it sees
    /// consumers only: the id of an address, a user or a key names no application.
    pub(crate) fn sees(&self, subject: &Subject) -> bool {
        let consumer = subject.id().as_text().filter(|_| *subject.realm() == Realm::Consumer);
        self.applications.is_none() || consumer.is_some_and(|id| self.sees_consumer(id))
    }

    /// Returns whether the actor may see the limit of a resource that lists these applications.
    pub(crate) fn sees_resource_of(&self, applications: &[String]) -> bool {
        self.applications.is_none() || applications.iter().any(|app| self.owns([app]))
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the roles.
    #[must_use]
    pub const fn roles(&self) -> Roles {
        self.roles
    }

    /// Returns whether the actor has `role`.
    #[must_use]
    pub const fn has(&self, role: Role) -> bool {
        self.roles.contains(role)
    }

    /// Returns the author of changes by this actor. It may block or unblock if the actor has the
    /// role for that.
    pub(crate) fn author(&self) -> Author<'_> {
        let may_block = self.has(Role::CanCreateRateLimits);
        let may_unblock = self.has(Role::CanDeleteRateLimits);
        Author::new(&self.name).may_block(may_block).may_unblock(may_unblock)
    }
}
