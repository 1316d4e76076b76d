//! Reads [`Scenario`]s from a file.

use std::path::Path;

use rl_core::store::Mode;
use rl_core::time::Timestamp;
use rl_core::{Limit, Policy};
use serde_json::Value;

use super::fields::{Fields, Malformed, WHOLE};
use super::{Expect, Limits, Operation, Scenario, Step, Unit, Wait};

/// The default time of `t = 0` in a scenario: 2025-06-15T15:06:40Z, a full second.
const START_SECS: u64 = 1_750_000_000;

/// The subject of a step without a subject.
const SUBJECT: &str = "subject";

const OPERATIONS: &str = "one of check, check_up_to, peek, charge, refund, reset, set_limits";

/// Reads the scenarios of a file.
///
/// # Errors
///
/// Returns an error if the file cannot be read, is not JSON, or has an invalid form. The error
/// names the file, the scenario, the step, the field and what was expected.
pub fn read(file: &Path) -> Result<Vec<Scenario>, Malformed> {
    let name = file.display().to_string();
    let text = std::fs::read_to_string(file).map_err(|why| Malformed::new(&name, why))?;
    let value: Value = serde_json::from_str(&text)
        .map_err(|why| Malformed::new(&name, format_args!("expected JSON: {why}")))?;
    let scenarios = Fields::of(&name, &value, &["scenarios", "note"])?.list("scenarios")?;
    scenarios.iter().zip(1..).map(|(value, number)| scenario(&name, number, value)).collect()
}

fn scenario(file: &str, number: usize, value: &Value) -> Result<Scenario, Malformed> {
    const KNOWN: [&str; 6] = ["id", "note", "limits", "unit", "start", "steps"];
    let place = match value.get("id").and_then(Value::as_str) {
        Some(id) => format!("{file}: scenario {id}"),
        None => format!("{file}: scenario number {number}"),
    };
    let fields = Fields::of(&place, value, &KNOWN)?;
    let id = fields.text("id")?.ok_or_else(|| fields.error("id", "a text"))?;

    let unit = match fields.text("unit")? {
        Some("us") => Unit::Micros,
        Some("ms") => Unit::Millis,
        Some("s") => Unit::Seconds,
        _ => return Err(fields.error("unit", "one of \"us\", \"ms\", \"s\"")),
    };
    let start = match fields.whole("start")? {
        Some(start) => start,
        None => START_SECS * 1_000_000 / unit.micros(),
    };
    let (first_names, limits) = limits(&fields)?;

    let mut names = first_names;
    let mut steps = Vec::new();
    for (value, number) in fields.list("steps")?.iter().zip(1..) {
        let place = format!("{}, step {number}", fields.place());
        steps.push(step(&place, value, unit, start, &mut names)?);
    }
    Ok(Scenario { id: id.to_owned(), limits, unit, steps })
}

/// Returns the names of the limits, and the policy that consists of them. A limit that the library
/// does not support is not a fault of the file.
fn limits(fields: &Fields<'_>) -> Result<(Vec<String>, Limits), Malformed> {
    const EXPECTED: &str = "a map of names to limits, such as {\"second\": \"10/second\"}";
    let map = fields
        .get("limits")
        .and_then(Value::as_object)
        .ok_or_else(|| fields.error("limits", EXPECTED))?;
    let mut policy = Ok(Policy::builder());
    for (name, limit) in map {
        let limit = limit.as_str().ok_or_else(|| fields.error("limits", EXPECTED))?;
        policy = match (policy, limit.parse::<Limit>()) {
            (Ok(policy), Ok(limit)) => Ok(policy.named(name, limit)),
            (Ok(_), Err(unknown)) | (Err(unknown), _) => Err(unknown),
        };
    }
    let policy = match policy.map(rl_core::PolicyBuilder::build) {
        Ok(Ok(policy)) => Ok(policy),
        Ok(Err(why)) => {
            return Err(Malformed::new(fields.place(), format_args!("field \"limits\": {why}")));
        }
        Err(unknown) => Err(unknown),
    };
    Ok((map.keys().cloned().collect(), policy))
}

