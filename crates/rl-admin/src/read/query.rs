use std::str::FromStr;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use rl_core::Realm;
use rl_records::{MonthCursor, RecordCursor, SubscriptionId, UsageCursor, UsageOrder};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use utoipa::{IntoParams, ToSchema};

use super::scope::actor_of;
use super::serde_error::from_serde;
use crate::error::ApiError;
use crate::last_hour::Ranking;
use crate::wire::{Date, DayText, Name, RealmText, SubscriptionStatus};

/// The parameters of the query string.
pub(crate) struct QueryParams<T>(pub(crate) T);

/// A type that can be the query of a request.
pub(crate) trait Query: DeserializeOwned {
    /// Restricts the answer to what an actor of these applications may see.
    fn restrict(&mut self, applications: &[String]) -> Result<(), ApiError>;
}

impl<S: Sync, T: Query> FromRequestParts<S> for QueryParams<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let pairs = form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes());
        let query = serde_urlencoded::Deserializer::new(pairs);
        let mut query: T = serde_path_to_error::deserialize(query).map_err(|error| {
            let path = error.path().to_string();
            from_serde(&path, &error.into_inner().to_string())
        })?;
        if let Some(applications) = actor_of(parts)?.applications() {
            query.restrict(applications)?;
        }
        Ok(Self(query))
    }
}

/// Implements [`Query`] for lists, which select what belongs to the applications in `own`.
macro_rules! lists {
    ($($list:ident),*) => {
        $(
            impl Query for $list {
                fn restrict(&mut self, applications: &[String]) -> Result<(), ApiError> {
                    self.own = Some(applications.to_vec());
                    Ok(())
                }
            }
        )*
    };
}

lists! {
    Search, SearchLimits, SearchSubscriptions, Names, FewNames, SearchNames, History, FewChanges,
    TopQuery
}

/// Implements [`Query`] for lists of the calls of subjects. Only the consumers among them are
/// applications.
macro_rules! usage {
    ($($list:ident),*) => {
        $(
            impl Query for $list {
                fn restrict(&mut self, applications: &[String]) -> Result<(), ApiError> {
                    let is_of_consumers =
                        self.realm.as_ref().is_none_or(|realm| realm.0 == Realm::Consumer);
                    self.own = Some(if is_of_consumers { applications.to_vec() } else { Vec::new() });
                    Ok(())
                }
            }
        )*
    };
}

usage! { SearchUsage, SearchMonth }

/// Implements [`Query`] for queries about what the path names.
macro_rules! reports {
    ($($report:ident),*) => {
        $(
            impl Query for $report {
                fn restrict(&mut self, _: &[String]) -> Result<(), ApiError> {
                    Ok(())
                }
            }
        )*
    };
}

reports! { RuleQuery, UsageQuery }

/// The size of a page. `MAX` is its maximum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageSize<const MAX: u32 = 1_000>(pub(crate) u32);

impl<const MAX: u32> Default for PageSize<MAX> {
    fn default() -> Self {
        Self(if MAX < 50 { MAX } else { 50 })
    }
}

/// Parses a number in canonical form, without leading zeros or a plus sign.
fn number<'de, D: Deserializer<'de>>(
    deserializer: D,
    max: u64,
    expected: &str,
) -> Result<u64, D::Error> {
    let text = String::deserialize(deserializer)?;
    let number = text.parse::<u64>().ok().filter(|number| number.to_string() == text);
    let number = number.filter(|number| (1..=max).contains(number));
    number.ok_or_else(|| serde::de::Error::custom(format_args!("expected {expected}")))
}

impl<'de, const MAX: u32> Deserialize<'de> for PageSize<MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = number(deserializer, MAX.into(), &format!("1 to {MAX}"))?;
        Ok(Self(u32::try_from(number).unwrap_or(MAX)))
    }
}

