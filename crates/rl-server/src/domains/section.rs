//! Reads the section `domains:` of a rule file.

use std::path::Path;

use indexmap::IndexMap;
use rl_admin::settings::yaml::{TextError, from_yaml, is_toml, read_as};
use rl_core::rules::Rules;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::compile::compile;
use super::rule::{Domains, InvalidDomainRule};
use crate::records::RecordLimits;

/// A rule file. Other sections are ignored.
#[derive(Deserialize)]
struct SectionFile {
    #[serde(default)]
    domains: Option<Domains>,
}

/// The places of the rules of domains in a rule file.
#[derive(Deserialize)]
struct FilePlaces<Place> {
    domains: IndexMap<String, IndexMap<String, Place>>,
}

/// Adds the rules in the section `domains` of a rule file to `rules`. The text is TOML if
/// `path` ends with `.toml`, and otherwise YAML, of which JSON is a part.
///
/// `records` are the limits of rules with `limits: records`.
///
/// A function for [`RulesFileBuilder::sections`](rl_core::rules::RulesFileBuilder::sections) calls it.
///
/// # Errors
///
/// Returns the reason, with its line and column, for which the section is not valid.
pub fn read_sections(
    path: &Path,
    text: &str,
    rules: Rules,
    records: Option<&RecordLimits>,
) -> Result<Rules, String> {
    let domains = read_domains(path, text)?;
    compile(&domains, rules, records).map_err(|invalid| {
        let reason = invalid.to_string();
        let error = match is_toml(path) {
            true => TextError::at_offset(text, toml_place(text, &invalid), reason),
            false => yaml_error(text, &invalid, reason),
        };
        error.to_string()
    })
}

/// Returns the rules in the section `domains` of a rule file.
///
/// # Errors
///
/// Returns the reason, with its line and column, for which the section cannot be read.
pub(super) fn read_domains(path: &Path, text: &str) -> Result<Domains, String> {
    let file: SectionFile = read_as(path, text)?;
    Ok(file.domains.unwrap_or_default())
}

/// Returns the offset of a rule in TOML.
fn toml_place(text: &str, invalid: &InvalidDomainRule) -> Option<usize> {
    let file: FilePlaces<toml::Spanned<IgnoredAny>> = toml::from_str(text).ok()?;
    Some(file.domains.get(&invalid.domain)?.get(&invalid.rule)?.span().start)
}

/// Returns an error at the place of a rule in YAML.
fn yaml_error(text: &str, invalid: &InvalidDomainRule, reason: String) -> TextError {
    let file: Option<FilePlaces<serde_saphyr::Spanned<IgnoredAny>>> = from_yaml(text).ok();
    let rule = file.as_ref().and_then(|file| file.domains.get(&invalid.domain)?.get(&invalid.rule));
    match rule {
        Some(rule) => TextError::new(rule.referenced, reason),
        None => TextError::without_place(reason),
    }
}
