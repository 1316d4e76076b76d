//! The files from which a server has its rules.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rl_admin::settings::yaml::read_text;
use rl_core::RateLimiter;
use rl_core::rules::{RuleSource, Rules, RulesFile};
use rl_serve::Tls;

use crate::domains::{GatewayFiles, GatewaySource, compile, read_sections, to_rule_file};
use crate::records::RecordLimits;
use crate::settings::{Settings, SettingsText, check_rule_settings, check_stored_rule};

/// The files from which a [`Server`](crate::Server) has its rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A rule file. Its section `server` has the settings of the server.
    RuleFile(PathBuf),
    /// The files of another service.
    Gateway(GatewaySource),
}

/// The rules of a server, and its settings.
pub(crate) struct LoadedRules {
    pub(crate) rules: RuleSource,
    /// The rule file. Rules of the database apply in addition to its rules.
    pub(crate) file: Option<RulesFile>,
    pub(crate) settings: Settings,
    /// The limits of rules with `limits: records`.
    pub(crate) records: RecordLimits,
    /// Files that are read as long as this is held.
    pub(crate) files: Option<GatewayFiles>,
}

impl Source {
    /// Reads the files and validates their content. Returns warnings: about values of a rule file,
    /// or about decisions that differ from those of the other service.
    ///
    /// # Errors
    ///
    /// Returns the reason, with its place, for which they are not valid.
    pub fn check(&self) -> Result<Vec<String>, String> {
        match self {
            Self::RuleFile(path) => {
                let (file, mut settings, _) = watch(path)?;
                let mut warnings = file.status().warnings().to_vec();
                check_rules(&file)?;
                settings.store = file.store().map(str::to_owned);
                settings.check().map_err(|reason| in_file(path, &reason))?;
                // Another machine may have the certificates.
                if let Some(Err(error)) = settings.tls.map(Tls::from_files) {
                    warnings.push(format!("server: tls: {error}"));
                }
                Ok(warnings)
            }
            Self::Gateway(source) => {
                let imported = source.read()?;
                let rules = compile(&imported.domains, Rules::new(), None);
                check_rules(rules.map_err(|error| error.to_string())?)?;
                Ok(imported.differences)
            }
        }
    }

    /// Reads the files, and follows their changes.
    ///
    /// # Errors
    ///
    /// Returns the reason, with its place, for which they are not valid.
    pub(crate) fn load(&self) -> Result<LoadedRules, String> {
        match self {
            Self::RuleFile(path) => {
                let (file, mut settings, records) = watch(path)?;
                settings.store = file.store().map(str::to_owned);
                let rules = (&file).into();
                Ok(LoadedRules { rules, file: Some(file), settings, records, files: None })
            }
            Self::Gateway(source) => {
                let files = GatewayFiles::watch(source.clone())?;
                let (rules, settings) = (files.rules().into(), Settings::default());
                let records = RecordLimits::default();
                Ok(LoadedRules { rules, file: None, settings, records, files: Some(files) })
            }
        }
    }
}

/// Returns the rule file with the same rules as the files of another service, and the differences.
///
/// # Errors
///
/// Returns the reason, with its place, for which they are not valid.
pub fn import(source: &GatewaySource) -> Result<(String, Vec<String>), String> {
    let imported = source.read()?;
    Ok((to_rule_file(&imported), imported.differences))
}

/// Reads a rule file with its sections, and follows its changes. Rules may take their limits from
/// records only if the first version names a database, because settings apply after a restart.
fn watch(path: &Path) -> Result<(RulesFile, Settings, RecordLimits), String> {
    let text = read_text(path).and_then(|text| SettingsText::read(path, &text));
    // The reason for which it cannot be read is found below, with its place.
    let has_records = text.is_ok_and(|text| text.has_records());
    let records = RecordLimits::default();
    let of_domains = has_records.then(|| records.clone());
    let first: Arc<OnceLock<SettingsText>> = Arc::default();
    let started = Arc::clone(&first);
    let sections = move |path: &Path, text: &str, rules: Rules| {
        let settings = SettingsText::read(path, text)?;
        settings.settings(path)?;
        check_rule_settings(path, text)?;
        if *started.get_or_init(|| settings.clone()) != settings {
            let path = path.display();
            tracing::warn!(
                target: "rl_server", %path,
                "settings of the server changed: they apply after a restart"
            );
        }
        read_sections(path, text, rules, of_domains.as_ref())
    };
    let mut file =
        RulesFile::builder(path).sections(sections).check_stored_rules(check_stored_rule);
    if has_records {
        file = file.source("records", records.clone());
    }
    let file = file.watch().map_err(|error| {
        let reason = error.to_string();
        let needs_records = !has_records && reason.contains("limit \"records\"");
        let hint = "; `limits: records` needs `records` in the section `server`";
        if needs_records { reason + hint } else { reason }
    })?;
    let settings = match first.get() {
        Some(text) => text.settings(path).map_err(|reason| in_file(path, &reason))?,
        None => Settings::default(),
    };
    if settings.records.is_some() != has_records {
        return Err(in_file(path, "the section `server` has changed during the start"));
    }
    Ok((file, settings, records))
}

fn in_file(path: &Path, reason: &str) -> String {
    format!("{}: {reason}", path.display())
}

/// Validates rules as a limiter would.
fn check_rules(rules: impl Into<RuleSource>) -> Result<(), String> {
    let limiter = RateLimiter::builder().rules(rules).build();
    limiter.map(drop).map_err(|error| error.to_string())
}
