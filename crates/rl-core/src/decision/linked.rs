//! The further decisions that a decision contains: that of the outer limiter, and those on the
//! parts of the request, with their labels. `D` is the type of a decision.

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};

use arrayvec::ArrayVec;

use super::labels::{Labels, MAX_PARTS};

/// Further decisions that belong to a decision. Most decisions have none.
#[derive(Clone, Debug)]
pub(super) struct Linked<D> {
    /// The decision of the outer limiter, if limiters are nested.
    pub(super) outer: Option<D>,
    /// The decisions on the parts of a request that is counted under several subjects.
    pub(super) parts: DecidedParts<D>,
    /// The labels of the parts, which responses show.
    pub(super) labels: Labels,
}

impl<D> Linked<D> {
    pub(super) fn empty() -> Self {
        Self { outer: None, parts: DecidedParts::empty(), labels: Labels::default() }
    }
}

/// The properties of the parts of a request, two bits for each part.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PartFlags(u16);

impl PartFlags {
    /// The part denies nothing.
    pub(crate) const SHADOW: u8 = 1;
    /// Headers and messages do not describe the part.
    pub(crate) const UNDISCLOSED: u8 = 2;

    /// Adds the properties of the part at `index`.
    pub(crate) const fn add(&mut self, index: usize, properties: u8) {
        self.0 |= (properties as u16) << (2 * index);
    }

    /// Returns whether a part is in shadow.
    pub(crate) const fn has_shadow(self) -> bool {
        const ALL_IN_SHADOW: u16 = u16::MAX / 3 * PartFlags::SHADOW as u16;

        self.0 & ALL_IN_SHADOW != 0
    }

    const fn of_part(self, index: usize) -> u8 {
        (self.0 >> (2 * index)) as u8
    }

    pub(super) const fn is_shadow(self, index: usize) -> bool {
        self.of_part(index) & Self::SHADOW != 0
    }

    pub(super) const fn is_disclosed(self, index: usize) -> bool {
        self.of_part(index) & Self::UNDISCLOSED == 0
    }
}

/// The decisions on the parts of a request.
pub(super) struct DecidedParts<D> {
    /// The decisions in the order of the parts. Those from `len` on belong to an earlier request,
    /// and are overwritten in place when parts are added.
    slots: ArrayVec<D, MAX_PARTS>,
    /// The number of parts; 0 for a request of one subject.
    len: usize,
    pub(super) flags: PartFlags,
    pub(super) governing: GoverningPart,
    /// Whether an enforced part denied the request.
    pub(super) is_denied: bool,
    /// Whether a part is in shadow, or has a limit in shadow.
    pub(super) has_shadow: bool,
}

impl<D> DecidedParts<D> {
    fn empty() -> Self {
        Self {
            slots: ArrayVec::new(),
            len: 0,
            flags: PartFlags::default(),
            governing: GoverningPart::unknown(),
            is_denied: false,
            has_shadow: false,
        }
    }

    /// Returns the decisions in the order of the parts.
    pub(super) fn all(&self) -> &[D] {
        &self.slots[..self.len]
    }

    pub(super) fn all_mut(&mut self) -> &mut [D] {
        &mut self.slots[..self.len]
    }

    /// Adds a part. Returns its decision, which the caller has to overwrite: it still contains the
    /// values of an earlier request, or of `unset`.
    pub(super) fn add(&mut self, unset: impl FnOnce() -> D) -> &mut D {
        if self.len >= self.slots.len() {
            self.slots.push(unset());
        }
        self.len += 1;
        &mut self.slots[self.len - 1]
    }

    /// Removes all parts.
    pub(super) fn clear(&mut self) {
        self.len = 0;
        self.governing = GoverningPart::unknown();
        self.has_shadow = false;
    }
}

// Not derived, because equal decisions must look equal. The output omits the decisions of earlier
// requests, and whether the governing part has been found.
impl<D: fmt::Debug> fmt::Debug for DecidedParts<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { flags, is_denied, has_shadow, .. } = self;
        f.debug_struct("DecidedParts")
            .field("all", &self.all())
            .field("flags", flags)
            .field("is_denied", is_denied)
            .field("has_shadow", has_shadow)
            .finish()
    }
}

impl<D: Clone> Clone for DecidedParts<D> {
    fn clone(&self) -> Self {
        let Self { len, flags, is_denied, has_shadow, .. } = *self;
        let slots = self.all().iter().cloned().collect();
        Self { slots, len, flags, governing: self.governing.clone(), is_denied, has_shadow }
    }
}

/// The position of the governing part, if there is one. It is computed when it is first read,
/// because the computation takes the status of every limit, and most callers read only the verdict.
#[derive(Debug)]
pub(super) struct GoverningPart(AtomicU8);

impl GoverningPart {
    const UNKNOWN: u8 = u8::MAX;
    const NONE: u8 = u8::MAX - 1;

    pub(super) const fn unknown() -> Self {
        Self(AtomicU8::new(Self::UNKNOWN))
    }

    /// Creates the position `index` of a governing part that is already known.
    pub(super) const fn at(index: usize) -> Self {
        Self(AtomicU8::new(index as u8))
    }

    /// Returns the position, or `None` if no part governs. The first call computes it with `find`.
    pub(super) fn get_or_find(&self, find: impl FnOnce() -> Option<usize>) -> Option<usize> {
        // Concurrent calls find the same part, so relaxed ordering is enough.
        match self.0.load(Ordering::Relaxed) {
            Self::UNKNOWN => {
                let found = find();
                self.0.store(found.map_or(Self::NONE, |index| index as u8), Ordering::Relaxed);
                found
            }
            Self::NONE => None,
            index => Some(index.into()),
        }
    }
}

impl Clone for GoverningPart {
    fn clone(&self) -> Self {
        Self(AtomicU8::new(self.0.load(Ordering::Relaxed)))
    }
}
