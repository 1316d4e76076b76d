//! Reads the text of a file, and turns it into rules.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use super::cost::CostText;
use super::definitions::definitions;
use super::error::{FileFailure, RulesFileError};
use super::keys::{CredentialText, Extractors, KeyText, names};
use super::known_keys::{KeySettings, KnownKeys};
use super::limits::{LimitText, LimitTexts, hint};
use super::scalars::{FromText, Name, Proxy, Secret, Text};
use super::schema::{DisclosureText, FileText, RuleText};
use super::yaml::{from_yaml, message};
use crate::client_ip::{ClientIp, TrustedProxies};
use crate::key::{ClientAddress, KeyExtractor, KeySecret};
use crate::model::Cost;
use crate::policy::{InvalidPolicy, Policy, PolicyBuilder};
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
    /// Reads the sections of the service.
    pub(super) sections: Option<ReadSections>,
    /// Checks a rule that the service stores outside the file.
    pub(super) check_stored: Option<CheckStored>,
    /// The secret with which API keys are hashed if the file sets none.
    pub(super) secret: KeySecret,
}

impl Additions {
    /// Creates additions with nothing but the secret.
    pub(super) fn new(secret: KeySecret) -> Self {
        let (extractors, sources) = (Vec::new(), Vec::new());
        Self { extractors, sources, tier_by: None, sections: None, check_stored: None, secret }
    }
}

/// A function that adds the rules in the sections of the service to those of a file. It gets the path
/// and the text of the file. Its error is the reason for which the file is refused.
pub(super) type ReadSections =
    Arc<dyn Fn(&Path, &str, Rules) -> Result<Rules, String> + Send + Sync>;

/// A function that checks the name and the definition of a stored rule.
pub(super) type CheckStored = Arc<dyn Fn(&str, &str) -> Result<(), String> + Send + Sync>;

/// The rules of a file, and the values of the file that further rules use.
pub(super) struct FileRules {
    pub(super) rules: Rules,
    /// The secret with which keys are hashed.
    pub(super) secret: KeySecret,
    pub(super) additions: Arc<Additions>,
    client_ip: ClientIp,
    known_keys: Option<Arc<KnownKeys>>,
}

impl FileRules {
    /// Returns the rule of this name and text.
    ///
    /// # Errors
    ///
    /// Returns an error for the first name that the service has not registered.
    pub(super) fn rule(&self, name: &str, text: RuleText) -> Result<Rule, UnregisteredName> {
        let extractors = Extractors {
            client_ip: &self.client_ip,
            secret: &self.secret,
            registered: &self.additions.extractors,
            known_keys: self.known_keys.as_ref(),
        };
        convert_rule(name, text, &extractors, &self.additions.sources)
    }
}

/// The content of a valid file.
pub(super) struct Content {
    pub(super) file: FileRules,
    pub(super) store: Option<Secret>,
    /// The warnings about values that are valid, but probably not intended.
    pub(super) warnings: Vec<String>,
    /// A warning that applies if counters are shared with other processes.
    pub(super) warning_if_shared: Option<String>,
    /// Sixteen hexadecimal digits of a hash of the content.
    pub(super) version: String,
    /// Whether the file has the mark of a complete file.
    pub(super) has_end: bool,
}

