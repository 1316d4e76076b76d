//! Reads the files of Envoy's rate limit service.
//!
//! In that service, windows begin at multiples of the unit since 1970, and not at the first request.
//! Limits have `:clock` for this reason: `10/second:clock`. [`Imported`] lists the differences.
//!
//! A descriptor with `unlimited`, or without a limit and without nested descriptors, becomes a rule
//! without limits, which allows every request.
//!
//! The name of a rule consists of the keys and values of its descriptor, as in the statistics of
//! Envoy's service: `message_type_marketing.to_number`. Counters survive a change of the other rules
//! in the file.

use std::collections::HashMap;

use indexmap::IndexMap;
use rl_admin::settings::yaml::{TextError, from_yaml};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_saphyr::{Location, Spanned};

use super::compile::short_hash;
use super::imported::{Differences, Imported, NamedText};
use super::rule::{DomainRule, Domains};

/// A file: the descriptors of a domain.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DomainText {
    domain: Spanned<String>,
    #[serde(default)]
    descriptors: Option<Vec<DescriptorText>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DescriptorText {
    key: Spanned<String>,
    #[serde(default)]
    value: Option<Spanned<String>>,
    #[serde(default)]
    rate_limit: Option<Spanned<RateLimitText>>,
    #[serde(default)]
    shadow_mode: Option<bool>,
    #[serde(default)]
    quota_mode: Option<bool>,
    #[serde(default)]
    detailed_metric: Option<bool>,
    #[serde(default)]
    value_to_metric: Option<bool>,
    #[serde(default)]
    share_threshold: Option<bool>,
    #[serde(default)]
    metadata: Option<IgnoredAny>,
    #[serde(default)]
    descriptors: Option<Vec<DescriptorText>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RateLimitText {
    #[serde(default)]
    unit: Option<Spanned<String>>,
    #[serde(default)]
    requests_per_unit: Option<Spanned<u32>>,
    #[serde(default)]
    unlimited: Option<bool>,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    replaces: Option<Vec<ReplacesText>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReplacesText {
    name: Spanned<Option<String>>,
}

/// Reads files in their order. With `merge`, several files may have the same domain.
///
/// # Errors
///
/// Returns an error for the first value that is not valid.
pub(super) fn read(files: &[NamedText], merge: bool) -> Result<Imported, String> {
    let mut texts = Vec::with_capacity(files.len());
    for file in files {
        let text = &file.text;
        let is_empty = text.lines().all(|line| line.trim().is_empty() || line.starts_with('#'));
        if is_empty {
            return Err(format!("{}: the file is empty: expected `domain`", file.name));
        }
        let text: DomainText = from_yaml(text).map_err(|error| error.in_file(&file.name))?;
        texts.push((file.name.as_str(), text));
    }
    let mut by_domain = IndexMap::<&str, (&str, Vec<FileDescriptors<'_>>)>::new();
    for (file, text) in &texts {
        let domain = text.domain.value.as_str();
        let fail = |reason| TextError::new(text.domain.referenced, reason).in_file(file);
        if domain.is_empty() {
            return Err(fail("domain \"\": expected the name of a domain".to_owned()));
        }
        let descriptors = text.descriptors.as_deref().unwrap_or_default();
        let (first, of_domain) = by_domain.entry(domain).or_insert((file, Vec::new()));
        if !of_domain.is_empty() && !merge {
            return Err(fail(format!(
                "domain {domain:?} is in {first} too: expected each domain in one file"
            )));
        }
        of_domain.push(FileDescriptors { file, descriptors });
    }
    let mut differences = Differences::default();
    differences.everywhere(
        "a request that one of its descriptors denies is charged under none of them; Envoy's \
         service charges the others, and also a denied cost",
    );
    let mut domains = Domains::new();
    for (domain, (_, files)) in by_domain {
        let mut reader = DomainReader { rules: Vec::new(), differences: &mut differences };
        reader.read(&files, &DescriptorPath::default())?;
        domains.insert(domain.to_owned(), reader.finish());
    }
    Ok(Imported { domains, differences: differences.lines() })
}

/// Descriptors of one level, with the name of their file.
#[derive(Clone, Copy)]
struct FileDescriptors<'a> {
    file: &'a str,
    descriptors: &'a [DescriptorText],
}

/// The keys and values that enclose a descriptor.
#[derive(Clone, Default)]
struct DescriptorPath {
    /// The name of the rule.
    name: String,
    /// The text of each key and value.
    entries: Vec<String>,
}

/// A rule whose name is not final yet: other rules may have the same one.
struct NamedRule<'a> {
    path: DescriptorPath,
    rule: DomainRule,
    file: &'a str,
    place: Location,
    /// The name by which other rules replace it.
    replaceable: Option<&'a str>,
    replaces: Vec<&'a str>,
}

struct DomainReader<'a, 'd> {
    rules: Vec<NamedRule<'a>>,
    differences: &'d mut Differences,
}

impl<'a> DomainReader<'a, '_> {
    /// Reads the descriptors of one level, and those that they enclose.
    fn read(
        &mut self,
        files: &[FileDescriptors<'a>],
        parent: &DescriptorPath,
    ) -> Result<(), String> {
        let mut known = HashMap::new();
        for FileDescriptors { file, descriptors } in files {
            for descriptor in *descriptors {
                let place = descriptor.key.referenced;
                let fail = |reason| TextError::new(place, reason).in_file(file);
                let path = parent.child(descriptor).map_err(fail)?;
                if known.insert(path.name.clone(), ()).is_some() {
                    let entry = path.entries.last().map_or("", String::as_str);
                    return Err(fail(format!(
                        "descriptor {entry:?} occurs twice: expected each key and value once"
                    )));
                }
                self.read_one(file, descriptor, path)?;
            }
        }
        Ok(())
    }

    fn read_one(
        &mut self,
        file: &'a str,
        descriptor: &'a DescriptorText,
        path: DescriptorPath,
    ) -> Result<(), String> {
        let nested = descriptor.descriptors.as_deref().unwrap_or_default();
        let place = descriptor.key.referenced;
        self.note_differences(file, descriptor);
        let limit = descriptor.rate_limit.as_ref();
        if limit.is_some() || nested.is_empty() {
            let mut rule = DomainRule { descriptor: path.entries.clone(), ..DomainRule::default() };
            rule.shadow = descriptor.shadow_mode == Some(true);
            let (mut replaceable, mut replaces) = (None, Vec::new());
            if let Some(limit) = limit {
                rule.limits.extend(self.limit(file, limit)?);
                replaceable = limit.value.name.as_deref().filter(|name| !name.is_empty());
                replaces = limit.value.replaces(file)?;
            }
            let path = path.clone();
            self.rules.push(NamedRule { path, rule, file, place, replaceable, replaces });
        }
        self.read(&[FileDescriptors { file, descriptors: nested }], &path)
    }

    /// Returns the text of a limit; `None` if it is unlimited.
    fn limit(
        &mut self,
        file: &str,
        limit: &Spanned<RateLimitText>,
    ) -> Result<Option<String>, String> {
        const UNITS: &str = "second, minute, hour, day, week, month or year";

        let fail = |place, reason| Err(TextError::new(place, reason).in_file(file));
        let RateLimitText { unit, requests_per_unit, unlimited, .. } = &limit.value;
        if *unlimited == Some(true) {
            return match unit {
                None => Ok(None),
                Some(unit) => fail(
                    unit.referenced,
                    format!("unit {:?}: expected none beside `unlimited`", unit.value),
                ),
            };
        }
        let Some(unit) = unit else {
            return fail(limit.referenced, format!("rate_limit: expected `unit`: {UNITS}"));
        };
        let Some(requests) = requests_per_unit else {
            return fail(limit.referenced, "rate_limit: expected `requests_per_unit`".to_owned());
        };
        let name = unit.value.to_ascii_lowercase();
        let period = match name.as_str() {
            "second" | "minute" | "hour" | "day" => name.as_str(),
            "week" => {
                let text = "unit week: begins on Mondays; on Thursdays in Envoy's service";
                self.differences.add(file, unit.referenced, text.to_owned());
                "week"
            }
            "month" => {
                let text = "unit month: the calendar month; 30 days in Envoy's service";
                self.differences.add(file, unit.referenced, text.to_owned());
                "month"
            }
            "year" => "365days",
            _ => return fail(unit.referenced, format!("unit {:?}: expected {UNITS}", unit.value)),
        };
        Ok(Some(format!("{}/{period}:clock", requests.value)))
    }

    fn note_differences(&mut self, file: &str, descriptor: &DescriptorText) {
        let DescriptorText { key, rate_limit, .. } = descriptor;
        let mut add = |is_set: bool, text: &str| {
            if is_set {
                self.differences.add(file, key.referenced, text.to_owned());
            }
        };
        add(
            descriptor.detailed_metric == Some(true),
            "detailed_metric: has no effect; metrics have the names of rules, not values of requests",
        );
        add(
            descriptor.value_to_metric == Some(true),
            "value_to_metric: has no effect; metrics have the names of rules, not values of requests",
        );
        add(
            descriptor.quota_mode == Some(true),
            "quota_mode: is not supported; the limit denies as any other",
        );
        add(descriptor.metadata.is_some(), "metadata: is not returned to the gateway");
        let is_named = rate_limit
            .as_ref()
            .is_some_and(|limit| limit.value.name.as_ref().is_some_and(|name| !name.is_empty()));
        add(
            is_named,
            "name: serves `replaces` alone; a status has the name of a limit of this service",
        );
    }

    /// Gives each rule its final name, and looks up the rules that others replace.
    fn finish(self) -> IndexMap<String, DomainRule> {
        let Self { rules, differences } = self;
        let mut counts = HashMap::<&str, usize>::new();
        for rule in &rules {
            *counts.entry(&rule.path.name).or_default() += 1;
        }
        let name_of = |rule: &NamedRule<'_>| {
            let DescriptorPath { name, entries } = &rule.path;
            if counts[name.as_str()] == 1 {
                return name.clone();
            }
            // A dot in a key can make the names of two descriptors equal.
            let entries: Vec<&str> = entries.iter().map(String::as_str).collect();
            format!("{name}-{}", short_hash(&entries))
        };
        let mut replaceable = HashMap::<&str, Vec<String>>::new();
        for rule in &rules {
            if let Some(name) = rule.replaceable {
                replaceable.entry(name).or_default().push(name_of(rule));
            }
        }
        let finished = rules.iter().map(|named| {
            let mut rule = named.rule.clone();
            for replaced in &named.replaces {
                match replaceable.get(replaced) {
                    Some(names) => rule.replaces.extend(names.iter().cloned()),
                    None => {
                        let text = format!("replaces {replaced:?}: no rule has this name");
                        differences.add(named.file, named.place, text);
                    }
                }
            }
            (name_of(named), rule)
        });
        finished.collect()
    }
}

