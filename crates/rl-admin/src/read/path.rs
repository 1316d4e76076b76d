use axum::extract::{FromRequestParts, RawPathParams};
use axum::http::StatusCode;
use axum::http::request::Parts;
use rl_core::Realm;
use rl_records::{CallPeriod, RecordId};
use utoipa::IntoParams;
use utoipa::openapi::path::{Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::{ObjectBuilder, Required, SchemaFormat, Type};

use crate::ApiError;
use crate::wire::{Hour, Name};

/// A segment of the path.
pub(crate) struct In<T>(pub(crate) T);

pub(crate) trait Segment: Sized {
    /// The name in braces.
    const NAME: &'static str;

    fn read(text: &str) -> Result<Self, ApiError>;

    fn schema() -> ObjectBuilder;
}

impl<S: Send + Sync, T: Segment> FromRequestParts<S> for In<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let params = RawPathParams::from_request_parts(parts, state).await;
        let params = params.map_err(|_| ApiError::invalid("path", "percent-encoded UTF-8"))?;
        let found = params.iter().find(|(name, _)| *name == T::NAME);
        let missing = || ApiError::new(StatusCode::NOT_FOUND, "there is nothing at this path");
        T::read(found.ok_or_else(missing)?.1).map(Self)
    }
}

/// For the document.
impl<T: Segment> IntoParams for In<T> {
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
    ($($(#[$doc:meta])* $what:ident: $name:literal, $description:literal;)*) => {
        $(
            $(#[$doc])*
            pub(crate) struct $what(pub(crate) Name);

            impl Segment for $what {
                const NAME: &'static str = $name;

                fn read(text: &str) -> Result<Self, ApiError> {
                    let name = Name::parse(text);
                    name.map(Self).map_err(|expected| ApiError::invalid(Self::NAME, expected))
                }

                fn schema() -> ObjectBuilder {
                    Name::schema_of($description)
                }
            }
        )*
    };
}

named! {
    /// Who is limited.
    ConsumerId: "CONSUMER_ID", "The id of a consumer";
    /// A resource.
    ResourceName: "RESOURCE", "The name of a resource";
    /// An application.
    ApplicationName: "APPLICATION", "The name of an application";
    /// A tier.
    TierName: "TIER", "The name of a tier";
    /// The id of a subject.
    SubjectText: "SUBJECT_ID", "The id of a subject: an address such as 192.0.2.7 or 2001:db8::1, a consumer, a user; of an API key, the 32 hexadecimal digits of its keyed hash; `-` for the one subject of the realms global and unknown";
    /// A limit of a policy.
    LimitName: "LIMIT", "The name of a limit in its policy, such as minute; per_minute is taken for it";
}

/// The id of a record.
pub(crate) struct RateLimitingId(pub(crate) RecordId);

impl Segment for RateLimitingId {
    const NAME: &'static str = "RATE_LIMITING_ID";

    fn read(text: &str) -> Result<Self, ApiError> {
        let id = text.parse().ok().filter(|id: &RecordId| id.to_string() == text);
        id.map(Self).ok_or_else(|| ApiError::invalid(Self::NAME, "a UUID in lower case"))
    }

    fn schema() -> ObjectBuilder {
        let uuid = SchemaFormat::Custom("uuid".to_owned());
        ObjectBuilder::new()
            .schema_type(Type::String)
            .format(Some(uuid))
            .pattern(Some("^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"))
    }
}

/// An hour.
pub(crate) struct HourOfDay(pub(crate) Hour);

impl Segment for HourOfDay {
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
}

/// One of the six periods, as counters (`per_minute`) or as limits (`minute`) are called.
pub(crate) struct PeriodName(pub(crate) CallPeriod);

impl Segment for PeriodName {
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
}

/// Returns the period of this name, with or without `per_`.
pub(crate) fn period_of(text: &str) -> Option<CallPeriod> {
    let name = text.strip_prefix("per_").unwrap_or(text);
    CallPeriod::ALL.into_iter().find(|period| period.period().to_string() == name)
}

/// A space of ids.
pub(crate) struct RealmName(pub(crate) Realm);

impl Segment for RealmName {
    const NAME: &'static str = "REALM";

    fn read(text: &str) -> Result<Self, ApiError> {
        let known =
            [Realm::Ip, Realm::Key, Realm::Consumer, Realm::User, Realm::Global, Realm::Unknown];
        if let Some(realm) = known.into_iter().find(|realm| realm.as_str() == text) {
            return Ok(Self(realm));
        }
        let expected =
            "ip, key, consumer, user, global, unknown, or 1 to 32 characters of a-z, 0-9, _ and -";
        Realm::custom(text).map(Self).map_err(|_| ApiError::invalid(Self::NAME, expected))
    }

    fn schema() -> ObjectBuilder {
        ObjectBuilder::new()
            .schema_type(Type::String)
            .pattern(Some("^[a-z0-9_-]{1,32}$"))
            .description(Some("A space of ids: ip, key, consumer, user, or one of your own"))
            .examples(["ip"])
    }
}
