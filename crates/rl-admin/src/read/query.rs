use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use rl_records::RecordCursor;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use utoipa::IntoParams;

use super::fault_of;
use crate::ApiError;
use crate::wire::{Date, Name};

/// The query string.
pub(crate) struct Parameters<T>(pub(crate) T);

impl<S: Sync, T: DeserializeOwned> FromRequestParts<S> for Parameters<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let pairs = form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes());
        let query = serde_urlencoded::Deserializer::new(pairs);
        serde_path_to_error::deserialize(query).map(Self).map_err(|error| {
            let path = error.path().to_string();
            fault_of(&path, &error.into_inner().to_string())
        })
    }
}

/// How many a page has, and may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageSize<const MOST: u32 = 1_000>(pub(crate) u32);

impl<const MOST: u32> Default for PageSize<MOST> {
    fn default() -> Self {
        Self(50)
    }
}

/// From text, as long as it is the number it says.
fn number<'de, D: Deserializer<'de>>(
    deserializer: D,
    most: u64,
    expected: &str,
) -> Result<u64, D::Error> {
    let text = String::deserialize(deserializer)?;
    let number = text.parse::<u64>().ok().filter(|number| number.to_string() == text);
    let number = number.filter(|number| (1..=most).contains(number));
    number.ok_or_else(|| serde::de::Error::custom(format_args!("expected {expected}")))
}

impl<'de, const MOST: u32> Deserialize<'de> for PageSize<MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = number(deserializer, MOST.into(), &format!("1 to {MOST}"))?;
        Ok(Self(u32::try_from(number).unwrap_or(MOST)))
    }
}

/// A page of a list of records, and which of them.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Search {
    /// Only those whose consumer has this text in its id, in large or small letters.
    #[param(value_type = Option<Name>)]
    pub(crate) search: Option<Name>,
    /// Only those that are active at this time.
    #[param(value_type = Option<Date>)]
    pub(crate) active_at: Option<Date>,
    /// How many, at most.
    #[serde(default)]
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000, default = 50)]
    pub(crate) limit: PageSize,
    /// The `next` of the page before.
    #[serde(default, deserialize_with = "cursor")]
    #[param(value_type = Option<String>)]
    pub(crate) after: Option<RecordCursor>,
}

fn cursor<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<RecordCursor>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let wrong = |_| serde::de::Error::custom("expected the \"next\" of an earlier answer");
    text.parse().map(Some).map_err(wrong)
}

/// A page of a list of names.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Names {
    /// How many, at most.
    #[serde(default)]
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000, default = 50)]
    pub(crate) limit: PageSize,
    /// The `next` of the page before.
    #[serde(default, deserialize_with = "stored_name")]
    #[param(value_type = Option<String>, max_length = 250)]
    pub(crate) after: Option<String>,
}

/// What is stored may have other names than can be given here: the console takes any text.
fn stored_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.chars().count() > 250 {
        return Err(serde::de::Error::custom("expected the \"next\" of an earlier answer"));
    }
    Ok(Some(text))
}

/// A page of a list of limits of resources, each of which may list a thousand applications.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct FewNames {
    /// How many, at most.
    #[serde(default)]
    #[param(value_type = Option<u32>, minimum = 1, maximum = 50, default = 50)]
    pub(crate) limit: PageSize<50>,
    /// The `next` of the page before.
    #[serde(default, deserialize_with = "stored_name")]
    #[param(value_type = Option<String>, max_length = 250)]
    pub(crate) after: Option<String>,
}

/// A page of a list of names, and which of them.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct SearchNames {
    /// Only those that have this text in them, in large or small letters.
    #[param(value_type = Option<Name>)]
    pub(crate) search: Option<Name>,
    /// How many, at most.
    #[serde(default)]
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000, default = 50)]
    pub(crate) limit: PageSize,
    /// The `next` of the page before.
    #[serde(default, deserialize_with = "stored_name")]
    #[param(value_type = Option<String>, max_length = 250)]
    pub(crate) after: Option<String>,
}

/// A page of changes.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct History {
    /// How many, at most.
    #[serde(default)]
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000, default = 50)]
    pub(crate) limit: PageSize,
    /// The `next` of the page before.
    #[serde(default, deserialize_with = "change")]
    #[param(value_type = Option<i64>, minimum = 1)]
    pub(crate) before: Option<i64>,
}

/// A page of changes of the limit of a resource, which may list a thousand applications.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct FewChanges {
    /// How many, at most.
    #[serde(default)]
    #[param(value_type = Option<u32>, minimum = 1, maximum = 50, default = 50)]
    pub(crate) limit: PageSize<50>,
    /// The `next` of the page before.
    #[serde(default, deserialize_with = "change")]
    #[param(value_type = Option<i64>, minimum = 1)]
    pub(crate) before: Option<i64>,
}

fn change<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    let most = i64::MAX.cast_unsigned();
    number(deserializer, most, "the \"next\" of an earlier answer").map(|n| Some(n.cast_signed()))
}

/// What is asked for.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Cost {
    /// The units that a request takes.
    #[serde(default = "one", deserialize_with = "units")]
    #[param(value_type = Option<u64>, minimum = 1, maximum = 9007199254740991u64, default = 1)]
    pub(crate) cost: u64,
}

const fn one() -> u64 {
    1
}

fn units<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    number(deserializer, rl_core::MAX_UNITS, "1 to 9007199254740991 units")
}
