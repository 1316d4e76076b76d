//! `serde` implementations. A [`Limit`] and a [`Period`] are read and written in their text form
//! (`"10/second"`, `"15minutes"`), and a [`Policy`] as a list of limits or a map of names to
//! limits. A [`Decision`] is only written, for logs and reports.

use std::fmt;
use std::time::Duration;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, SerializeStruct, Serializer};

use crate::decision::{Decision, LimitStatus, PartStatus, RetryAfter};
use crate::model::{Anchor, Cost, Limit, Period};
use crate::policy::Policy;

macro_rules! as_text {
    ($($word:ident),*) => {$(
        impl Serialize for $word {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $word {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                text.parse().map_err(|error| {
                    de::Error::custom(format_args!("{:?}: {error}", text.chars().take(64).collect::<String>()))
                })
            }
        }
    )*};
}

as_text!(Limit, Period);

impl Serialize for Cost {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.units())
    }
}

impl<'de> Deserialize<'de> for Cost {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        u64::deserialize(deserializer).map(Self::new)
    }
}

/// A map of names to limits, in the order of the policy.
impl Serialize for Policy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.limits().len()))?;
        for limit in self.limits() {
            map.serialize_entry(limit.name(), &limit.limit())?;
        }
        map.end()
    }
}

/// The text form of an anchor with an offset begins with this.
const OFFSET: &str = "clock:offset=";

impl Serialize for Anchor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::FirstRequest => serializer.serialize_str("first-request"),
            Self::Clock => serializer.serialize_str("clock"),
            Self::ClockOffset(offset) => serializer.collect_str(&format_args!("{OFFSET}{offset}")),
        }
    }
}

impl<'de> Deserialize<'de> for Anchor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match &*std::borrow::Cow::<'de, str>::deserialize(deserializer)? {
            "first-request" => Ok(Self::FirstRequest),
            "clock" => Ok(Self::Clock),
            other => {
                let known = &["first-request", "clock", "clock:offset=PERIOD"];
                let offset = other.strip_prefix(OFFSET).and_then(|offset| offset.parse().ok());
                offset
                    .map(Self::ClockOffset)
                    .ok_or_else(|| de::Error::unknown_variant(other, known))
            }
        }
    }
}

/// Writes the verdict, its origin, and the status of every limit. Fields that end in `_us` are
/// microseconds.
///
/// The limits are those of the governing part. If the request has several parts, `parts` lists all
/// of them, even those that clients must not see.
impl Serialize for Decision {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let limits: Vec<_> = self.limits().collect();
        let parts: Vec<_> = self.parts().collect();
        let has_parts = self.has_parts();
        let mut fields = serializer.serialize_struct("Decision", 6 + usize::from(has_parts))?;
        fields.serialize_field("allowed", &self.is_allowed())?;
        fields.serialize_field("origin", self.origin().as_str())?;
        fields.serialize_field("cost", &self.cost())?;
        fields.serialize_field("granted", &self.granted())?;
        fields.serialize_field("retry_after_us", &self.retry_after())?;
        fields.serialize_field("limits", &limits)?;
        if has_parts {
            fields.serialize_field("parts", &parts)?;
        } else {
            fields.skip_field("parts")?;
        }
        fields.end()
    }
}

impl Serialize for PartStatus<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let limits: Vec<_> = self.limits().collect();
        let mut fields = serializer.serialize_struct("PartStatus", 8)?;
        fields.serialize_field("rule", &self.rule())?;
        fields.serialize_field("over", &self.is_over())?;
        fields.serialize_field("shadow", &self.is_shadow())?;
        fields.serialize_field("disclosed", &self.is_disclosed())?;
        fields.serialize_field("cost", &self.cost())?;
        fields.serialize_field("charged", &self.charged())?;
        fields.serialize_field("retry_after_us", &self.retry_after())?;
        fields.serialize_field("limits", &limits)?;
        fields.end()
    }
}

/// Writes the used and remaining units as `null` if the counter was not read.
impl Serialize for LimitStatus<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("LimitStatus", 6)?;
        fields.serialize_field("name", self.name())?;
        fields.serialize_field("limit", &self.limit())?;
        let if_known = |units: u64| self.is_known().then_some(units);
        fields.serialize_field("used", &if_known(self.used()))?;
        fields.serialize_field("remaining", &if_known(self.remaining()))?;
        fields.serialize_field("reset_after_us", &micros(self.reset_after()))?;
        fields.serialize_field("retry_after_us", &self.retry_after())?;
        fields.end()
    }
}

/// Writes microseconds, 0 for now, or the word `never` if no wait helps.
impl Serialize for RetryAfter {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Now => serializer.serialize_u64(0),
            Self::In(wait) => serializer.serialize_u64(micros(*wait)),
            Self::Never => serializer.serialize_str("never"),
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl<'de> Deserialize<'de> for Policy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Limits;

