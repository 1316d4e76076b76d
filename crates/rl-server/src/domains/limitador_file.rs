//! Reads the `limits.yaml` of limitador.
//!
//! A limit of limitador counts in windows of fixed length, which begin at the first request, as
//! limits here do by default: `5/minute`. A request is counted under all limits of its namespace
//! whose conditions it satisfies.
//!
//! Limits with the same name, conditions and variables become one rule with several limits. A rule
//! has the name of its limit, or else a hash of its conditions and variables, so that its counters
//! survive a change of the maximum.

use std::collections::{BTreeSet, HashMap, HashSet};

use indexmap::IndexMap;
use rl_admin::settings::yaml::{TextError, from_yaml};
use rl_core::{Limit, Period};
use serde::Deserialize;
use serde_saphyr::Spanned;

use super::compile::short_hash;
use super::expression::Expression;
use super::imported::{Differences, Imported, NamedText};
use super::rule::{DomainRule, Domains};

/// The largest number of rules that may count one request.
const MAX_RULES: usize = 8;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitText {
    namespace: Spanned<String>,
    max_value: Spanned<u64>,
    seconds: Spanned<u64>,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    conditions: Option<Vec<Spanned<String>>>,
    #[serde(default)]
    variables: Option<Vec<Spanned<String>>>,
}

/// The values that the limits of one rule have in common.
#[derive(PartialEq, Eq, Hash)]
struct RuleIdentity {
    name: Option<String>,
    when: BTreeSet<String>,
    per: BTreeSet<String>,
}

/// Reads a file.
///
/// # Errors
///
/// Returns an error for the first value that is not valid.
pub(super) fn read(file: &NamedText) -> Result<Imported, String> {
    let NamedText { name: file, text } = file;
    let limits: Option<Vec<LimitText>> = from_yaml(text).map_err(|error| error.in_file(file))?;
    let limits = limits.unwrap_or_default();
    if limits.is_empty() {
        return Err(format!("{file}: the file is empty: expected a list of limits"));
    }
    let mut differences = Differences::default();
    differences.everywhere(
        "an expression that cannot be evaluated means that its limit does not count the request; \
         limitador fails the call if the reason is another than a missing entry",
    );
    let mut by_namespace = IndexMap::<String, IndexMap<RuleIdentity, Vec<String>>>::new();
    let mut known = HashSet::new();
    for text in limits {
        let LimitText { namespace, max_value, seconds, name, id, conditions, variables } = text;
        if namespace.value.is_empty() {
            let reason = "namespace \"\": expected the name of a namespace".to_owned();
            return Err(TextError::new(namespace.referenced, reason).in_file(file));
        }
        let when = expressions(file, "conditions", conditions, &mut differences)?;
        let per = expressions(file, "variables", variables, &mut differences)?;
        // Limits that agree in these are one limit for limitador.
        let identity = (namespace.value.clone(), seconds.value, when.clone(), per.clone());
        if !known.insert(identity) {
            let text = "a limit has the namespace, seconds, conditions and variables of an earlier \
                        one: it has no effect, as in limitador";
            differences.add(file, namespace.referenced, text.to_owned());
            continue;
        }
        let limit = limit(&max_value, &seconds).map_err(|error| error.in_file(file))?;
        let name = name.or(id).filter(|name| !name.is_empty());
        let rules = by_namespace.entry(namespace.value).or_default();
        rules.entry(RuleIdentity { name, when, per }).or_default().push(limit.to_string());
    }
    let mut domains = Domains::new();
    for (namespace, rules) in by_namespace {
        if rules.len() > MAX_RULES {
            let count = rules.len();
            differences.everywhere(&format!(
                "namespace {namespace:?} has {count} rules: a request that more than {MAX_RULES} of \
                 them count is rejected"
            ));
        }
        domains.insert(namespace, named(rules));
    }
    Ok(Imported { domains, differences: differences.lines() })
}

/// Reads the expressions of a field. Expressions of limitador 1 are differences.
fn expressions(
    file: &str,
    field: &str,
    texts: Option<Vec<Spanned<String>>>,
    differences: &mut Differences,
) -> Result<BTreeSet<String>, String> {
    let texts = texts.into_iter().flatten().map(|text| {
        let (expression, is_old) =
            expression(&text.value, field == "conditions").map_err(|error| {
                TextError::new(text.referenced, format!("{field}: {error}")).in_file(file)
            })?;
        if is_old {
            let difference = format!(
                "{field}: the syntax of limitador 1 is read as {expression}; limitador 2 never \
                 counts a request under such a limit"
            );
            differences.add(file, text.referenced, difference);
        }
        Ok::<_, String>(expression)
    });
    texts.collect()
}