/// Reads the text of the file at `path`. If `must_end`, the file needs the mark of a complete file.
///
/// # Errors
///
/// Returns an error for the first value that is not valid.
pub(super) fn read_text(
    path: &Path,
    bytes: &[u8],
    must_end: bool,
) -> Result<FileText, RulesFileError> {
    let fail = |place, reason: String| RulesFileError::new(path, place, FileFailure::Text(reason));
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let before = String::from_utf8_lossy(&bytes[..error.valid_up_to()]).into_owned();
        fail(Some(place(&before, before.len())), "a byte that is not UTF-8".to_owned())
    })?;
    if text.trim().is_empty() {
        return Err(fail(None, "the file is empty: expected `rules`".to_owned()));
    }
    let is_toml = path.extension().is_some_and(|extension| extension == "toml");
    let file: FileText = match path.extension().and_then(|extension| extension.to_str()) {
        Some("toml") => toml::from_str(text).map_err(|error| {
            let place = error.span().map(|span| place(text, span.start));
            fail(place, error.message().trim().to_owned())
        }),
        Some("yaml" | "yml" | "json") => from_yaml(text).map_err(|error| {
            let place = error.location().and_then(|location| {
                let number = |number: u64| usize::try_from(number).ok();
                number(location.line()).zip(number(location.column()))
            });
            fail(place, message(&error))
        }),
        _ => {
            Err(fail(None, "the name of the file: expected .yaml, .yml, .json or .toml".to_owned()))
        }
    }?;
    if file.keys.as_ref().is_some_and(|keys| keys.from.0.is_empty()) {
        let reason = format!("from: expected at least one of {}", CredentialText::EXPECTED);
        return Err(fail(find(text, "keys", "from"), reason));
    }
    let mark = if is_toml { "[end]" } else { "end: true" };
    let end = Some(place(text, text.trim_end().len()));
    match file.end {
        None if must_end => Err(fail(
            end,
            format!(
                "the last line `{mark}` of the last valid version is missing: the file may be \
                 incomplete; after a restart it may be left out"
            ),
        )),
        // Lines after the mark could be lost unnoticed.
        Some(_) if !is_last(text, if is_toml { "[end]" } else { "end:" }) => {
            Err(fail(end, format!("`{mark}` is not the last line: expected nothing after it")))
        }
        _ => Ok(file),
    }
}

/// Returns whether the last line of a text begins with `mark`. The braces around a JSON document
/// show its end too.
fn is_last(text: &str, mark: &str) -> bool {
    let is_text = |line: &&str| !line.is_empty() && !line.starts_with('#') && *line != "...";
    let last = text.lines().rev().map(str::trim_end).find(is_text);
    text.trim_start().starts_with('{') || last.is_some_and(|last| last.starts_with(mark))
}

/// Turns the text of the file at `path`, which consists of `bytes`, into rules. `keys` is the path
/// (for errors) and content of the file of keys.
///
/// # Errors
///
/// Returns an error for the first value that is not valid.
pub(super) fn convert(
    path: &Path,
    bytes: &[u8],
    file: FileText,
    keys: Option<(&Path, &[u8])>,
    additions: &Arc<Additions>,
) -> Result<Content, RulesFileError> {
    let text = String::from_utf8_lossy(bytes);
    let fail = |place, reason: String| RulesFileError::new(path, place, FileFailure::Text(reason));
    let tiers = file.rules.0.iter().flat_map(|(_, rule)| rule.tiers.0.iter());
    let mut tiers: Vec<&str> = tiers.map(|(Name(tier), _)| &**tier).collect();
    tiers.sort_unstable();
    tiers.dedup();
    let secret = file.secret.as_ref().map(|Text(secret)| secret);
    let key_secret = secret.map_or_else(|| additions.secret.clone(), |secret| secret.key.clone());
    let from = file.keys.iter().flat_map(|keys| &keys.from.0);
    let from: Vec<_> = from.filter_map(|from| from.0.credential(&key_secret)).collect();
    let settings = KeySettings { from, secret: secret.map(|secret| &secret.text), tiers };
    let known_keys =
        keys.map(|(path, bytes)| KnownKeys::read(path, bytes, settings)).transpose()?;
    let with_variables = with_variables(&file);
    let (warnings, hashes_keys) = warnings(&file);
    let warning_if_shared = (hashes_keys && secret.is_none()).then(|| {
        "no secret: each instance hashes keys differently, so their counters are not shared; add \
         secret:"
            .to_owned()
    });
    let has_end = file.end.is_some();
    let version = version(bytes, keys.map(|(_, bytes)| bytes));
    let known_keys = known_keys.map(Arc::new);
    let section = file.section();
    let is_toml = path.extension().is_some_and(|extension| extension == "toml");
    let mut definitions = definitions(&text, is_toml);
    let (mut file, store) = convert_rules(file, key_secret, known_keys, additions)
        .map_err(|error| fail(find(&text, &error.rule, &error.name), error.reason))?;
    for rule in &mut file.rules.rules {
        rule.definition = definitions.remove(rule.name()).map(Into::into);
    }
    match (&additions.sections, section) {
        (Some(read), _) => {
            let read = read(path, &text, file.rules);
            file.rules = read.map_err(|reason| fail(None, reason))?;
        }
        (None, None) => {}
        (None, Some(section)) => {
            let reason = format!("{section}: this service does not read the section");
            return Err(fail(find(&text, section, section), reason));
        }
    }
    RuleSet::new(&file.rules, &Namespace::default()).map_err(|error| {
        let place = match &error {
            InvalidRules::Cost { rule, .. } | InvalidRules::Estimate { rule } => {
                find(&text, rule, "cost")
            }
            InvalidRules::Policy { rule, tier: Some(tier), .. } => find(&text, rule, tier),
            InvalidRules::Policy { rule, tier: None, .. } => find(&text, rule, "limits"),
            _ => None,
        };
        match error.rule().filter(|rule| with_variables.contains(*rule)) {
            Some(_) => fail(place, without_limits(&error)),
            None => RulesFileError::new(path, place, FileFailure::Rules(error)),
        }
    })?;
    Ok(Content { file, store, warnings, warning_if_shared, version, has_end })
}