        impl<'de> Visitor<'de> for Limits {
            type Value = Policy;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of limits, or a map of names to limits, such as \"10/second\"")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Policy, A::Error> {
                let mut policy = Policy::builder();
                while let Some(limit) = seq.next_element()? {
                    policy = policy.limit(limit);
                }
                policy.build().map_err(de::Error::custom)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Policy, A::Error> {
                let mut policy = Policy::builder();
                while let Some((name, limit)) = map.next_entry::<String, Limit>()? {
                    policy = policy.named(&name, limit);
                }
                policy.build().map_err(de::Error::custom)
            }
        }

        deserializer.deserialize_any(Limits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Outcome;

    #[test]
    fn policies_are_read_as_list_and_map_and_written_as_map() {
        let list: Policy = serde_json::from_str(r#"["10/second", "5000/day:clock"]"#).unwrap();
        let map: Policy =
            serde_json::from_str(r#"{"second": "10/second", "day": "5000/day:clock"}"#).unwrap();
        assert_eq!(list, map);
        assert_eq!(
            serde_json::to_string(&list).unwrap(),
            r#"{"second":"10/second","day":"5000/day:clock"}"#
        );
    }

    #[test]
    fn a_decision_is_written_with_all_its_limits() {
        let policy = Policy::new([Limit::per_second(2), Limit::per_day(0)]).unwrap();
        let outcomes = [Outcome::denied(2, 400_000, 400_000), Outcome::never(0, 0)];
        let at = crate::time::Timestamp::EPOCH;
        let decision = Decision::decided(policy, Cost::ONE, 0, at, outcomes);
        assert_eq!(
            serde_json::to_value(&decision).unwrap(),
            serde_json::json!({
                "allowed": false, "origin": "store", "cost": 1, "granted": 0,
                "retry_after_us": "never",
                "limits": [
                    {"name": "second", "limit": "2/second", "used": 2, "remaining": 0,
                     "reset_after_us": 400_000, "retry_after_us": 400_000},
                    {"name": "day", "limit": "0/day", "used": 0, "remaining": 0,
                     "reset_after_us": 0, "retry_after_us": "never"},
                ],
            })
        );
    }

    #[test]
    fn a_decision_on_several_parts_is_written_with_all_of_them() {
        let limiter = crate::RateLimiter::builder().limit(Limit::per_second(1)).build().unwrap();
        let of = |limit: &str| Policy::new([limit.parse().unwrap()]).unwrap();
        let (key, all) = (crate::Subject::user("alice"), crate::Subject::global());
        let (of_key, of_fleet) = (of("2/second"), of("9/day"));
        let parts = [
            crate::Part::new(&key, &of_key, 2.into()),
            crate::Part::new(&all, &of_fleet, 1.into()).undisclosed(),
        ];
        let crate::MaybeReady::Ready(Some(decision)) = limiter.request(&parts).check() else {
            panic!("memory decides at once")
        };
        let written = serde_json::to_value(&decision).unwrap();
        assert_eq!(written["limits"][0]["limit"], "2/second");
        assert_eq!(
            written["parts"],
            serde_json::json!([
                {"rule": null, "over": false, "shadow": false, "disclosed": true, "cost": 2, "charged": 2,
                 "retry_after_us": 0, "limits": [
                    {"name": "second", "limit": "2/second", "used": 2, "remaining": 0,
                     "reset_after_us": 1_000_000, "retry_after_us": 0}]},
                {"rule": null, "over": false, "shadow": false, "disclosed": false, "cost": 1, "charged": 1,
                 "retry_after_us": 0, "limits": [
                    {"name": "day", "limit": "9/day", "used": 1, "remaining": 8,
                     "reset_after_us": 86_400_000_000_u64, "retry_after_us": 0}]},
            ])
        );
    }

    #[test]
    fn the_units_of_a_limit_that_was_not_read_are_null() {
        let policy = Policy::new([Limit::per_second(2)]).unwrap();
        let at = crate::time::Timestamp::EPOCH;
        let decision = Decision::never_granted(&policy, Cost::new(3), 3, at);
        let limit = &serde_json::to_value(&decision).unwrap()["limits"][0];
        assert!(limit["used"].is_null() && limit["remaining"].is_null(), "{limit}");
    }

    #[test]
    fn anchors_are_words() {
        assert_eq!(serde_json::from_str::<Anchor>("\"clock\"").unwrap(), Anchor::Clock);
        let offset = Anchor::ClockOffset(Period::HOUR);
        assert_eq!(serde_json::to_string(&offset).unwrap(), "\"clock:offset=hour\"");
        assert_eq!(serde_json::from_str::<Anchor>("\"clock:offset=1h\"").unwrap(), offset);
        assert_eq!(serde_json::to_string(&Anchor::default()).unwrap(), "\"first-request\"");
        assert!(serde_json::from_str::<Anchor>("\"monday\"").is_err());
    }

    #[test]
    fn errors_name_the_value() {
        let error = serde_json::from_str::<Limit>(r#""10/fortnight""#).unwrap_err().to_string();
        assert!(error.contains("10/fortnight") && error.contains("column 4"), "{error}");
        let error = serde_json::from_str::<Policy>(r#"[]"#).unwrap_err().to_string();
        assert!(error.contains("at least one limit"), "{error}");
    }
}
