//! Settles charges. The store repeats a settlement that Redis has certainly not executed.

use smallvec::SmallVec;

use super::RedisStore;
use super::connection::Command;
use super::layer::{Amendment, Layer};
use super::subject_key::SubjectKey;
use crate::maybe_ready::{MaybeReady, both, done};
use crate::model::{FailureKind, StoreError};
use crate::store::{Refund, Settlement, Store, StoreFuture};

impl RedisStore {
    /// Settles the charges of several subjects in one script call.
    ///
    /// On a cluster, subjects in different slots are settled by calls of their own.
    pub(super) fn settle_all(&self, settlements: &[Settlement<'_>]) -> StoreFuture<()> {
        let open = settlements.iter().filter(|settlement| !settlement.is_empty());
        let open: SmallVec<[Settlement<'_>; 4]> = open.copied().collect();
        if let [settlement] = &open[..]
            && let Some(refund) = sole_refund(settlement)
        {
            return self.refund(refund);
        }
        let is_same = |(index, one): (usize, &Settlement<'_>)| {
            open[index + 1..].iter().any(|other| one.has_counters_of(other))
        };
        if open.iter().enumerate().any(is_same) {
            let error = StoreError::new(FailureKind::Unsupported);
            let error = error.with_detail("several settlements of one subject in one call");
            return MaybeReady::ready(Err(error));
        }
        let key = |settlement: &Settlement<'_>| -> SubjectKey {
            self.keyed(settlement.namespace, settlement.subject).key
        };
        let subjects: SmallVec<[SubjectKey; 4]> = open.iter().map(key).collect();
        match self.inner.executor.encoder().settle(&open) {
            Ok(commands) => {
                let settle = |command| self.run_settlement(subjects.clone(), command);
                let settled = commands.into_iter().map(settle);
                settled.map(|settled| settled.map(|reply| reply.map(drop))).fold(done(), both)
            }
            Err(error) => MaybeReady::ready(Err(error)),
        }
    }

    /// Makes a refund, or ends a reservation. Resolves to the reply of the script.
    pub(super) fn run_amendment(&self, amendment: Amendment) -> StoreFuture<Vec<u8>> {
        let layers = self.inner.layers.clone();
        self.inner.give_back.run(move || layers.amend(amendment.clone()))
    }

    /// Runs a command that settles charges of these subjects.
    fn run_settlement(
        &self,
        subjects: SmallVec<[SubjectKey; 4]>,
        command: Command,
    ) -> StoreFuture<Vec<u8>> {
        let (layers, executor) = (self.inner.layers.clone(), self.inner.executor.clone());
        self.inner.give_back.run(move || {
            let settled = executor.send(command.clone());
            layers.denials().invalidate_after(subjects.iter().copied(), settled)
        })
    }
}

/// Returns the refund of a settlement that consists of one refund and no further charge; otherwise
/// `None`.
fn sole_refund<'a>(settlement: &Settlement<'a>) -> Option<Refund<'a>> {
    let (release, refund) = (settlement.release(), settlement.refund());
    match (release.is_empty(), refund.is_empty()) {
        (false, true) if settlement.added == 0 => Some(release),
        (true, false) if settlement.added == 0 => Some(refund),
        _ => None,
    }
}