/// Selects a page of records.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Search {
    /// Selects the records of consumers with an id that begins with this text. The search is case-sensitive.
    #[param(value_type = Option<Name>)]
    pub(crate) search: Option<Name>,
    /// Selects the records that are active at this time.
    #[param(value_type = Option<Date>)]
    pub(crate) active_at: Option<Date>,
    /// The size of the page.
    #[serde(default)]
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000, default = 50)]
    pub(crate) limit: PageSize,
    /// The `next` of the previous page.
    #[serde(default, deserialize_with = "cursor")]
    #[param(value_type = Option<String>)]
    pub(crate) after: Option<RecordCursor>,
    /// The applications to which the actor is restricted, if it is.
    #[serde(skip)]
    #[param(ignore)]
    pub(crate) own: Option<Vec<String>>,
}

/// Selects a page of records of any subject.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct SearchLimits {
    /// Selects the records of subjects of this realm.
    #[param(value_type = Option<RealmText>)]
    pub(crate) realm: Option<RealmText>,
    /// Selects the records of subjects with this id. With the realm, an address may be in any
    /// notation.
    #[param(value_type = Option<Name>)]
    pub(crate) subject: Option<Name>,
    /// Selects the records under this rule.
    #[param(example = "login")]
    pub(crate) rule: Option<String>,
    /// Selects the records of subjects with an id that begins with this text. The search is case-sensitive.
    #[param(value_type = Option<Name>)]
    pub(crate) search: Option<Name>,
    /// Selects the records that are active at this time.
    #[param(value_type = Option<Date>)]
    pub(crate) active_at: Option<Date>,
    /// The size of the page.
    #[serde(default)]
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000, default = 50)]
    pub(crate) limit: PageSize,
    /// The `next` of the previous page.
    #[serde(default, deserialize_with = "cursor")]
    #[param(value_type = Option<String>)]
    pub(crate) after: Option<RecordCursor>,
    /// The applications to which the actor is restricted, if it is.
    #[serde(skip)]
    #[param(ignore)]
    pub(crate) own: Option<Vec<String>>,
}

/// Selects a page of subscriptions.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct SearchSubscriptions {
    /// Selects the subscriptions of this consumer.
    #[param(value_type = Option<Name>)]
    pub(crate) consumer: Option<Name>,
    /// Selects the subscriptions to this tier.
    #[param(value_type = Option<Name>)]
    pub(crate) tier: Option<Name>,
    /// Selects the subscriptions with this status.
    #[param(inline, value_type = Option<SubscriptionStatus>)]
    pub(crate) status: Option<SubscriptionStatus>,
    /// The size of the page.
    #[serde(default)]
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000, default = 50)]
    pub(crate) limit: PageSize,
    /// The `next` of the previous page.
    #[serde(default, deserialize_with = "cursor")]
    #[param(value_type = Option<String>)]
    pub(crate) after: Option<SubscriptionId>,
    /// The applications to which the actor is restricted, if it is.
    #[serde(skip)]
    #[param(ignore)]
    pub(crate) own: Option<Vec<String>>,
}

fn cursor<'de, D: Deserializer<'de>, T: FromStr>(deserializer: D) -> Result<Option<T>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let wrong = || serde::de::Error::custom("expected the \"next\" of an earlier response");
    text.parse().map(Some).map_err(|_| wrong())
}

/// Selects a page of a list that is ordered by name.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Names {
    /// The size of the page.
    #[serde(default)]
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000, default = 50)]
    pub(crate) limit: PageSize,
    /// The `next` of the previous page.
    #[serde(default, deserialize_with = "stored_name")]
    #[param(value_type = Option<String>, max_length = 250)]
    pub(crate) after: Option<String>,
    /// The applications to which the actor is restricted, if it is.
    #[serde(skip)]
    #[param(ignore)]
    pub(crate) own: Option<Vec<String>>,
}

/// Reads the `next` of an earlier response, which is a stored name. It may contain characters that
/// the API does not accept, because the console accepts them.
fn stored_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.chars().count() > 250 {
        return Err(serde::de::Error::custom("expected the \"next\" of an earlier response"));
    }
    Ok(Some(text))
}

