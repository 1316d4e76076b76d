//! Who may do what.
//!
//! 1. An [`Authorize`] finds out who makes a request: an [`Actor`] with a name and [`Roles`].
//! 2. Several may be given; the first that knows the caller decides. If none does, the answer is
//!    401. There is no default that admits a request. Wrong credentials are [limited](FailedAttempts) by
//!    address.
//! 3. Each operation asks for one [`Role`]; without it the answer is 403, which names the role.
//! 4. Every change is logged with the name of its actor, and stored with it.
//!
//! # Example
//!
//! ```
//! use axum::http::request::Parts;
//! use rl_admin::access::{Actor, Authorize, Authorized, Role, Roles};
//! use rl_core::MaybeReady;
//!
//! /// Whoever an outer layer has let in, and put into the extensions.
//! struct OfSession;
//!
//! struct Session {
//!     user: String,
//! }
//!
//! impl Authorize for OfSession {
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
mod role;
mod tokens;

use std::sync::Arc;

use axum::http::request::Parts;
use rl_core::MaybeReady;

pub use actor::Actor;
pub use attempts::FailedAttempts;
pub(crate) use attempts::{AttemptLimiter, TooManyAttempts};
pub use role::{Role, Roles, UnknownRole};
pub use tokens::{BearerTokens, InvalidTokens};

/// Finds out who makes a request.
pub trait Authorize: Send + Sync + 'static {
    /// Who makes this request, as far as this can tell. The body of the request is not there.
    ///
    /// What is found out later, from a database for instance, is an [`MaybeReady::later`].
    fn authorize(&self, request: &Parts) -> MaybeReady<Authorized>;
}

/// The answer of an [`Authorize`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Authorized {
    /// It is this one.
    As(Actor),
    /// There are no credentials of a kind that this one checks; another [`Authorize`] may check them.
    Unknown,
    /// There are credentials, and they are wrong. If no other [`Authorize`] accepts them, they count as a
    /// [failed attempt](FailedAttempts) of the client's address.
    Wrong,
    /// It cannot be found out now: the answer is 503.
    Unavailable,
}

impl<A: Authorize + ?Sized> Authorize for Arc<A> {
    fn authorize(&self, request: &Parts) -> MaybeReady<Authorized> {
        (**self).authorize(request)
    }
}

// They are chosen from configuration.
fn _object_safe(_: &dyn Authorize) {}
