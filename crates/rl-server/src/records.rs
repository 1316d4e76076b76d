//! The limits of rules from the records of a database.

use std::sync::{Arc, OnceLock};

use rl_core::source::{PolicyFuture, PolicySource};
use rl_core::{FailureKind, MaybeReady, StoreError, Subject};
use rl_records::RecordSource;

/// The limits of rules with `limits: records`. Clones share the source.
///
/// Look-ups fail until the server is connected to the database, so that a file can be checked
/// without it, and a server can start during an outage.
#[derive(Clone, Debug, Default)]
pub struct RecordLimits(Arc<OnceLock<RecordSource>>);

impl RecordLimits {
    /// Sets the source, once.
    pub fn set(&self, source: RecordSource) {
        // A second source is dropped.
        let _ = self.0.set(source);
    }

    /// Returns the source, if it was set.
    #[must_use]
    pub fn get(&self) -> Option<&RecordSource> {
        self.0.get()
    }
}

impl PolicySource for RecordLimits {
    fn policy(&self, subject: &Subject) -> PolicyFuture {
        match self.get() {
            Some(source) => source.policy(subject),
            None => {
                let error = StoreError::new(FailureKind::Unavailable);
                MaybeReady::ready(Err(error.with_detail("the database of records")))
            }
        }
    }
}
