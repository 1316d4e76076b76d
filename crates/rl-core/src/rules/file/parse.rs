//! Reads the text of a file, and turns it into rules.

use std::path::Path;
use std::sync::Arc;

use serde_saphyr::UserMessageFormatter;

use super::collections::LimitTexts;
use super::cost::CostText;
use super::error::{FileFailure, RulesFileError};
use super::keys::{Extractors, names};
use super::scalars::{FromText, Proxy, Secret, Text};
use super::schema::{FileText, RuleText, policy};
use crate::client_ip::{ClientIp, TrustedProxies};
use crate::key::{ClientAddress, KeyExtractor, KeySecret};
use crate::model::{Cost, Limit};
use crate::rules::invalid_rules::InvalidRules;
use crate::rules::rule::{ResponseCost, Rule, RuleCost, RuleLimits};
use crate::rules::rule_list::{Rules, TierBy};
use crate::rules::rule_set::RuleSet;
use crate::source::PolicySource;
use crate::store::Namespace;

/// The values that a service adds to a file.
pub(super) struct Additions {
    pub(super) extractors: Vec<(String, Arc<dyn KeyExtractor>)>,
    pub(super) sources: Vec<(String, Arc<dyn PolicySource>)>,
    pub(super) tier_by: Option<TierBy>,
    /// The secret with which API keys are hashed if the file sets none.
    pub(super) secret: KeySecret,
}

/// The content of a valid file.
pub(super) struct Content {
    pub(super) rules: Rules,
    pub(super) store: Option<Secret>,
}

/// Reads the rules in `bytes`, the content of the file at `path`.
///
/// # Errors
///
/// Returns an error for the first value that is not valid.
pub(super) fn parse(
    path: &Path,
    bytes: &[u8],
    additions: &Additions,
) -> Result<Content, RulesFileError> {
    let fail = |place, reason: String| RulesFileError::new(path, place, FileFailure::Text(reason));
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let before = String::from_utf8_lossy(&bytes[..error.valid_up_to()]).into_owned();
        fail(Some(place(&before, before.len())), "a byte that is not UTF-8".to_owned())
    })?;
    if text.trim().is_empty() {
        return Err(fail(None, "the file is empty: expected `rules`".to_owned()));
    }
    let file = match path.extension().and_then(|extension| extension.to_str()) {
        Some("toml") => toml::from_str(text).map_err(|error| {
            let place = error.span().map(|span| place(text, span.start));
            fail(place, error.message().trim().to_owned())
        }),
        Some("yaml" | "yml" | "json") => serde_saphyr::from_str(text).map_err(|error| {
            let place = error.location().and_then(|location| {
                let number = |number: u64| usize::try_from(number).ok();
                number(location.line()).zip(number(location.column()))
            });
            let message = error.without_snippet().render_with_formatter(&UserMessageFormatter);
            fail(place, without_place(&message).to_owned())
        }),
        _ => {
            Err(fail(None, "the name of the file: expected .yaml, .yml, .json or .toml".to_owned()))
        }
    }?;
    let content = convert(file, additions)
        .map_err(|(rule, Unknown { value, reason })| fail(find(text, &rule, &value), reason))?;
    RuleSet::new(&content.rules, &Namespace::default()).map_err(|error| {
        let place = match &error {
            InvalidRules::Cost { rule, .. } => find(text, rule, "cost"),
            _ => None,
        };
        RulesFileError::new(path, place, FileFailure::Rules(error))
    })?;
    Ok(content)
}

/// A name that a rule uses, but that the service has not registered.
struct Unknown {
    value: String,
    reason: String,
}

/// Returns the rules of a file. If a name in it is unknown, returns the name of the rule with the
/// error.
fn convert(file: FileText, additions: &Additions) -> Result<Content, (String, Unknown)> {
    let proxies = file.proxies.0.iter().map(|Proxy(text)| &**text);
    // This cannot fail, because each entry was checked when the file was read.
    let proxies = TrustedProxies::new(proxies).unwrap_or_default();
    let client_ip = ClientIp::with_proxies(proxies);
    let secret = file.secret.map_or_else(|| additions.secret.clone(), |Text(secret)| secret);
    let extractors =
        Extractors { client_ip: &client_ip, secret: &secret, registered: &additions.extractors };
    let mut rules = Rules::new();
    for (name, rule) in file.rules.0 {
        let rule = convert_rule(&name.0, rule, &extractors, &additions.sources);
        let rule = rule.map_err(|unknown| (name.0, unknown))?;
        rules = rules.rule(rule);
    }
    rules.exempt = file.exempt.into_iter().map(|exempt| exempt.0).collect();
    rules.client = ClientAddress::new(client_ip);
    rules.tier_by.clone_from(&additions.tier_by);
    Ok(Content { rules, store: file.store.map(|Text(store)| store) })
}