/// Returns the rules of a namespace by name.
fn named(rules: IndexMap<RuleIdentity, Vec<String>>) -> IndexMap<String, DomainRule> {
    let base = |identity: &RuleIdentity| match &identity.name {
        Some(name) => name.clone(),
        None if identity.when.is_empty() && identity.per.is_empty() => "all".to_owned(),
        None => "limits".to_owned(),
    };
    let mut counts = HashMap::<String, usize>::new();
    for identity in rules.keys() {
        *counts.entry(base(identity)).or_default() += 1;
    }
    let rules = rules.into_iter().map(|(identity, limits)| {
        let mut name = base(&identity);
        let is_named = identity.name.is_some() || name == "all";
        if !is_named || counts[&name] > 1 {
            let (when, per) = (identity.when.iter(), identity.per.iter());
            let parts = when.map(String::as_str).chain([""]).chain(per.map(String::as_str));
            let parts: Vec<&str> = parts.collect();
            name = format!("{name}-{}", short_hash(&parts));
        }
        let (when, per) = (identity.when.into_iter(), identity.per.into_iter());
        let (when, per) = (when.collect(), per.collect());
        (name, DomainRule { when, per, limits, ..DomainRule::default() })
    });
    rules.collect()
}

fn limit(max: &Spanned<u64>, seconds: &Spanned<u64>) -> Result<Limit, TextError> {
    let period = seconds.value.checked_mul(1_000);
    let period = period.and_then(|millis| Period::from_millis(millis).ok()).ok_or_else(|| {
        let reason = format!("seconds {}: expected 1 second to 100 years", seconds.value);
        TextError::new(seconds.referenced, reason)
    })?;
    Limit::new(max.value, period).map_err(|error| {
        let reason = format!("max_value {}: {error}", max.value);
        TextError::new(max.referenced, reason)
    })
}

/// Returns the expression in the syntax of limitador 2, and whether the text has that of limitador 1.
///
/// # Errors
///
/// Returns an error if the text is neither.
fn expression(text: &str, is_condition: bool) -> Result<(String, bool), String> {
    let text = text.trim();
    let Err(error) = Expression::new(text) else { return Ok((text.to_owned(), false)) };
    let old = if is_condition { old_condition(text) } else { old_variable(text) };
    old.filter(|old| Expression::new(old).is_ok()).map(|old| (old, true)).ok_or(error)
}

/// Translates a condition of limitador 1: `key == 'value'` or `key != 'value'`, or `key == value` in
/// still older versions. The key may be in any descriptor.
fn old_condition(text: &str) -> Option<String> {
    let (key, operator, value) = match (text.split_once("=="), text.split_once("!=")) {
        (Some((key, value)), _) => (key.trim(), "==", value.trim()),
        (_, Some((key, value))) => (key.trim(), "!=", value.trim()),
        _ => return None,
    };
    let inner = |quote| value.strip_prefix(quote)?.strip_suffix(quote);
    let value = match inner('\'').or_else(|| inner('"')) {
        Some(value) => value,
        None if operator == "==" && !value.contains(['\'', '"', '&', '|', '(', '[']) => value,
        None => return None,
    };
    let (key, value) = (literal(old_key(key)?), literal(value));
    Some(format!("descriptors.exists(d, {key} in d && d[{key}] {operator} {value})"))
}

/// Translates a variable of limitador 1, which is a key, to its value.
fn old_variable(text: &str) -> Option<String> {
    let key = literal(old_key(text)?);
    Some(format!("descriptors.filter(d, {key} in d)[0][{key}]"))
}

/// Returns a text if it can be the key of an entry, and no expression.
fn old_key(text: &str) -> Option<&str> {
    let is_plain = |char: char| char.is_ascii_alphanumeric() || "_.-".contains(char);
    let is_own = ["limit", "descriptors"].contains(&text.split('.').next().unwrap_or_default());
    (!text.is_empty() && text.chars().all(is_plain) && !is_own).then_some(text)
}

/// Returns the text as a literal of CEL.
fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
}
