//! The further decisions that a decision contains: that of the outer limiter, and those on the
//! parts of the request. `D` is the type of a decision.

use smallvec::SmallVec;

/// Further decisions that belong to a decision. Most decisions have none.
#[derive(Debug)]
pub(super) struct Linked<D> {
    /// The decision of the outer limiter, if limiters are nested.
    pub(super) outer: Option<D>,
    /// The decisions on the parts of a request that is counted under several subjects.
    pub(super) parts: Option<DecidedParts<D>>,
}

/// The properties of the parts of a request, one bit for each part.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PartFlags {
    /// The parts that deny nothing.
    pub(crate) shadow: u8,
    /// The parts that headers and messages do not describe.
    pub(crate) undisclosed: u8,
}

impl PartFlags {
    pub(super) const fn is_shadow(self, index: usize) -> bool {
        self.shadow >> index & 1 == 1
    }

    pub(super) const fn is_disclosed(self, index: usize) -> bool {
        self.undisclosed >> index & 1 == 0
    }
}

/// The decisions on the parts of a request. The decision on the governing part is not in `others`:
/// it is the decision that contains this value.
#[derive(Clone, Debug)]
pub(super) struct DecidedParts<D> {
    pub(super) others: SmallVec<[D; 2]>,
    pub(super) flags: PartFlags,
    /// The position of the governing part, if there is one.
    pub(super) governing: Option<usize>,
    /// Whether an enforced part denied the request.
    pub(super) is_denied: bool,
}

impl<D> DecidedParts<D> {
    /// Returns the number of parts.
    pub(super) fn len(&self) -> usize {
        self.others.len() + usize::from(self.governing.is_some())
    }

    /// Returns the part at `index`. `own` is the decision to which the parts belong.
    pub(super) fn get<'a>(&'a self, index: usize, own: &'a D) -> &'a D {
        match self.governing {
            Some(governing) if governing == index => own,
            Some(governing) if governing < index => &self.others[index - 1],
            _ => &self.others[index],
        }
    }
}
