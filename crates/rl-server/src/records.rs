//! The limits of rules from the records of a database.

use std::sync::{Arc, OnceLock};

use rl_core::source::{PolicyFuture, PolicySource};
use rl_core::{FailureKind, MaybeReady, StoreError, Subject};
use rl_records::RecordSource;

/// The limits of rules with `limits: records`. Clones share the source. Each rule has its own records
/// beside those that apply under every rule.
///
/// Look-ups fail until the server is connected to the database, so that a file can be checked
/// without it, and a server can start during an outage.
#[derive(Clone, Debug, Default)]
pub struct RecordLimits {
    source: Arc<OnceLock<RecordSource>>,
    rule: Option<Arc<str>>,
}

impl RecordLimits {
    /// Sets the source, once.
    pub fn set(&self, source: RecordSource) {
        // A second source is dropped.
        let _ = self.source.set(source);
    }

    /// Returns the source, if it was set.
    #[must_use]
    pub fn get(&self) -> Option<&RecordSource> {
        self.source.get()
    }
}

impl PolicySource for RecordLimits {
    fn policy(&self, subject: &Subject) -> PolicyFuture {
        match (self.get(), &self.rule) {
            (Some(source), Some(rule)) => source.for_rule(Arc::clone(rule)).policy(subject),
            (Some(source), None) => source.policy(subject),
            (None, _) => {
                let error = StoreError::new(FailureKind::Unavailable);
                MaybeReady::ready(Err(error.with_detail("the database of records")))
            }
        }
    }

    fn for_rule(&self, rule: &str) -> Option<Arc<dyn PolicySource>> {
        Some(Arc::new(Self { source: Arc::clone(&self.source), rule: Some(rule.into()) }))
    }
}
