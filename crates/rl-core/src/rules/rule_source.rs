//! The sources of the rules of a limiter: fixed rules, or a file.

use std::fmt;
use std::sync::Arc;

#[cfg(feature = "rules-file")]
use super::file::RulesFile;
use super::invalid_rules::InvalidRules;
#[cfg(feature = "rules-file")]
use super::live_rules::LiveRules;
use super::rule_list::Rules;
use super::rule_set::RuleSet;
use crate::observe::EventKind;
use crate::stats::RulesFileStats;
use crate::store::Namespace;

/// The rules for [`RateLimiterBuilder::rules`](crate::RateLimiterBuilder::rules).
///
/// [`Rules`] are fixed when the limiter is built. With the feature `rules-file`, the rules of a
/// `RulesFile` change with the file.
pub struct RuleSource(Source);

enum Source {
    Fixed(Rules),
    #[cfg(feature = "rules-file")]
    File(RulesFile),
    #[cfg(feature = "rules-file")]
    Live(LiveRules),
}

#[cfg(feature = "rules-file")]
impl From<RulesFile> for RuleSource {
    fn from(file: RulesFile) -> Self {
        Self(Source::File(file))
    }
}

#[cfg(feature = "rules-file")]
impl From<&RulesFile> for RuleSource {
    fn from(file: &RulesFile) -> Self {
        Self(Source::File(file.clone()))
    }
}

#[cfg(feature = "rules-file")]
impl From<&LiveRules> for RuleSource {
    fn from(rules: &LiveRules) -> Self {
        Self(Source::Live(rules.clone()))
    }
}

impl From<Rules> for RuleSource {
    fn from(rules: Rules) -> Self {
        Self(Source::Fixed(rules))
    }
}

impl RuleSource {
    /// Checks the rules of a limiter with this namespace. `is_shared` says whether it shares its
    /// counters with other processes.
    ///
    /// # Errors
    ///
    /// Returns an error for the first value that is not valid.
    pub(crate) fn activate(
        self,
        namespace: &Namespace,
        is_shared: bool,
    ) -> Result<ActiveRules, InvalidRules> {
        #[cfg(not(feature = "rules-file"))]
        let _ = is_shared;
        match self.0 {
            Source::Fixed(rules) => {
                let set = RuleSet::new(&rules, namespace)?;
                #[cfg(feature = "rules-file")]
                if let Some((path, warning)) = rules.warning_if_shared.filter(|_| is_shared) {
                    crate::observe::rules_warned(&path, &[warning]);
                }
                Ok(ActiveRules::Fixed(Arc::new(set)))
            }
            #[cfg(feature = "rules-file")]
            Source::File(file) => {
                let rules = file.subscribe(namespace, is_shared)?;
                Ok(ActiveRules::Watched { rules, file })
            }
            #[cfg(feature = "rules-file")]
            Source::Live(live) => Ok(ActiveRules::Live { rules: live.subscribe(namespace)?, live }),
        }
    }
}

impl fmt::Debug for RuleSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Source::Fixed(rules) => rules.fmt(f),
            #[cfg(feature = "rules-file")]
            Source::File(file) => file.fmt(f),
            #[cfg(feature = "rules-file")]
            Source::Live(rules) => rules.fmt(f),
        }
    }
}

/// The rules of a limiter.
pub(crate) enum ActiveRules {
    Fixed(Arc<RuleSet>),
    #[cfg(feature = "rules-file")]
    Watched {
        rules: Arc<arc_swap::ArcSwap<RuleSet>>,
        // Keeps the file watched as long as the limiter lives.
        file: RulesFile,
    },
    #[cfg(feature = "rules-file")]
    Live {
        rules: Arc<arc_swap::ArcSwap<RuleSet>>,
        live: LiveRules,
    },
}

impl ActiveRules {
    /// Returns the rules that apply now.
    pub(crate) fn current(&self) -> Arc<RuleSet> {
        match self {
            Self::Fixed(rules) => Arc::clone(rules),
            #[cfg(feature = "rules-file")]
            Self::Watched { rules, .. } | Self::Live { rules, .. } => rules.load_full(),
        }
    }

    /// Sets a function that gets the rules after each change of their file. Fixed rules never
    /// change.
    pub(crate) fn on_change(&self, on_change: impl Fn(&RuleSet) + Send + 'static) {
        match self {
            Self::Fixed(_) => drop(on_change),
            #[cfg(feature = "rules-file")]
            Self::Watched { rules, file } => file.on_change(rules, on_change),
            #[cfg(feature = "rules-file")]
            Self::Live { rules, live } => live.on_change(rules, on_change),
        }
    }

    /// Sets a function that gets an event after each reading that applied or refused the file.
    /// Fixed rules have no events.
    pub(crate) fn on_reading(&self, on_reading: impl Fn(EventKind<'_>) + Send + Sync + 'static) {
        match self {
            Self::Fixed(_) => drop(on_reading),
            #[cfg(feature = "rules-file")]
            Self::Watched { rules, file } => file.on_reading(rules, on_reading),
            #[cfg(feature = "rules-file")]
            Self::Live { .. } => drop(on_reading),
        }
    }

    /// Returns the readings of the file, if the rules are in one.
    pub(crate) fn file_stats(&self) -> Option<RulesFileStats> {
        match self {
            #[cfg(feature = "rules-file")]
            Self::Watched { file, .. } => Some(file.stats()),
            _ => None,
        }
    }

    /// Returns whether the rules may change.
    pub(crate) const fn may_change(&self) -> bool {
        !matches!(self, Self::Fixed(_))
    }
}
