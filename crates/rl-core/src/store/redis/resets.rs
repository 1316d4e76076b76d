//! Resets several subjects.

use super::RedisStore;
use super::subject_key::KeyedSubject;
use crate::maybe_ready::{both, done};
use crate::store::{Reset, Store, StoreFuture};

impl RedisStore {
    /// Makes several resets in one call, or in one for each slot of a cluster.
    pub(super) fn reset_together(&self, resets: &[Reset<'_>]) -> StoreFuture<()> {
        // A reset of one limit has a script of its own, so it cannot be in a call with other
        // resets.
        if resets.len() == 1 || resets.iter().any(|reset| reset.limit.is_some()) {
            return resets.iter().map(|reset| self.reset(*reset)).fold(done(), both);
        }
        let subject = |reset: &Reset<'_>| self.keyed(reset.namespace, reset.subject).to_owned();
        let subjects: Vec<KeyedSubject> = resets.iter().map(subject).collect();
        let reset = self.inner.executor.reset(resets).into_iter().fold(done(), both);
        self.inner.layers.reset_after_leases(subjects, reset)
    }
}
