//! `serde` for the words that stand in configuration, in their text form: a [`Limit`] is
//! `"10/second"`, a [`Period`] `"15minutes"`, a [`Policy`] a list of limits or a map of names to
//! limits.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};

use super::{Cost, Limit, NamedLimit, Period, Policy};

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

impl Serialize for NamedLimit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry("name", self.name())?;
        map.serialize_entry("limit", &self.limit())?;
        map.end()
    }
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
    fn errors_name_the_value() {
        let error = serde_json::from_str::<Limit>(r#""10/fortnight""#).unwrap_err().to_string();
        assert!(error.contains("10/fortnight") && error.contains("column 4"), "{error}");
        let error = serde_json::from_str::<Policy>(r#"[]"#).unwrap_err().to_string();
        assert!(error.contains("at least one limit"), "{error}");
    }
}