/// Returns the names of the rules in whose limits variables are replaced.
fn with_variables(file: &FileText) -> HashSet<String> {
    let has_variables = |rule: &RuleText| {
        let tiers = rule.tiers.0.iter().map(|(_, limits)| limits);
        std::iter::once(&rule.limits).chain(tiers).any(LimitTexts::has_variables)
    };
    let rules = file.rules.0.iter().filter(|(_, rule)| has_variables(rule));
    rules.map(|(name, _)| name.0.clone()).collect()
}

/// Returns the text of an error without the limits in it, because their values come from variables.
fn without_limits(error: &InvalidRules) -> String {
    match error {
        InvalidRules::Cost { rule, cost, .. } => {
            format!("rule {rule:?}: cost {cost}: expected at most what its limits grant at once")
        }
        InvalidRules::Policy { rule, tier, error } => {
            let tier = tier.as_ref().map(|tier| format!(", tier {tier:?}")).unwrap_or_default();
            match **error {
                InvalidPolicy::SharedState { .. } | InvalidPolicy::NameTwice { .. } => format!(
                    "rule {rule:?}{tier}: two limits would share one counter or name: give one of \
                     them another period or algorithm"
                ),
                _ => format!("rule {rule:?}{tier}: {error}"),
            }
        }
        error => error.to_string(),
    }
}

/// Returns the warnings about the rules of a file, and whether a rule counts hashed keys.
fn warnings(file: &FileText) -> (Vec<String>, bool) {
    let invented = file.rules.0.iter().flat_map(|(name, rule)| {
        let keys = rule.per.0.iter().flat_map(KeyText::invented);
        keys.map(move |key| (&name.0, key))
    });
    let advice = match file.keys {
        None => "add keys: or put authentication in front",
        Some(_) => "count per: key, or put authentication in front",
    };
    let warn = |(rule, key): (&String, String)| {
        format!("rule {rule:?}: any value of {key} gets counters of its own; {advice}")
    };
    let warnings: Vec<_> = invented.map(warn).collect();
    let hashes_keys = !warnings.is_empty();
    (warnings, hashes_keys)
}

/// Returns sixteen hexadecimal digits of a hash of the content, with that of the file of keys.
fn version(rules: &[u8], keys: Option<&[u8]>) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(rules);
    if let Some(keys) = keys {
        hasher.update(blake3::hash(keys).as_bytes());
    }
    hasher.finalize().to_hex()[..16].to_owned()
}

/// A name that a rule uses, but that the service has not registered.
pub(super) struct UnregisteredName {
    rule: String,
    name: String,
    pub(super) reason: String,
}

/// Returns the rules of a file, and its store.
///
/// # Errors
///
/// Returns an error for the first name that the service has not registered.
fn convert_rules(
    file: FileText,
    secret: KeySecret,
    known_keys: Option<Arc<KnownKeys>>,
    additions: &Arc<Additions>,
) -> Result<(FileRules, Option<Secret>), UnregisteredName> {
    let proxies = file.proxies.0.iter().map(|Proxy(text)| &**text);
    // This cannot fail, because each entry was checked when the file was read.
    let proxies = TrustedProxies::new(proxies).unwrap_or_default();
    let client_ip = ClientIp::with_proxies(proxies);
    let mut rules = Rules::new();
    rules.exempt = file.exempt.into_iter().map(|exempt| exempt.0).collect();
    rules.client = ClientAddress::new(client_ip.clone());
    rules.tier_by = tier_by(additions.tier_by.clone(), known_keys.clone());
    let additions = Arc::clone(additions);
    let mut result = FileRules { rules, secret, additions, client_ip, known_keys };
    for (name, rule) in file.rules.0 {
        let rule = result.rule(&name.0, rule)?;
        result.rules.rules.push(rule);
    }
    Ok((result, file.store.map(|Text(store)| store)))
}