/// Parses a step. `names` contains the names of the current limits, and changes with `set_limits`.
fn step(
    place: &str,
    value: &Value,
    unit: Unit,
    start: u64,
    names: &mut Vec<String>,
) -> Result<Step, Malformed> {
    const KNOWN: [&str; 9] =
        ["t", "op", "cost", "subject", "repeat", "expect", "limit", "limits", "note"];
    let fields = Fields::of(place, value, &KNOWN)?;

    let at = fields
        .get("t")
        .and_then(Value::as_i64)
        .and_then(|t| start.checked_add_signed(t)?.checked_mul(unit.micros()))
        .filter(|micros| *micros <= rl_core::MAX_UNITS)
        .map(Timestamp::from_micros)
        .ok_or_else(|| fields.error("t", "a whole number, at a time after 1970 and before 2255"))?;
    let cost = fields.whole("cost")?.unwrap_or(1);
    let operation = match fields.text("op")?.unwrap_or("check") {
        "check" => Operation::Decide(Mode::Check, cost),
        "check_up_to" => Operation::Decide(Mode::CheckUpTo, cost),
        "peek" => Operation::Decide(Mode::Peek, cost),
        "charge" => Operation::Decide(Mode::Charge, cost),
        "refund" => Operation::Refund(cost),
        "reset" => Operation::Reset(
            fields.read("limit", &one_of(names), |value| name_in(names, value.as_str()?))?,
        ),
        "set_limits" => {
            let (new_names, limits) = limits(&fields)?;
            *names = new_names;
            Operation::SetLimits(limits)
        }
        _ => return Err(fields.error("op", OPERATIONS)),
    };
    for (field, belongs) in [
        ("limit", matches!(operation, Operation::Reset(_))),
        ("limits", matches!(operation, Operation::SetLimits(_))),
    ] {
        if !belongs && fields.get(field).is_some() {
            return Err(fields.error(field, "no such field with this operation"));
        }
    }

    let repeat = fields.whole("repeat")?.unwrap_or(1);
    if repeat == 0 {
        return Err(fields.error("repeat", "a whole number, 1 or more"));
    }
    let expect = match fields.get("expect") {
        Some(value) => expect(&format!("{place}, expect"), value, names)?,
        None => Expect::default(),
    };
    Ok(Step {
        at,
        subject: fields.text("subject")?.unwrap_or(SUBJECT).to_owned(),
        operation,
        repeat,
        expect,
    })
}

fn expect(place: &str, value: &Value, names: &[String]) -> Result<Expect, Malformed> {
    const KNOWN: [&str; 6] =
        ["allowed", "granted", "remaining", "retry_after", "reset_after", "over"];
    let fields = Fields::of(place, value, &KNOWN)?;
    let wait = |value: &Value| match value.as_str() {
        Some("never") => Some(Wait::Never),
        _ => value.as_u64().map(Wait::For),
    };
    let over = |value: &Value| {
        let named: Option<Vec<String>> =
            value.as_array()?.iter().map(|name| name_in(names, name.as_str()?)).collect();
        // The names are put in the order of the policy, in which they are compared.
        named.map(|named| names.iter().filter(|name| named.contains(name)).cloned().collect())
    };
    let expected_over = format!("a list of names, each {}", one_of(names));
    Ok(Expect {
        allowed: fields.read("allowed", "true or false", Value::as_bool)?,
        granted: fields.whole("granted")?,
        remaining: by_name(&fields, "remaining", names)?,
        retry_after: fields.read("retry_after", &format!("{WHOLE}, or \"never\""), wait)?,
        reset_after: by_name(&fields, "reset_after", names)?,
        over: fields.read("over", &expected_over, over)?,
    })
}

/// Parses numbers for all limits or for some of them. If there is only one limit, a plain number is
/// enough.
fn by_name(
    fields: &Fields<'_>,
    field: &str,
    names: &[String],
) -> Result<Vec<(String, u64)>, Malformed> {
    let bare = match names {
        [_] => "a whole number, or ",
        _ => "",
    };
    let expected = format!("{bare}a map of names to whole numbers, each name {}", one_of(names));
    let read = |value: &Value| match (value, names) {
        (Value::Object(map), _) => map
            .iter()
            .map(|(name, number)| Some((name_in(names, name)?, number.as_u64()?)))
            .collect(),
        (number, [name]) => Some(vec![(name.clone(), number.as_u64()?)]),
        _ => None,
    };
    Ok(fields.read(field, &expected, read)?.unwrap_or_default())
}

fn name_in(names: &[String], name: &str) -> Option<String> {
    names.iter().find(|known| *known == name).cloned()
}

fn one_of(names: &[String]) -> String {
    format!("one of {}", names.join(", "))
}
