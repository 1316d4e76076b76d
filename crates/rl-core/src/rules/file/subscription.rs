//! The limiters that follow a rule file.

use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;

use super::error::RulesFileError;
use crate::observe::EventKind;
use crate::rules::rule_set::RuleSet;
use crate::store::Namespace;

/// A limiter whose rules change with the file.
pub(super) struct Subscription {
    pub(super) namespace: Namespace,
    pub(super) rules: Weak<ArcSwap<RuleSet>>,
    /// Whether the limiter shares its counters with other processes.
    pub(super) is_shared: bool,
    pub(super) on_change: Option<OnChange>,
    pub(super) on_reading: Option<OnReading>,
}

/// A function that gets the rules of a limiter after each change.
pub(super) type OnChange = Box<dyn Fn(&RuleSet) + Send>;

/// A function that gets an event after each reading that applied or refused the file.
pub(super) type OnReading = Arc<dyn Fn(EventKind<'_>) + Send + Sync>;

/// Returns the event of a reading that applied or refused the file.
pub(super) fn event_of<'a>(
    path: &'a Path,
    applied: &'a Result<(), RulesFileError>,
    version: &'a str,
    duration: Duration,
) -> EventKind<'a> {
    match applied {
        Ok(()) => EventKind::RulesApplied { path, version, duration },
        Err(error) => EventKind::RulesRefused { path, error, duration },
    }
}
