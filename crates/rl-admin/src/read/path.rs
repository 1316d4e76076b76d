use std::sync::Arc;

use axum::extract::{FromRequestParts, RawPathParams};
use axum::http::StatusCode;
use axum::http::request::Parts;
use rl_core::Realm;
use rl_records::{CallPeriod, Day, RecordId, SubscriptionId};
use utoipa::IntoParams;
use utoipa::openapi::path::{Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::{ObjectBuilder, Required, SchemaFormat, Type};

use super::scope::ScopedRequest;
use crate::context::Context;
use crate::error::ApiError;
use crate::wire::{Hour, Name, RealmText, parse_month};

/// A parameter of the path.
pub(crate) struct PathParam<T>(pub(crate) T);

/// A type that can be a parameter of the path.
pub(crate) trait PathSegment: Sized {
    /// The name in the path template.
    const NAME: &'static str;

    fn read(text: &str) -> Result<Self, ApiError>;

    fn schema() -> ObjectBuilder;

    /// Checks that an actor of some applications may make the request, as far as this parameter
    /// names an object.
    fn check(
        &self,
        request: &ScopedRequest<'_>,
    ) -> impl Future<Output = Result<(), ApiError>> + Send;
}

impl<T: PathSegment + Send + Sync> FromRequestParts<Arc<Context>> for PathParam<T> {
    type Rejection = ApiError;

    async fn from_request_parts(
        parts: &mut Parts,
        context: &Arc<Context>,
    ) -> Result<Self, ApiError> {
        let found: T = segment(parts, context).await?;
        if let Some(request) = ScopedRequest::of(parts, context)? {
            found.check(&request).await?;
        }
        Ok(Self(found))
    }
}

/// Reads a parameter of the path, without a check of the actor.
pub(super) async fn segment<T: PathSegment>(
    parts: &mut Parts,
    context: &Arc<Context>,
) -> Result<T, ApiError> {
    let params = RawPathParams::from_request_parts(parts, context).await;
    let params = params.map_err(|_| ApiError::invalid("path", "percent-encoded UTF-8"))?;
    let found = params.iter().find(|(name, _)| *name == T::NAME);
    let missing = || ApiError::new(StatusCode::NOT_FOUND, "there is nothing at this path");
    T::read(found.ok_or_else(missing)?.1)
}

/// Describes the parameter in the OpenAPI document.
impl<T: PathSegment> IntoParams for PathParam<T> {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let parameter = ParameterBuilder::new()
            .name(T::NAME)
            .parameter_in(ParameterIn::Path)
            .required(Required::True)
            .schema(Some(T::schema()));
        vec![parameter.build()]
    }
}

