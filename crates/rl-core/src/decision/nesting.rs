//! Decisions of nested limiters: each contains the decision of the next outer limiter.

use std::thread::LocalKey;

use super::Decision;
use super::labels::Labels;
use super::linked::{DecidedParts, Linked};
use super::recycled::{Recycle, Slots};

thread_local! {
    static RECYCLED: Slots<Linked<Decision>> = const { Slots::empty() };
}

impl Recycle for Linked<Decision> {
    const SLOTS: &'static LocalKey<Slots<Self>> = &RECYCLED;

    fn unset() -> Self {
        Self::empty()
    }

    fn clear(&mut self) {
        self.outer = None;
        self.parts.clear();
        self.labels = Labels::default();
    }
}

impl Decision {
    /// Sets the limiter, the hash of the counted subject, and the decision of the outer limiter.
    pub(crate) fn set_nesting(
        &mut self,
        limiter_id: usize,
        subject_hash: u64,
        outer: Option<Self>,
    ) {
        self.counted = counted(limiter_id, subject_hash);
        self.set_outer(outer);
    }

    /// Returns the same decision with another outer decision.
    pub(crate) fn inside(mut self, outer: Option<Self>) -> Self {
        self.set_outer(outer);
        self
    }

    fn set_outer(&mut self, outer: Option<Self>) {
        if outer.is_some() {
            self.linked.get_or_new().outer = outer;
        } else if let Some(linked) = self.linked.get_mut() {
            linked.outer = None;
        }
    }

    /// Returns the decisions on the parts of the request; `None` if it was not decided as a list of
    /// parts.
    #[inline]
    pub(super) fn decided_parts(&self) -> Option<&DecidedParts<Self>> {
        self.linked.get().map(|linked| &linked.parts).filter(|parts| !parts.all().is_empty())
    }

    /// Returns the decision of the outer limiter, if the request has passed through one.
    #[must_use]
    pub fn outer(&self) -> Option<&Self> {
        self.linked.get()?.outer.as_ref()
    }

    /// Returns whether the limiter with this id decided about the subject with this hash. The
    /// decisions of outer limiters are searched too.
    pub(crate) fn was_made_by(&self, limiter_id: usize, subject_hash: u64) -> bool {
        self.counted == counted(limiter_id, subject_hash)
            || self.outer().is_some_and(|outer| outer.was_made_by(limiter_id, subject_hash))
    }
}

/// Combines a limiter and the keyed hash of a subject into one number, which keeps decisions small.
///
/// The factor is odd, so two limiters have different numbers for one subject. Under one limiter,
/// two subjects have the same number only if their hashes are the same.
const fn counted(limiter_id: usize, subject_hash: u64) -> u64 {
    (limiter_id as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ subject_hash
}
