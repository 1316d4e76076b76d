use std::marker::PhantomData;
use std::sync::Arc;

use axum::extract::{FromRequestParts, MatchedPath, RawPathParams};
use axum::http::request::Parts;
use rl_core::Subject;

use super::path::{PathSegment, RealmName};
use super::scope::actor_of;
use super::subject::subject;
use crate::access::{Actor, Role};
use crate::audit::{self, RequestSummary};
use crate::context::Context;
use crate::error::ApiError;

/// The actor of a request, who has the role named by `R`.
///
/// Handlers take it as the first argument, so that the role is checked before any other part of the
/// request.
pub(crate) struct Allowed<R> {
    pub(crate) actor: Actor,
    pub(crate) request: RequestSummary,
    role: PhantomData<R>,
}

/// A role as a type.
pub(crate) trait RequiredRole {
    const ROLE: Role;
}

macro_rules! roles {
    ($($role:ident),* $(,)?) => {
        $(
            #[doc = concat!("Requires the role `", stringify!($role), "`.")]
            pub(crate) struct $role;

            impl RequiredRole for $role {
                const ROLE: Role = Role::$role;
            }
        )*
    };
}

roles! {
    CanReadCallLimits,
    CanSetCallLimits,
    CanCreateRateLimits,
    CanUpdateRateLimits,
    CanDeleteRateLimits,
    CanGetRateLimits,
    CanResetCallCounters,
    CanSetSubscriptionStatus,
}

impl<R: RequiredRole> FromRequestParts<Arc<Context>> for Allowed<R> {
    type Rejection = ApiError;

    async fn from_request_parts(
        parts: &mut Parts,
        context: &Arc<Context>,
    ) -> Result<Self, ApiError> {
        let actor = actor_of(parts)?.clone();
        let request = summary(parts, context).await;
        if !actor.has(R::ROLE) {
            audit::refuse(context, &actor, R::ROLE, &request);
            return Err(ApiError::missing_role(R::ROLE));
        }
        Ok(Self { actor, request, role: PhantomData })
    }
}

/// Summarizes a request for the history, in case the request is refused.
async fn summary(parts: &mut Parts, context: &Arc<Context>) -> RequestSummary {
    let route = parts.extensions.get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let params = RawPathParams::from_request_parts(parts, context).await.ok();
    let find = |name: &str| {
        let found = params.as_ref()?.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| value)
    };
    let consumer = find("CONSUMER_ID").map(Subject::consumer);
    let named = || {
        let RealmName(realm) = RealmName::read(find(RealmName::NAME)?).ok()?;
        subject(context, realm, find("SUBJECT_ID")?).ok()
    };
    RequestSummary {
        method: parts.method.to_string(),
        path: parts.uri.path().to_owned(),
        route: route.unwrap_or_default(),
        subject: consumer.or_else(named),
    }
}