macro_rules! named {
    ($($(#[$doc:meta])* $what:ident, $check:ident: $name:literal, $description:literal;)*) => {
        $(
            $(#[$doc])*
            pub(crate) struct $what(pub(crate) Name);

            impl PathSegment for $what {
                const NAME: &'static str = $name;

                fn read(text: &str) -> Result<Self, ApiError> {
                    let name = Name::parse(text);
                    name.map(Self).map_err(|expected| ApiError::invalid(Self::NAME, expected))
                }

                fn schema() -> ObjectBuilder {
                    Name::schema_of($description)
                }

                async fn check(&self, request: &ScopedRequest<'_>) -> Result<(), ApiError> {
                    request.$check(&self.0).await
                }
            }
        )*
    };
}

named! {
    /// The id of a consumer.
    ConsumerId, consumer: "CONSUMER_ID", "The id of a consumer";
    /// The name of a resource.
    ResourceName, resource: "RESOURCE", "The name of a resource";
    /// The name of an application.
    ApplicationName, application: "APPLICATION", "The name of an application";
    /// The name of a tier.
    TierName, tier: "TIER", "The name of a tier";
    /// The name of a rule.
    RuleName, rule: "RULE", "The name of a rule";
    /// The id of a subject.
    SubjectText, bare_subject: "SUBJECT_ID", "The id of a subject: an address such as 192.0.2.7 or 2001:db8::1, a consumer, a user; the 32 hexadecimal digits of the keyed hash of an API key; `-` for the one subject of the realms global and unknown";
    /// The name of a limit in a policy.
    LimitName, no_object: "LIMIT", "The name of a limit in its policy, such as minute or per_minute";
}

macro_rules! uuids {
    ($($(#[$doc:meta])* $what:ident($id:ident), $check:ident: $name:literal;)*) => {
        $(
            $(#[$doc])*
            pub(crate) struct $what(pub(crate) $id);

            impl PathSegment for $what {
                const NAME: &'static str = $name;

                fn read(text: &str) -> Result<Self, ApiError> {
                    let id = text.parse().ok().filter(|id: &$id| id.to_string() == text);
                    id.map(Self).ok_or_else(|| ApiError::invalid(Self::NAME, "a UUID in lower case"))
                }

                fn schema() -> ObjectBuilder {
                    uuid()
                }

                async fn check(&self, request: &ScopedRequest<'_>) -> Result<(), ApiError> {
                    request.$check(self.0).await
                }
            }
        )*
    };
}

uuids! {
    /// The id of a record.
    RateLimitingId(RecordId), record: "RATE_LIMITING_ID";
    /// The id of a subscription.
    SubscriptionIdParam(SubscriptionId), subscription: "SUBSCRIPTION_ID";
}

fn uuid() -> ObjectBuilder {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .format(Some(SchemaFormat::Custom("uuid".to_owned())))
        .pattern(Some("^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"))
}

/// An hour in UTC.
pub(crate) struct HourOfDay(pub(crate) Hour);

impl PathSegment for HourOfDay {
    const NAME: &'static str = "DATE_WITH_HOUR";

    fn read(text: &str) -> Result<Self, ApiError> {
        Hour::parse(text).map(Self)
    }

    fn schema() -> ObjectBuilder {
        ObjectBuilder::new()
            .schema_type(Type::String)
            .pattern(Some(Hour::PATTERN))
            .description(Some("An hour in UTC: YYYY-MM-DD-HH"))
            .examples(["2025-12-31-13"])
    }

    async fn check(&self, _: &ScopedRequest<'_>) -> Result<(), ApiError> {
        Ok(())
    }
}

/// A month in UTC, by its first day.
pub(crate) struct MonthParam(pub(crate) Day);

impl PathSegment for MonthParam {
    const NAME: &'static str = "MONTH";

    fn read(text: &str) -> Result<Self, ApiError> {
        let expected = "a month such as 2026-11, from 1970-01 to 9999-12";
        parse_month(text).map(Self).ok_or_else(|| ApiError::invalid(Self::NAME, expected))
    }

    fn schema() -> ObjectBuilder {
        ObjectBuilder::new()
            .schema_type(Type::String)
            .pattern(Some("^(19[7-9][0-9]|[2-9][0-9]{3})-(0[1-9]|1[0-2])$"))
            .description(Some("A month in UTC: YYYY-MM"))
            .examples(["2026-11"])
    }

    async fn check(&self, _: &ScopedRequest<'_>) -> Result<(), ApiError> {
        Ok(())
    }
}

/// The name of one of the six periods: `per_minute` or `minute`.
pub(crate) struct PeriodName(pub(crate) CallPeriod);

impl PathSegment for PeriodName {
    const NAME: &'static str = "PERIOD";

    fn read(text: &str) -> Result<Self, ApiError> {
        let expected = "one of per_second, per_minute, per_hour, per_day, per_week and per_month";
        period_of(text).map(Self).ok_or_else(|| ApiError::invalid(Self::NAME, expected))
    }

    fn schema() -> ObjectBuilder {
        let long = CallPeriod::ALL.map(|period| format!("per_{}", period.period()));
        let short = CallPeriod::ALL.map(|period| period.period().to_string());
        let names: Vec<String> = long.into_iter().chain(short).collect();
        ObjectBuilder::new().schema_type(Type::String).enum_values(Some(names))
    }

    async fn check(&self, _: &ScopedRequest<'_>) -> Result<(), ApiError> {
        Ok(())
    }
}

/// Returns the period of this name, with or without `per_`.
pub(crate) fn period_of(text: &str) -> Option<CallPeriod> {
    let name = text.strip_prefix("per_").unwrap_or(text);
    CallPeriod::ALL.into_iter().find(|period| period.period().to_string() == name)
}

/// The name of a realm.
pub(crate) struct RealmName(pub(crate) Realm);

impl PathSegment for RealmName {
    const NAME: &'static str = "REALM";

    fn read(text: &str) -> Result<Self, ApiError> {
        let wrong = || ApiError::invalid(Self::NAME, RealmText::EXPECTED);
        RealmText::parse(text).map(|realm| Self(realm.0)).ok_or_else(wrong)
    }

    fn schema() -> ObjectBuilder {
        RealmText::schema()
    }

    async fn check(&self, _: &ScopedRequest<'_>) -> Result<(), ApiError> {
        Ok(())
    }
}
