use std::fmt;

use serde_json::{Map, Value};

/// The error for an invalid scenario file. It contains the position, and what was expected there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed(String);

impl Malformed {
    pub(super) fn new(place: &str, why: impl fmt::Display) -> Self {
        Self(format!("{place}: {why}"))
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Malformed {}

/// A JSON object and its position in the file, which every error contains.
#[derive(Clone, Debug)]
pub(super) struct Fields<'a> {
    place: String,
    object: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    /// Creates a view of the object at `place`. An unknown field is an error. Otherwise a misspelt
    /// expectation would not be checked.
    pub(super) fn of(place: &str, value: &'a Value, known: &[&str]) -> Result<Self, Malformed> {
        let object = value.as_object().ok_or_else(|| {
            Malformed::new(place, format_args!("expected an object, got {}", shown(value)))
        })?;
        if let Some(field) = object.keys().find(|field| !known.contains(&field.as_str())) {
            let known = known.join(", ");
            return Err(Malformed::new(
                place,
                format_args!("field {field:?}: expected one of {known}"),
            ));
        }
        let place = place.to_owned();
        Ok(Self { place, object })
    }

    pub(super) fn place(&self) -> &str {
        &self.place
    }

    pub(super) fn get(&self, field: &str) -> Option<&'a Value> {
        self.object.get(field)
    }

    /// Returns an error about a field that is missing or has an unexpected value.
    pub(super) fn error(&self, field: &str, expected: impl fmt::Display) -> Malformed {
        let got = self.get(field).map_or_else(|| "nothing".to_owned(), shown);
        Malformed::new(&self.place, format_args!("field {field:?}: expected {expected}, got {got}"))
    }

    /// Parses a field with `read`, if the field is present.
    pub(super) fn read<T>(
        &self,
        field: &str,
        expected: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Malformed> {
        self.get(field)
            .map(|value| read(value).ok_or_else(|| self.error(field, expected)))
            .transpose()
    }

    /// Returns a field with a whole number of at least 0.
    pub(super) fn whole(&self, field: &str) -> Result<Option<u64>, Malformed> {
        self.read(field, WHOLE, Value::as_u64)
    }

    pub(super) fn text(&self, field: &str) -> Result<Option<&'a str>, Malformed> {
        self.read(field, "a text", Value::as_str)
    }

    pub(super) fn list(&self, field: &str) -> Result<&'a [Value], Malformed> {
        self.get(field)
            .and_then(Value::as_array)
            .map(Vec::as_slice)
            .ok_or_else(|| self.error(field, "a list"))
    }
}

pub(super) const WHOLE: &str = "a whole number, 0 or more";

/// Returns a value as it is written in the file, shortened for a message.
fn shown(value: &Value) -> String {
    const LENGTH: usize = 80;
    let text = value.to_string();
    let mut shown: String = text.chars().take(LENGTH).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}