/// Returns the function that finds the tier of a subject: that of the service, and then the file of
/// keys.
fn tier_by(of_service: Option<TierBy>, known_keys: Option<Arc<KnownKeys>>) -> Option<TierBy> {
    let Some(keys) = known_keys else { return of_service };
    Some(Arc::new(move |subject| {
        let tier = of_service.as_ref().and_then(|tier_by| tier_by(subject));
        tier.or_else(|| keys.tier(subject))
    }))
}

fn convert_rule(
    rule_name: &str,
    rule: RuleText,
    extractors: &Extractors<'_>,
    sources: &[(String, Arc<dyn PolicySource>)],
) -> Result<Rule, UnregisteredName> {
    let of_limits = |limits: &LimitTexts| convert_limits(rule_name, limits, sources);
    let tiers = rule.tiers.0.iter();
    let tiers = tiers.map(|(Name(tier), limits)| Ok((tier.as_str().into(), of_limits(limits)?)));
    let unregistered = |name: String| {
        let reason = extractors.unknown(&name);
        UnregisteredName { rule: rule_name.to_owned(), name, reason }
    };
    let per = rule.per.0.iter().map(|key| key.extractor(extractors).map_err(unregistered));
    let mut result = Rule::named(rule_name);
    result.matches = rule.matches.map(|matches| matches.0);
    result.exempt = rule.exempt.into_iter().map(|exempt| exempt.0).collect();
    result.per = per.collect::<Result<_, _>>()?;
    result.limits = of_limits(&rule.limits)?;
    result.tiers = tiers.collect::<Result<_, _>>()?;
    if let Some(CostText { units, header }) = rule.cost {
        result.cost = units.map(|units| RuleCost::Units(Cost::new(units)));
        result.response_cost = header
            .map(|header| -> ResponseCost { Arc::new(move |response| header.units(response)) });
    }
    result.on_over_limit = rule.over.map(|over| over.0);
    result.on_missing_key = rule.missing.map(|Text(missing)| missing);
    result.is_shadow = rule.shadow.is_some_and(|shadow| shadow.0);
    result.is_disclosed = rule.disclosed.map(|disclosed| disclosed != DisclosureText::Nothing);
    result.is_name_disclosed = rule.disclosed == Some(DisclosureText::LimitsAndName);
    Ok(result)
}

/// Returns the limits of a rule or a tier.
fn convert_limits(
    rule_name: &str,
    limits: &LimitTexts,
    sources: &[(String, Arc<dyn PolicySource>)],
) -> Result<RuleLimits, UnregisteredName> {
    match limits {
        // The limits are checked together with the rules.
        LimitTexts::Limits(limits) => {
            let add =
                |policy: PolicyBuilder, (name, limit): &(Option<String>, LimitText)| match name {
                    Some(name) => policy.named(name, limit.limit),
                    None => policy.limit(limit.limit),
                };
            Ok(RuleLimits::Builder(limits.iter().fold(Policy::builder(), add)))
        }
        LimitTexts::Source(name) => {
            let source = sources.iter().find(|(known, _)| known == name);
            let limit = LimitText::EXPECTED;
            let known = || match names(sources) {
                Some(names) => format!("a source: {names}"),
                None => "a source that the service registers".to_owned(),
            };
            let reason = || match hint(name) {
                Some(hint) => format!("limit {name:?}: {hint}"),
                None => format!("limit {name:?}: expected {limit}, or {}", known()),
            };
            let source = source.map(|(_, source)| RuleLimits::Source(Arc::clone(source)));
            source.ok_or_else(|| UnregisteredName {
                rule: rule_name.to_owned(),
                name: name.clone(),
                reason: reason(),
            })
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