impl RateLimitText {
    /// Returns the names of the rules that this one replaces.
    fn replaces(&self, file: &str) -> Result<Vec<&str>, String> {
        let names = self.replaces.iter().flatten().map(|ReplacesText { name }| {
            let fail = |reason| Err(TextError::new(name.referenced, reason).in_file(file));
            match name.value.as_deref() {
                None | Some("") => fail("replaces: expected the name of a rate limit".to_owned()),
                Some(own) if self.name.as_deref() == Some(own) => {
                    fail(format!("replaces {own:?}: expected the name of another rate limit"))
                }
                Some(name) => Ok(name),
            }
        });
        names.collect()
    }
}

impl DescriptorPath {
    /// Returns the path with the key and value of a descriptor.
    ///
    /// # Errors
    ///
    /// Returns an error if a value is not valid.
    fn child(&self, descriptor: &DescriptorText) -> Result<Self, String> {
        let key = &descriptor.key.value;
        if key.is_empty() {
            return Err("key \"\": expected the key of a descriptor".to_owned());
        }
        if key.contains(['=', '*']) {
            return Err(format!("key {key:?}: expected a key without `=` and `*`"));
        }
        let value = descriptor.value.as_ref().map(|value| value.value.as_str());
        let value = value.filter(|value| !value.is_empty());
        let is_shared = descriptor.share_threshold == Some(true);
        if is_shared && !value.is_some_and(|value| value.contains('*')) {
            return Err("share_threshold: expected a value with `*`".to_owned());
        }
        let mut path = self.clone();
        if !path.name.is_empty() {
            path.name.push('.');
        }
        path.name.push_str(key);
        path.entries.push(match value {
            None => key.clone(),
            Some(value) => {
                path.name.push('_');
                path.name.push_str(value);
                format!("{key}={}", pattern(value, is_shared))
            }
        });
        Ok(path)
    }
}

/// Returns a value with `**` for each `*` if all values that match share one counter, and with `*`
/// otherwise.
fn pattern(value: &str, is_shared: bool) -> String {
    let mut pattern = String::with_capacity(value.len());
    for char in value.chars() {
        if char != '*' {
            pattern.push(char);
        } else if !pattern.ends_with('*') {
            pattern.push_str(if is_shared { "**" } else { "*" });
        }
    }
    pattern
}