fn convert_rule(
    name: &str,
    RuleText { raw }: RuleText,
    extractors: &Extractors<'_>,
    sources: &[(String, Arc<dyn PolicySource>)],
) -> Result<Rule, Unknown> {
    let of_limits = |limits: &LimitTexts| convert_limits(limits, sources);
    let tiers =
        raw.tiers.0.iter().map(|(tier, limits)| Ok((tier.as_str().into(), of_limits(limits)?)));
    let unregistered = |value: String| Unknown { reason: extractors.unknown(&value), value };
    let per = raw.per.0.iter().map(|key| key.extractor(extractors).map_err(unregistered));
    let mut rule = Rule::named(name);
    rule.matches = raw.matches.map(|matches| matches.0);
    rule.exempt = raw.exempt.into_iter().map(|exempt| exempt.0).collect();
    rule.per = per.collect::<Result<_, _>>()?;
    rule.limits = of_limits(&raw.limits)?;
    rule.tiers = tiers.collect::<Result<_, _>>()?;
    if let Some(CostText { units, header }) = raw.cost {
        rule.cost = units.map(|units| RuleCost::Units(Cost::new(units)));
        rule.response_cost = header
            .map(|header| -> ResponseCost { Arc::new(move |response| header.units(response)) });
    }
    rule.on_over_limit = raw.over.map(|over| over.0);
    rule.on_missing_key = raw.missing.map(|Text(missing)| missing);
    rule.is_shadow = raw.shadow.is_some_and(|shadow| shadow.0);
    rule.is_disclosed = raw.disclosed.map(|disclosed| disclosed.0);
    Ok(rule)
}

/// Returns the limits of a rule or a tier.
fn convert_limits(
    limits: &LimitTexts,
    sources: &[(String, Arc<dyn PolicySource>)],
) -> Result<RuleLimits, Unknown> {
    let fail = |value: &str, reason| Unknown { value: value.to_owned(), reason };
    match limits {
        LimitTexts::Limits(limits) => {
            policy(limits).map(RuleLimits::Policy).map_err(|error| fail("", error.to_string()))
        }
        LimitTexts::Source(name) => {
            let source = sources.iter().find(|(known, _)| known == name);
            let limit = <Limit as FromText>::EXPECTED;
            let known = || match names(sources) {
                Some(names) => format!("a source: {names}"),
                None => "a source that the service registers".to_owned(),
            };
            let reason = || format!("limit {name:?}: expected {limit}, or {}", known());
            let source = source.map(|(_, source)| RuleLimits::Source(Arc::clone(source)));
            source.ok_or_else(|| fail(name, reason()))
        }
    }
}

/// Returns the line and column of the character at `offset`.
fn place(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.rsplit('\n').next().unwrap_or_default();
    (before.matches('\n').count() + 1, line.chars().count() + 1)
}

/// Returns the line and column of the first `value` after the name `rule`, both as whole words.
fn find(text: &str, rule: &str, value: &str) -> Option<(usize, usize)> {
    // The name of a rule is a key: `rule:`, `"rule":`, `rule =` or `[rules.rule]`.
    let is_key = |end: &usize| {
        text[*end..].trim_start_matches(['"', '\'', ' ']).starts_with([':', '=', ']'])
    };
    let rule = ends_of(text, rule).find(is_key).or_else(|| ends_of(text, rule).next())?;
    let value_end = rule + ends_of(&text[rule..], value).next()?;
    Some(place(text, value_end - value.len()))
}

/// Returns the ends of all occurrences of `word` that are not part of a longer word or path.
fn ends_of<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let is_inner = |c: char| c.is_alphanumeric() || "_-/".contains(c);
    let found = text.match_indices(word).map(|(start, _)| (start, start + word.len()));
    let whole = found.filter(move |(start, end)| {
        !text[..*start].ends_with(is_inner) && !text[*end..].starts_with(is_inner)
    });
    whole.map(|(_, end)| end)
}

/// Returns a message of the YAML parser without its end ` at line …`, because the error begins with
/// the place.
fn without_place(message: &str) -> &str {
    let end = message.rfind(" at line ").unwrap_or(message.len());
    message[..end].trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_count_characters() {
        let text = "é1\n2é3\n";
        for (offset, expected) in [(0, (1, 1)), (2, (1, 2)), (4, (2, 1)), (7, (2, 3)), (99, (3, 1))]
        {
            assert_eq!(place(text, offset), expected, "{offset}");
        }
    }
}
