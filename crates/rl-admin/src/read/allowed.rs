use std::marker::PhantomData;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;

use crate::access::{Actor, Role};
use crate::{ApiError, audit};

/// Somebody who has the role that `R` needs. The first argument of a handler: nothing else is looked
/// at before.
pub(crate) struct Allowed<R> {
    pub(crate) actor: Actor,
    needs: PhantomData<R>,
}

pub(crate) trait Needs {
    const ROLE: Role;
}

macro_rules! needs {
    ($($what:ident: $role:ident),* $(,)?) => {
        $(
            #[doc = concat!("Needs `", stringify!($role), "`.")]
            pub(crate) struct $what;

            impl Needs for $what {
                const ROLE: Role = Role::$role;
            }
        )*
    };
}

needs! {
    ToRead: CanReadCallLimits,
    ToSet: CanSetCallLimits,
    ToCreate: CanCreateRateLimits,
    ToUpdate: CanUpdateRateLimits,
    ToDelete: CanDeleteRateLimits,
    ToGet: CanGetRateLimits,
    ToReset: CanResetCallCounters,
}

impl<S: Sync, R: Needs> FromRequestParts<S> for Allowed<R> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let actor = parts.extensions.get::<Actor>().ok_or_else(ApiError::not_logged_in)?;
        actor.require(R::ROLE).inspect_err(|_| audit::refused(actor, R::ROLE))?;
        Ok(Self { actor: actor.clone(), needs: PhantomData })
    }
}
