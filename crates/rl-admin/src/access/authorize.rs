use std::sync::Arc;

use axum::http::request::Parts;
use rl_core::MaybeReady;

use super::actor::Actor;
#[cfg(doc)]
use super::attempts::FailedAttempts;

/// Authenticates requests.
pub trait Authorize: Send + Sync + 'static {
    /// Authenticates a request by its head.
    ///
    /// Return [`MaybeReady::later`] if the check has to wait, for example for a database.
    fn authorize(&self, request: &Parts) -> MaybeReady<Authorized>;

    /// Returns whether an actor with a token would still be accepted, with the same roles and
    /// applications. Returns `None`, which is the default, if this [`Authorize`] has no tokens.
    ///
    /// A session of the console that a token began ends when one [`Authorize`] returns
    /// `Some(false)`, and none `Some(true)`.
    fn still_accepts(&self, _actor: &Actor) -> Option<bool> {
        None
    }
}

/// The result of authentication by an [`Authorize`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Authorized {
    /// The request is from this actor.
    As(Actor),
    /// The request has no credentials of the kind that this [`Authorize`] checks. Another one may
    /// accept the request.
    Unknown,
    /// The credentials are wrong. If no other [`Authorize`] accepts them, they count as a
    /// [failed attempt](FailedAttempts) of the client's address.
    Wrong,
    /// The credentials cannot be checked now. The response is 503.
    Unavailable,
}

impl<A: Authorize + ?Sized> Authorize for Arc<A> {
    fn authorize(&self, request: &Parts) -> MaybeReady<Authorized> {
        (**self).authorize(request)
    }

    fn still_accepts(&self, actor: &Actor) -> Option<bool> {
        (**self).still_accepts(actor)
    }
}

// Compiles only if `dyn Authorize` is possible. Trait objects are needed, because the configuration
// chooses the implementation.
fn _object_safe(_: &dyn Authorize) {}