/// Selects a page of limits of resources. The page is small, because each limit may list a thousand
/// applications.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct FewNames {
    /// The size of the page.
    #[serde(default)]
    #[param(value_type = Option<u32>, minimum = 1, maximum = 50, default = 50)]
    pub(crate) limit: PageSize<50>,
    /// The `next` of the previous page.
    #[serde(default, deserialize_with = "stored_name")]
    #[param(value_type = Option<String>, max_length = 250)]
    pub(crate) after: Option<String>,
    /// The applications to which the actor is restricted, if it is.
    #[serde(skip)]
    #[param(ignore)]
    pub(crate) own: Option<Vec<String>>,
}

/// Selects a page of rules. The page is small, because each definition may have 16 KiB.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct FewRules {
    /// The size of the page.
    #[serde(default)]
    #[param(value_type = Option<u32>, minimum = 1, maximum = 50, default = 50)]
    pub(crate) limit: PageSize<50>,
    /// The `next` of the previous page.
    #[serde(default, deserialize_with = "stored_name")]
    #[param(value_type = Option<String>, max_length = 250)]
    pub(crate) after: Option<String>,
}

impl Query for FewRules {
    /// Refuses the list, because all applications share the rules.
    fn restrict(&mut self, _: &[String]) -> Result<(), ApiError> {
        Err(ApiError::not_found("a list of rules for these applications"))
    }
}

/// Selects a page of names that match a search.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct SearchNames {
    /// Selects the names that begin with this text. The search is case-sensitive.
    #[param(value_type = Option<Name>)]
    pub(crate) search: Option<Name>,
    /// The size of the page.
    #[serde(default)]
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000, default = 50)]
    pub(crate) limit: PageSize,
    /// The `next` of the previous page.
    #[serde(default, deserialize_with = "stored_name")]
    #[param(value_type = Option<String>, max_length = 250)]
    pub(crate) after: Option<String>,
    /// The applications to which the actor is restricted, if it is.
    #[serde(skip)]
    #[param(ignore)]
    pub(crate) own: Option<Vec<String>>,
}

/// Selects a page of changes.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct History {
    /// The size of the page.
    #[serde(default)]
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000, default = 50)]
    pub(crate) limit: PageSize,
    /// The `next` of the previous page.
    #[serde(default, deserialize_with = "change")]
    #[param(value_type = Option<i64>, minimum = 1)]
    pub(crate) before: Option<i64>,
    /// The applications to which the actor is restricted, if it is.
    #[serde(skip)]
    #[param(ignore)]
    pub(crate) own: Option<Vec<String>>,
}

/// Selects a page of changes of resource limits. The page is small, because each limit may list a
/// thousand applications.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct FewChanges {
    /// The size of the page.
    #[serde(default)]
    #[param(value_type = Option<u32>, minimum = 1, maximum = 50, default = 50)]
    pub(crate) limit: PageSize<50>,
    /// The `next` of the previous page.
    #[serde(default, deserialize_with = "change")]
    #[param(value_type = Option<i64>, minimum = 1)]
    pub(crate) before: Option<i64>,
    /// The applications to which the actor is restricted, if it is.
    #[serde(skip)]
    #[param(ignore)]
    pub(crate) own: Option<Vec<String>>,
}

fn change<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    let max = i64::MAX.cast_unsigned();
    number(deserializer, max, "the \"next\" of an earlier response").map(|n| Some(n.cast_signed()))
}

/// Selects the subjects with the largest counts.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct TopQuery {
    /// The number by which the subjects are ordered.
    #[serde(default)]
    #[param(inline, value_type = Option<Ranking>, default = "denied")]
    pub(crate) by: Ranking,
    /// The number of subjects.
    #[serde(default)]
    #[param(value_type = Option<u32>, minimum = 1, maximum = 32, default = 32)]
    pub(crate) limit: PageSize<32>,
    /// The applications to which the actor is restricted, if it is.
    #[serde(skip)]
    #[param(ignore)]
    pub(crate) own: Option<Vec<String>>,
}

/// The format of a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Format {
    #[default]
    Json,
    Csv,
}

