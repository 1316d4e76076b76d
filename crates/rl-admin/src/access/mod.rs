//! Authentication and authorization.
//!
//! 1. An [`Authorize`] authenticates a request: it returns an [`Actor`] with a name and [`Roles`].
//! 2. Several can be configured; the first one that accepts the credentials decides. If none does,
//!    the response is 401. If none is configured, every request gets 401. Wrong credentials are
//!    [limited](FailedAttempts) by address.
//! 3. Each operation requires one [`Role`]. If the actor lacks it, the response is 403 and names
//!    the role.
//! 4. An actor [of some applications](Actor::of_applications) sees and changes nothing else. The
//!    ids in the path, the query and the body of a request are checked when they are read, before
//!    the operation runs. A foreign id is answered like one that does not exist: 404.
//! 5. Every change is logged and stored with the name of its actor.
//!
//! # Example
//!
//! ```
//! use axum::http::request::Parts;
//! use rl_admin::access::{Actor, Authorize, Authorized, Role, Roles};
//! use rl_core::MaybeReady;
//!
//! /// Accepts the session that an outer layer has put into the extensions.
//! struct SessionAuthorize;
//!
//! struct Session {
//!     user: String,
//! }
//!
//! impl Authorize for SessionAuthorize {
//!     fn authorize(&self, request: &Parts) -> MaybeReady<Authorized> {
//!         let session = request.extensions.get::<Session>();
//!         MaybeReady::ready(match session {
//!             Some(session) => {
//!                 let roles = Roles::from_iter([Role::CanReadCallLimits, Role::CanGetRateLimits]);
//!                 Authorized::As(Actor::new(&session.user, roles))
//!             }
//!             None => Authorized::Unknown,
//!         })
//!     }
//! }
//! ```

mod actor;
mod attempts;
mod authorize;
mod grants;
mod role;
mod tokens;

pub use actor::Actor;
pub use attempts::FailedAttempts;
pub(crate) use attempts::{AttemptLimiter, TooManyAttempts};
pub use authorize::{Authorize, Authorized};
pub(crate) use grants::ClaimGrants;
pub use role::{Role, Roles, UnknownRole};
pub(crate) use tokens::hex;
pub use tokens::{BearerTokens, InvalidTokens};
