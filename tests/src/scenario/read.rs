//! Reads [`Scenario`]s from a file.

use std::path::Path;

use rl_core::store::Mode;
use rl_core::time::Timestamp;
use rl_core::{Limit, Policy};
use serde_json::Value;

use super::fields::{Fields, Malformed, WHOLE};
use super::{
    Expect, ExpectPart, Limits, NamedPolicy, Operation, Scenario, Step, StepPart, Unit, Wait,
};

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
    const KNOWN: [&str; 7] = ["id", "note", "limits", "policies", "unit", "start", "steps"];
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
    let (mut names, policies) = policies(&fields)?;

    let mut steps = Vec::new();
    for (value, number) in fields.list("steps")?.iter().zip(1..) {
        let place = format!("{}, step {number}", fields.place());
        steps.push(step(&place, value, unit, start, &policies, &mut names)?);
    }
    Ok(Scenario { id: id.to_owned(), policies, unit, steps })
}

/// Returns the names of the limits of each policy, and the policies.
fn policies(fields: &Fields<'_>) -> Result<(Vec<Vec<String>>, Vec<NamedPolicy>), Malformed> {
    let Some(value) = fields.get("policies") else {
        let (names, limits) = limits(fields)?;
        return Ok((vec![names], vec![NamedPolicy { name: String::new(), limits }]));
    };
    let map = value.as_object().filter(|map| !map.is_empty());
    let map = map.ok_or_else(|| fields.error("policies", "a map of names to limits"))?;
    if fields.get("limits").is_some() {
        return Err(fields.error("limits", "no such field beside \"policies\""));
    }
    let mut all = (Vec::new(), Vec::new());
    for (name, value) in map {
        let place = format!("{}, policy {name}", fields.place());
        // Wraps the limits of a policy, so that they have the form of the field "limits".
        let wrapped = serde_json::json!({ "limits": value });
        let (names, limits) = limits(&Fields::of(&place, &wrapped, &["limits"])?)?;
        all.0.push(names);
        all.1.push(NamedPolicy { name: name.clone(), limits });
    }
    Ok(all)
}

/// Returns the names of the limits, and the policy that consists of them. A file stays valid if the
/// library does not support one of its limits.
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

