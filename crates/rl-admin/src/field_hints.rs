//! Hints about the fields of a request body, for error messages.

/// Returns the name among `known` that `name` probably means.
pub(crate) fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let close = |other: &&str| distance(name, other) <= (name.len() / 4).min(3);
    known.iter().copied().filter(close).min_by_key(|other| distance(name, other))
}

/// Returns the number of characters to insert, remove or replace to get from one text to the other.
/// Long texts are not compared, because a client chooses them.
fn distance(one: &str, other: &str) -> usize {
    if one.len() > 40 {
        return usize::MAX;
    }
    let mut row: Vec<usize> = (0..=other.chars().count()).collect();
    for (index, a) in one.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], index + 1);
        for (column, b) in other.chars().enumerate() {
            let cost = diagonal + usize::from(a != b);
            diagonal = row[column + 1];
            row[column + 1] = cost.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row.last().copied().unwrap_or_default()
}

/// Returns an object with an example of each of these fields.
pub(crate) fn example(fields: &[&str]) -> String {
    let field = |name: &&str| {
        let value = match *name {
            "consumer_id" => "\"abc123\"",
            "status" => "\"active\"",
            "from_date" | "until" => "\"2026-01-01T00:00:00Z\"",
            "to_date" => "\"2026-12-31T23:59:59Z\"",
            "realm" => "\"consumer\"",
            "subject" => "\"abc123\"",
            "limits" => "[\"100/minute\"]",
            "tier" => "\"gold\"",
            "name" => "\"payments\"",
            "apps" => "[\"shop\"]",
            "max_permits" => "100",
            "rate" => "10",
            _ => "…",
        };
        format!("\"{name}\": {value}")
    };
    format!("{{{}}}", fields.iter().map(field).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_name_is_recognized_and_another_name_is_not() {
        let known = ["from_date", "to_date", "per_minute_call_limit", "rate"];
        for (name, meant) in [
            ("per_minut_call_limit", Some("per_minute_call_limit")),
            ("per_minute_cal_limits", Some("per_minute_call_limit")),
            ("fromdate", Some("from_date")),
            ("rates", Some("rate")),
            ("limits", None),
            ("x", None),
            ("", None),
            (&"x".repeat(5_000), None),
        ] {
            assert_eq!(nearest(name, &known), meant, "{name}");
        }
    }
}
