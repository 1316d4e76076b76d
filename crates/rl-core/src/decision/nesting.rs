//! Decisions of nested limiters: each contains the decision of the next outer limiter.

use std::sync::Arc;

use super::Decision;
use super::linked::{DecidedParts, Linked};

impl Decision {
    /// Sets the limiter, the hash of the counted subject, and the decision of the outer limiter.
    pub(crate) fn set_nesting(
        &mut self,
        limiter_id: usize,
        subject_hash: u64,
        outer: Option<Self>,
    ) {
        self.limiter_id = limiter_id;
        self.subject_hash = subject_hash;
        if outer.is_some() || self.linked.is_some() {
            self.link(outer);
        }
    }

    /// Removes the decision of the outer limiter.
    pub(crate) fn remove_outer(&mut self) {
        if self.linked.is_some() {
            self.link(None);
        }
    }

    /// Replaces the decision of the outer limiter, and keeps the decisions on the parts.
    fn link(&mut self, outer: Option<Self>) {
        let linked = self.linked.take();
        let parts = linked.and_then(|linked| match Arc::try_unwrap(linked) {
            Ok(linked) => linked.parts,
            Err(shared) => shared.parts.clone(),
        });
        if outer.is_some() || parts.is_some() {
            self.linked = Some(Arc::new(Linked { outer, parts }));
        }
    }

    pub(super) fn set_parts(&mut self, parts: DecidedParts<Self>) {
        self.linked = Some(Arc::new(Linked { outer: None, parts: Some(parts) }));
    }

    pub(super) fn decided_parts(&self) -> Option<&DecidedParts<Self>> {
        self.linked.as_ref()?.parts.as_ref()
    }

    /// Returns the decision of the outer limiter, if the request has passed through one.
    #[must_use]
    pub fn outer(&self) -> Option<&Self> {
        self.linked.as_ref()?.outer.as_ref()
    }

    /// Returns whether the limiter with this id decided about the subject with this hash. The
    /// decisions of outer limiters are searched too.
    pub(crate) fn was_made_by(&self, limiter_id: usize, subject_hash: u64) -> bool {
        (self.limiter_id, self.subject_hash) == (limiter_id, subject_hash)
            || self.outer().is_some_and(|outer| outer.was_made_by(limiter_id, subject_hash))
    }
}
