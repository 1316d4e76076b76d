//! The mapping from the fixed windows of a policy to the lanes of a packed entry.
//!
//! A packed entry has six *lanes*, each with a time of 48 bits and a number of 32 bits. A lane
//! holds one window, in the order of the policy:
//!
//! ```text
//! policy    10/second       100/minute      1000/hour:clock
//! lane      0               1               2                3  4  5
//! time      first charge    first charge    first charge     -  -  -
//! number    used units      used units      used units       -  -  -
//! ```
//!
//! An entry holds only a [`LayoutId`]. Each shard has a [`LayoutRegistry`] of the layouts in use.

use std::num::NonZeroU8;

use crate::algorithm::fixed_window::{CompiledWindows, LANES, PackedStates};
use crate::policy::Policy;

/// The windows that the lanes of a packed entry hold.
///
/// Windows with the same states may have different maxima. Eviction compares used fractions, so
/// each policy has a layout of its own until the registry [is crowded](LayoutRegistry::is_crowded).
#[derive(Debug)]
pub(super) struct StateLayout {
    /// The policy that the layout was created for.
    policy: Policy,
    windows: CompiledWindows,
    /// 2^40 / max of each window: the used fraction that one unit adds.
    unit_fraction: [u64; LANES],
}

impl StateLayout {
    /// Creates the layout of `policy`, if its limits are at most six fixed windows.
    fn new(policy: &Policy) -> Option<Self> {
        let windows = *policy.compiled_windows()?;
        let unit_fraction = windows.max.map(|max| (1 << 40) / max.max(1));
        Some(Self { policy: policy.clone(), windows, unit_fraction })
    }

    /// Returns the policy that the layout was created for.
    pub(super) const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns whether `policy` is a clone of the policy that the layout was created for. This
    /// takes less time than a comparison of their limits.
    pub(super) fn is_same_handle(&self, policy: &Policy) -> bool {
        self.policy.is_same_handle(policy)
    }

    /// Returns whether `policy` equals the policy that the layout was created for.
    pub(super) fn has_limits_of(&self, policy: &Policy) -> bool {
        self.is_same_handle(policy) || self.policy == *policy
    }

    /// Returns whether the limits of `policy` are the windows of this layout, in this order.
    pub(super) fn has_windows_of(&self, policy: &Policy) -> bool {
        self.is_same_handle(policy)
            || policy.compiled_windows().is_some_and(|windows| self.has_states_of(windows))
    }

    /// Returns whether `windows` use the states of this layout, in this order.
    pub(super) fn has_states_of(&self, windows: &CompiledWindows) -> bool {
        are_equal(&self.windows.states, &windows.states)
    }

    /// Returns whether `windows` have the maxima of this layout's limits.
    pub(super) fn has_maxima_of(&self, windows: &CompiledWindows) -> bool {
        are_equal(&self.windows.max, &windows.max)
    }

    /// Returns the windows.
    pub(super) const fn windows(&self) -> &CompiledWindows {
        &self.windows
    }

    /// Returns the used fraction of the fullest window, scaled to 0–255.
    pub(super) fn used_fraction(&self, states: &PackedStates) -> u8 {
        let fractions = (0..LANES)
            .map(|lane| states.number(lane).saturating_mul(self.unit_fraction[lane]) >> 32);
        fractions.max().map_or(0, |fullest| u8::try_from(fullest).unwrap_or(u8::MAX))
    }
}

/// Compares all lanes without branches.
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

impl LayoutRegistry {
    const MAX_LAYOUTS: usize = u8::MAX as usize;

    /// Returns a registered layout.
    pub(super) fn get(&self, id: LayoutId) -> &StateLayout {
        &self.0[id.index()]
    }

    /// Returns whether all unused ids are reserved for policies whose states have no layout yet.
    pub(super) fn is_crowded(&self) -> bool {
        self.0.len() >= Self::MAX_LAYOUTS / 2
    }

    /// Returns the layout of `policy`: one of equal limits, or else a new one. While the registry
    /// is crowded, a layout of the same states is returned rather than a new one.
    ///
    /// Returns `None` if the limits are not at most six fixed windows, or if the registry is full.
    pub(super) fn find_or_register(&mut self, policy: &Policy) -> Option<LayoutId> {
        let same_limits = self.0.iter().position(|layout| layout.has_limits_of(policy));
        let same_states = || self.0.iter().position(|layout| layout.has_windows_of(policy));
        let crowded = self.is_crowded();
        if let Some(known) = same_limits.or_else(|| same_states().filter(|_| crowded)) {
            return Self::id(known);
        }
        let id = Self::id(self.0.len())?;
        self.0.push(StateLayout::new(policy)?);
        Some(id)
    }

    fn id(index: usize) -> Option<LayoutId> {
        u8::try_from(index + 1).ok().and_then(NonZeroU8::new).map(LayoutId)
    }
}