/// Selects the calls of days.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct SearchUsage {
    /// The first day in UTC. Without it, the list begins 29 days before `to`.
    #[param(value_type = Option<DayText>)]
    pub(crate) from: Option<DayText>,
    /// The last day in UTC. Without it, the list ends today.
    #[param(value_type = Option<DayText>)]
    pub(crate) to: Option<DayText>,
    /// Selects the subjects of this realm instead of consumers.
    #[param(value_type = Option<RealmText>)]
    pub(crate) realm: Option<RealmText>,
    /// Selects the subject with this id. `consumer` is another name of this parameter.
    #[serde(alias = "consumer")]
    #[param(value_type = Option<Name>)]
    pub(crate) subject: Option<Name>,
    /// Selects the calls under this rule. An empty name selects limiters without rules.
    #[param(example = "consumers")]
    pub(crate) rule: Option<String>,
    #[serde(default)]
    #[param(inline, value_type = Option<Format>, default = "json")]
    pub(crate) format: Format,
    /// The size of the page.
    #[serde(default)]
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000, default = 50)]
    pub(crate) limit: PageSize,
    /// The `next` of the previous page.
    #[serde(default, deserialize_with = "cursor")]
    #[param(value_type = Option<String>)]
    pub(crate) after: Option<UsageCursor>,
    /// The `previous` of the next page.
    #[serde(default, deserialize_with = "cursor")]
    #[param(value_type = Option<String>)]
    pub(crate) before: Option<UsageCursor>,
    /// The applications to which the actor is restricted, if it is.
    #[serde(skip)]
    #[param(ignore)]
    pub(crate) own: Option<Vec<String>>,
}

/// The number by which the subjects of a month are ordered, or their id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum MonthOrder {
    #[default]
    Subject,
    Allowed,
    Denied,
    Units,
}

impl From<MonthOrder> for UsageOrder {
    fn from(order: MonthOrder) -> Self {
        match order {
            MonthOrder::Subject => Self::Subject,
            MonthOrder::Allowed => Self::Allowed,
            MonthOrder::Denied => Self::Denied,
            MonthOrder::Units => Self::Units,
        }
    }
}

/// Selects the subjects of a month.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct SearchMonth {
    /// Selects the subjects of this realm instead of consumers.
    #[param(value_type = Option<RealmText>)]
    pub(crate) realm: Option<RealmText>,
    /// Selects the subjects with an id that begins with this text. The search is case-sensitive.
    #[param(value_type = Option<Name>)]
    pub(crate) search: Option<Name>,
    /// Selects the calls under this rule. An empty name selects limiters without rules.
    #[param(example = "consumers")]
    pub(crate) rule: Option<String>,
    /// The order: by id, or by a number, the largest first.
    #[serde(default)]
    #[param(inline, value_type = Option<MonthOrder>, default = "subject")]
    pub(crate) by: MonthOrder,
    #[serde(default)]
    #[param(inline, value_type = Option<Format>, default = "json")]
    pub(crate) format: Format,
    /// The size of the page.
    #[serde(default)]
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000, default = 50)]
    pub(crate) limit: PageSize,
    /// The `next` of the previous page.
    #[serde(default, deserialize_with = "cursor")]
    #[param(value_type = Option<String>)]
    pub(crate) after: Option<MonthCursor>,
    /// The `previous` of the next page.
    #[serde(default, deserialize_with = "cursor")]
    #[param(value_type = Option<String>)]
    pub(crate) before: Option<MonthCursor>,
    /// The applications to which the actor is restricted, if it is.
    #[serde(skip)]
    #[param(ignore)]
    pub(crate) own: Option<Vec<String>>,
}

/// Selects one of the rules that count a subject.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct RuleQuery {
    /// The name of a rule: the others are left out.
    #[param(example = "consumers")]
    pub(crate) rule: Option<String>,
}

/// Selects one of the rules that count a subject, and the tier of its requests.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct UsageQuery {
    /// The name of a rule: the others are left out.
    #[param(example = "consumers")]
    pub(crate) rule: Option<String>,
    /// The tier in the extensions of requests: rules that name it have its limits.
    #[param(example = "pro")]
    pub(crate) tier: Option<String>,
}

pub(super) const fn one() -> u64 {
    1
}

pub(super) fn units<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    number(deserializer, rl_core::MAX_UNITS, "1 to 9007199254740991 units")
}
