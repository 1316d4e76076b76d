//! The mapping from the states of a policy to the lanes of a packed entry.
//!
//! A packed entry has six *lanes*, each with a time of 48 bits and a number of 32 bits. A lane
//! holds two cells of the policy's [plan](crate::algorithm::Plan), in the order of the plan:
//!
//! ```text
//! policy    10/second      100/minute:gcra                1000/hour:sliding-window-counter
//! lane      0              1              2               3               4                 5
//! time      window start   TAT            in use since    window start    first charge      -
//! number    used units     its fraction   0               current units   units before      -
//! ```
//!
//! An entry holds only a [`LayoutId`]. Each shard has a [`LayoutRegistry`] of the layouts in use.

use std::num::NonZeroU8;

use crate::algorithm::fixed_window::{CompiledWindows, LANES, PackedStates};
use crate::policy::Policy;

/// The states that the lanes of a packed entry hold, and their limits.
///
/// Limits with the same states may have different maxima. Eviction compares used fractions, so each
/// policy has a layout of its own until the registry [is crowded](LayoutRegistry::is_crowded).
#[derive(Debug)]
pub(super) struct StateLayout {
    /// The policy that the layout was created for.
    policy: Policy,
    /// The [`StateId`](crate::model::StateId) bits that identify the state of each fixed window in
    /// [`CompiledWindows`]. All are 0 if the policy has no such windows.
    states: [u64; LANES],
    /// The maximum of each of these windows.
    max: [u64; LANES],
    /// 2^40 / max of each of these windows: the used fraction that one unit adds.
    unit_fraction: [u64; LANES],
}

impl StateLayout {
    /// Creates the layout of `policy`, if its states fit into the lanes.
    fn new(policy: &Policy) -> Option<Self> {
        let windows = policy.compiled_windows();
        let max = windows.map_or([0; LANES], |windows| windows.max);
        policy.plan().fits_lanes().then(|| Self {
            policy: policy.clone(),
            states: windows.map_or([0; LANES], |windows| windows.states),
            unit_fraction: max.map(|max| (1 << 40) / max.max(1)),
            max,
        })
    }

    /// Returns the policy that the layout was created for.
    pub(super) const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns whether `policy` is a clone of the policy that the layout was created for. This
    /// takes less time than a comparison of their limits.
    #[inline]
    pub(super) fn is_same_handle(&self, policy: &Policy) -> bool {
        self.policy.is_same_handle(policy)
    }

    /// Returns whether `policy` equals the policy that the layout was created for.
    pub(super) fn has_limits_of(&self, policy: &Policy) -> bool {
        self.is_same_handle(policy) || self.policy == *policy
    }

    /// Returns whether the limits of `policy` use the states of this layout, in this order.
    #[inline]
    pub(super) fn has_states_of(&self, policy: &Policy) -> bool {
        self.is_same_handle(policy) || self.policy.has_states_of(policy)
    }

    /// Returns whether `windows` use the states of this layout, in this order.
    #[inline]
    pub(super) fn has_states_of_windows(&self, windows: &CompiledWindows) -> bool {
        are_equal(&self.states, &windows.states)
    }

    /// Returns whether `windows` have the maxima of this layout's limits.
    #[inline]
    pub(super) fn has_maxima_of(&self, windows: &CompiledWindows) -> bool {
        are_equal(&self.max, &windows.max)
    }

    /// Returns the compiled limits, if all are fixed windows that count units and are enforced.
    #[inline]
    pub(super) fn windows(&self) -> Option<&CompiledWindows> {
        self.policy.compiled_windows()
    }

    /// Returns the used fraction of the fullest fixed window, scaled to 0–255.
    pub(super) fn used_fraction_of_windows(&self, states: &PackedStates) -> u8 {
        let fractions = (0..LANES)
            .map(|lane| states.number(lane).saturating_mul(self.unit_fraction[lane]) >> 32);
        fractions.max().map_or(0, |fullest| u8::try_from(fullest).unwrap_or(u8::MAX))
    }
}

/// Compares all lanes without branches.
#[inline]
fn are_equal(one: &[u64; LANES], other: &[u64; LANES]) -> bool {
    let pairs = one.iter().zip(other);
    pairs.fold(0, |differences, (one, other)| differences | (one ^ other)) == 0
}

/// The number of a layout in its registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LayoutId(NonZeroU8);

impl LayoutId {
    /// The id in a new entry, until the layout of the entry is set.
    pub(super) const FIRST: Self = Self(NonZeroU8::MIN);

    const fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// The layouts of the subjects in one shard.
///
/// A layout is never removed, so clients that choose their policies must not be able to use up all
/// ids. Half of the ids are therefore reserved for policies whose states have no layout yet.
#[derive(Debug, Default)]
pub(super) struct LayoutRegistry(Vec<StateLayout>);

/// The id of a registered layout with the same states as the policy that was looked up.
#[derive(Clone, Copy, Debug)]
pub(super) struct LayoutMatch {
    pub(super) id: LayoutId,
    /// Whether the layout's policy has the same limits as the policy that was looked up. If not,
    /// the limits use the same states, but differ in other properties such as `max`.
    has_same_limits: bool,
}

impl LayoutRegistry {
    const MAX_LAYOUTS: usize = u8::MAX as usize;

    /// Returns a registered layout.
    #[inline]
    pub(super) fn get(&self, id: LayoutId) -> &StateLayout {
        &self.0[id.index()]
    }

    /// Returns whether all unused ids are reserved for policies whose states have no layout yet.
    #[inline]
    pub(super) fn is_crowded(&self) -> bool {
        self.0.len() >= Self::MAX_LAYOUTS / 2
    }

    /// Returns the registered layout of a policy with equal limits, or else a layout of the same
    /// states.
    pub(super) fn find(&self, policy: &Policy) -> Option<LayoutMatch> {
        if !policy.plan().fits_lanes() {
            return None;
        }
        let same_limits = self.0.iter().position(|layout| layout.has_limits_of(policy));
        let same_states = || self.0.iter().position(|layout| layout.has_states_of(policy));
        let index = same_limits.or_else(same_states)?;
        Some(LayoutMatch { id: Self::id(index)?, has_same_limits: same_limits.is_some() })
    }

    /// Returns the layout of `policy`. Registers it first if necessary.
    ///
    /// Returns `None` if the states do not fit into the lanes, or if the registry is full.
    pub(super) fn find_or_register(&mut self, policy: &Policy) -> Option<LayoutId> {
        match self.find(policy) {
            Some(found) if found.has_same_limits || self.is_crowded() => return Some(found.id),
            None if self.0.len() >= Self::MAX_LAYOUTS => return None,
            _ => {}
        }
        let id = Self::id(self.0.len())?;
        self.0.push(StateLayout::new(policy)?);
        Some(id)
    }

    fn id(index: usize) -> Option<LayoutId> {
        u8::try_from(index + 1).ok().and_then(NonZeroU8::new).map(LayoutId)
    }
}