/// Parses a step. `names` contains the names of the limits of each policy. The operation
/// `set_limits` changes it.
fn step(
    place: &str,
    value: &Value,
    unit: Unit,
    start: u64,
    policies: &[NamedPolicy],
    names: &mut [Vec<String>],
) -> Result<Step, Malformed> {
    const KNOWN: [&str; 10] =
        ["t", "op", "cost", "subject", "parts", "repeat", "expect", "limit", "limits", "note"];
    let fields = Fields::of(place, value, &KNOWN)?;

    let at = fields
        .get("t")
        .and_then(Value::as_i64)
        .and_then(|t| start.checked_add_signed(t)?.checked_mul(unit.micros()))
        .filter(|micros| *micros <= rl_core::MAX_UNITS)
        .map(Timestamp::from_micros)
        .ok_or_else(|| fields.error("t", "a whole number, at a time after 1970 and before 2255"))?;
    let is_of_parts = policies.iter().any(|policy| !policy.name.is_empty());
    let parts = if is_of_parts { parts(&fields, policies)? } else { vec![sole_part(&fields)?] };
    let operation = match fields.text("op")?.unwrap_or("check") {
        "check" => Operation::Decide(Mode::Check),
        "check_up_to" => Operation::Decide(Mode::CheckUpTo),
        "peek" => Operation::Decide(Mode::Peek),
        "charge" => Operation::Decide(Mode::Charge),
        _ if is_of_parts => {
            return Err(fields.error("op", "one of check, check_up_to, peek, charge"));
        }
        "refund" => Operation::Refund,
        "reset" => {
            let names = &names[0];
            let limit = |value: &Value| name_in(names, value.as_str()?);
            Operation::Reset(fields.read("limit", &one_of(names), limit)?)
        }
        "set_limits" => {
            let (new_names, limits) = limits(&fields)?;
            names[0] = new_names;
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
        Some(value) => {
            let names: Vec<_> = parts.iter().map(|part| &*names[part.policy]).collect();
            expect(&format!("{place}, expect"), value, &names, is_of_parts)?
        }
        None => Expect::default(),
    };
    Ok(Step { at, parts, operation, repeat, expect })
}

/// Returns the only part of a step, in a scenario with one policy.
fn sole_part(fields: &Fields<'_>) -> Result<StepPart, Malformed> {
    if fields.get("parts").is_some() {
        return Err(fields.error("parts", "no such field without \"policies\""));
    }
    let subject = fields.text("subject")?.unwrap_or(SUBJECT).to_owned();
    Ok(StepPart { policy: 0, subject, cost: fields.whole("cost")?.unwrap_or(1) })
}

/// Returns the parts of a step, each under one of the policies.
fn parts(fields: &Fields<'_>, policies: &[NamedPolicy]) -> Result<Vec<StepPart>, Malformed> {
    for field in ["cost", "subject"] {
        if fields.get(field).is_some() {
            return Err(fields.error(field, "a field of the parts"));
        }
    }
    let names: Vec<_> = policies.iter().map(|policy| policy.name.clone()).collect();
    let part = |(value, number): (&Value, usize)| {
        let place = format!("{}, part {number}", fields.place());
        let fields = Fields::of(&place, value, &["policy", "subject", "cost"])?;
        let policy = fields.text("policy")?.and_then(|name| names.iter().position(|n| n == name));
        let policy = policy.ok_or_else(|| fields.error("policy", one_of(&names)))?;
        let subject = fields.text("subject")?.unwrap_or(SUBJECT).to_owned();
        Ok(StepPart { policy, subject, cost: fields.whole("cost")?.unwrap_or(1) })
    };
    fields.list("parts")?.iter().zip(1..).map(part).collect()
}

/// Parses an expected decision. `names` contains the names of the limits of each part. For a step
/// with parts, each field about limits is a list with one entry for each part.
fn expect(
    place: &str,
    value: &Value,
    names: &[&[String]],
    is_of_parts: bool,
) -> Result<Expect, Malformed> {
    const KNOWN: [&str; 6] =
        ["allowed", "granted", "remaining", "retry_after", "reset_after", "over"];
    let fields = Fields::of(place, value, &KNOWN)?;
    let wait = |value: &Value| match value.as_str() {
        Some("never") => Some(Wait::Never),
        _ => value.as_u64().map(Wait::For),
    };
    let mut parts = vec![ExpectPart::default(); names.len()];
    for field in ["remaining", "reset_after", "over"] {
        let Some(value) = fields.get(field) else { continue };
        let list = match value.as_array().filter(|_| is_of_parts) {
            Some(list) if list.len() == names.len() => list.as_slice(),
            _ if is_of_parts => {
                return Err(fields.error(field, "a list of one entry for each part"));
            }
            _ => std::slice::from_ref(value),
        };
        for ((part, names), value) in parts.iter_mut().zip(names).zip(list) {
            let malformed = |expected: String| fields.error(field, expected);
            match field {
                "remaining" => part.remaining = by_name(value, names).map_err(malformed)?,
                "reset_after" => part.reset_after = by_name(value, names).map_err(malformed)?,
                _ => part.over = Some(over(value, names).map_err(malformed)?),
            }
        }
    }
    Ok(Expect {
        allowed: fields.read("allowed", "true or false", Value::as_bool)?,
        granted: fields.whole("granted")?,
        retry_after: fields.read("retry_after", &format!("{WHOLE}, or \"never\""), wait)?,
        parts,
    })
}

/// Parses a list of names of limits. Sorts them in the order of the policy, because a decision
/// reports them in that order. The error says what was expected.
fn over(value: &Value, names: &[String]) -> Result<Vec<String>, String> {
    let named = || -> Option<Vec<String>> {
        value.as_array()?.iter().map(|name| name_in(names, name.as_str()?)).collect()
    };
    let named = named().ok_or_else(|| format!("a list of names, each {}", one_of(names)))?;
    Ok(names.iter().filter(|name| named.contains(name)).cloned().collect())
}

/// Parses the expected numbers of all limits or of some limits. If there is only one limit, a plain
/// number is enough. The error says what was expected.
fn by_name(value: &Value, names: &[String]) -> Result<Vec<(String, u64)>, String> {
    let numbers = match (value, names) {
        (Value::Object(map), _) => map
            .iter()
            .map(|(name, number)| Some((name_in(names, name)?, number.as_u64()?)))
            .collect(),
        (number, [name]) => number.as_u64().map(|number| vec![(name.clone(), number)]),
        _ => None,
    };
    numbers.ok_or_else(|| {
        let bare = match names {
            [_] => "a whole number, or ",
            _ => "",
        };
        format!("{bare}a map of names to whole numbers, each name {}", one_of(names))
    })
}

fn name_in(names: &[String], name: &str) -> Option<String> {
    names.iter().find(|known| *known == name).cloned()
}

fn one_of(names: &[String]) -> String {
    format!("one of {}", names.join(", "))
}
