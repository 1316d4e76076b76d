//! Lists of texts that may be written as one text.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a text or a list of texts")]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

pub(crate) fn serialize<S: Serializer>(
    values: &[String],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match values {
        [one] => one.serialize(serializer),
        many => many.serialize(serializer),
    }
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<String>, D::Error> {
    Ok(match OneOrMany::deserialize(deserializer)? {
        OneOrMany::One(one) => vec![one],
        OneOrMany::Many(many) => many,
    })
}

/// Reads a list that may be left out.
pub(crate) fn optional<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<String>>, D::Error> {
    deserialize(deserializer).map(Some)
}
