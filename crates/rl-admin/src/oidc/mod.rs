//! The sign-in of people with OpenID Connect.
//!
//! A provider, such as Keycloak or Entra ID, authenticates a person for the [console](crate::console),
//! with the authorization code flow, PKCE, a state and a nonce. A claim of the person, by default
//! `groups`, determines the roles. The API knows tokens only.
//!
//! 1. **The provider is asked when a person signs in**, never at the start. Its endpoints and keys
//!    are kept for an hour. After a failure it is left alone for five seconds.
//! 2. **The name** of a person in the history is `NAME <SUB@ISSUER>`. `NAME` is the
//!    `preferred_username`, else the `email`, if it has only letters, digits, spaces and `._-+@'\`. It
//!    is left out if there is none, or if all would exceed 250 bytes. People may choose their names,
//!    but the provider gives `SUB` to one person only. No token should have a name that ends with
//!    `>`; [`AdminSettings`](crate::settings::AdminSettings) refuses such tokens.
//! 3. **Several entries** of the map of roles are combined, in their order, only if the result
//!    grants nothing that no entry grants. Entries for the same applications add their roles, and
//!    entries with the same roles add their applications. Otherwise the first entry counts, and a
//!    log line names the others.
//! 4. **A session keeps what it was granted** until it ends. It ends at once if the provider or the
//!    client is changed or removed.

mod config;
mod person;
mod provider;

pub(crate) use config::OidcPart;
pub use config::{InvalidOidc, Oidc};
pub(crate) use provider::{Pending, Provider, SignInError};
