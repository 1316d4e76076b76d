use std::marker::PhantomData;

use axum::extract::{FromRequestParts, MatchedPath, RawPathParams};
use axum::http::request::Parts;
use rl_core::Subject;

use super::path::RealmName;
use super::path::Segment;
use super::subject::subject;
use crate::access::{Actor, Role};
use crate::{Admin, ApiError, audit};

/// An actor who has the role that `R` needs. The first argument of a handler: nothing else is looked
/// at before.
pub(crate) struct Allowed<R> {
    pub(crate) actor: Actor,
    pub(crate) asked: Asked,
    needs: PhantomData<R>,
}

/// The parts of a request that an entry about its refusal names.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) method: String,
    /// The path with the ids of subjects: only for the history.
    pub(crate) path: String,
    /// The path without ids: for the log.
    pub(crate) route: String,
    /// The subject that the request names, if any.
    pub(crate) subject: Option<Subject>,
}

impl Asked {
    async fn of(parts: &mut Parts, admin: &Admin) -> Self {
        let route = parts.extensions.get::<MatchedPath>().map(|path| path.as_str().to_owned());
        let params = RawPathParams::from_request_parts(parts, admin).await.ok();
        let find = |name: &str| {
            let found = params.as_ref()?.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| value)
        };
        let consumer = find("CONSUMER_ID").map(Subject::consumer);
        let named = || {
            let RealmName(realm) = RealmName::read(find(RealmName::NAME)?).ok()?;
            subject(admin, realm, find("SUBJECT_ID")?).ok()
        };
        Self {
            method: parts.method.to_string(),
            path: parts.uri.path().to_owned(),
            route: route.unwrap_or_default(),
            subject: consumer.or_else(named),
        }
    }
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

impl<R: Needs> FromRequestParts<Admin> for Allowed<R> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, admin: &Admin) -> Result<Self, ApiError> {
        let actor = parts.extensions.get::<Actor>().cloned();
        let actor = actor.ok_or_else(ApiError::not_logged_in)?;
        let asked = Asked::of(parts, admin).await;
        actor.require(R::ROLE).inspect_err(|_| audit::refuse(admin, &actor, R::ROLE, &asked))?;
        Ok(Self { actor, asked, needs: PhantomData })
    }
}
