//! The name of a person, and the values that select the roles, from the claims of the provider.

use serde_json::{Map, Value};

/// The claims about a person.
pub(super) type Claims = Map<String, Value>;

/// The longest name of an actor, in bytes.
const MAX_NAME: usize = 250;

/// Returns the name of a person in the history, unless it would be too long.
pub(super) fn name_of(claims: &Claims, subject: &str, issuer: &str) -> Option<String> {
    let place = issuer.split_once("://").map_or(issuer, |(_, place)| place).trim_end_matches('/');
    let is_id = |char: char| !char.is_control() && !"<>".contains(char);
    let id = format!("<{subject}@{place}>");
    if subject.is_empty() || !subject.chars().all(is_id) || id.len() > MAX_NAME {
        return None;
    }
    // Other characters could imitate the id of another person, or change how the text is shown.
    let is_plain = |char: char| char.is_alphanumeric() || " ._-+@'\\".contains(char);
    let labels = ["preferred_username", "email"].into_iter().filter_map(|name| {
        let label = claims.get(name)?.as_str()?.trim();
        let is_label = !label.is_empty() && label.chars().all(is_plain);
        is_label.then(|| format!("{label} {id}")).filter(|name| name.len() <= MAX_NAME)
    });
    Some(labels.into_iter().next().unwrap_or(id))
}

/// Returns the values of a claim that is a text or a list of texts. Returns `None` if there is no
/// such claim.
pub(super) fn values_of(claims: &Claims, claim: &str) -> Option<Vec<String>> {
    match claims.get(claim)? {
        Value::String(value) => Some(vec![value.clone()]),
        Value::Array(values) => {
            let texts = values.iter().filter_map(Value::as_str);
            Some(texts.map(ToOwned::to_owned).collect())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn named(claims: Value, subject: &str) -> Option<String> {
        let claims = claims.as_object().unwrap();
        name_of(claims, subject, "https://login.example.com/realms/a/")
    }

    #[test]
    fn a_name_ends_with_the_id_that_the_provider_gives_to_one_person() {
        let id = "<f1c2@login.example.com/realms/a>";
        #[rustfmt::skip]
        let table = [
            (json!({"preferred_username": " alice ", "email": "a@example.com"}), format!("alice {id}")),
            (json!({"preferred_username": "", "email": "a@example.com"}), format!("a@example.com {id}")),
            (json!({"preferred_username": "bob <b@x>", "email": "a@example.com"}), format!("a@example.com {id}")),
            (json!({"preferred_username": "x\u{202e}y", "email": "a\nb@x"}), id.to_owned()),
            (json!({"preferred_username": "a".repeat(230), "email": 7}), id.to_owned()),
            (json!({"preferred_username": "José O'Neil"}), format!("José O'Neil {id}")),
        ];
        for (claims, expected) in table {
            assert_eq!(named(claims.clone(), "f1c2"), Some(expected), "{claims}");
        }
        for subject in ["", "a\nb", "a> <b", &"x".repeat(240)] {
            assert_eq!(named(json!({}), subject), None, "{subject:?}");
        }
    }

    #[test]
    fn a_claim_is_a_text_or_a_list_of_texts() {
        let claims = json!({"one": "a b", "two": ["a", 7, "b"], "none": [], "other": {"a": "b"}});
        let claims = claims.as_object().unwrap();
        assert_eq!(values_of(claims, "one").unwrap(), ["a b"]);
        assert_eq!(values_of(claims, "two").unwrap(), ["a", "b"]);
        assert_eq!(values_of(claims, "none").unwrap(), [""; 0]);
        assert_eq!((values_of(claims, "other"), values_of(claims, "x")), (None, None));
    }
}
