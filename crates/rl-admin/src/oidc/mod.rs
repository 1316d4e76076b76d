//! The sign-in of people with OpenID Connect.
//!
//! A provider, such as Keycloak or Entra ID, authenticates a person for the
//! [console](crate::console), with the authorization code flow, PKCE, a state and a nonce. A claim
//! of the person, by default `groups`, determines the roles. The API accepts tokens only.
//!
//! 1. **The provider is called when a person signs in**, never at the start. Its endpoints and keys
//!    are cached for an hour. After a failure, it is not called for five seconds.
//! 2. **The name** of a person in the history is `NAME <SUB@ISSUER>`. `NAME` is the
//!    `preferred_username`, else the `email`, if it has only letters, digits, spaces and
//!    `._-+@'\`. It is left out if there is none, or if the whole name would exceed 250 bytes.
//!    People may choose their names, but the provider gives `SUB` to one person only. No token
//!    should have a name that ends with `>`; [`AdminSettings`](crate::settings::AdminSettings)
//!    refuses such tokens.
//! 3. **Several entries** of the map of roles are combined, in their order, only if the result
//!    grants nothing that no entry grants. Entries for the same applications add their roles, and
//!    entries with the same roles add their applications. The rest of an entry is left
//!    out, and a log line names the entry.
//! 4. **A session keeps its roles and applications** until it ends. The next request ends it if the
//!    provider was removed, or if its issuer, client id, claim or map of roles was changed.

mod config;
mod person;
mod provider;

pub(crate) use config::OidcPart;
pub use config::{InvalidOidc, Oidc};
pub(crate) use provider::{Pending, Provider, SignInError};
