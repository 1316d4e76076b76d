//! The parts of a request, grouped by the counters that they charge.

use arrayvec::ArrayVec;
use smallvec::SmallVec;

use super::{DecideRequest, Namespace, Part};
use crate::decision::{Decision, DecisionList, PartFlags};
use crate::model::{Cost, FailureKind, StoreError, Subject};
use crate::policy::Policy;

/// The parts of a request that charge the same counters: those of one subject in one namespace.
#[derive(Clone, Copy, Debug)]
// Only the store on Redis reads the namespace and the subject. For the store in memory, the key
// suffices.
#[cfg_attr(not(feature = "redis"), allow(dead_code))]
pub(crate) struct PartGroup<'a, K> {
    /// The key of the counters.
    pub(crate) key: K,
    pub(crate) namespace: &'a Namespace,
    pub(crate) subject: &'a Subject,
    pub(crate) policy: &'a Policy,
    /// The sum of the costs of these parts.
    pub(crate) cost: Cost,
    pub(crate) is_shadow: bool,
}

/// The decisions on groups, in their order.
#[cfg(feature = "redis")]
pub(crate) type GroupDecisions = SmallVec<[Decision; 1]>;

/// The parts of a request, in groups with different keys.
#[derive(Debug)]
pub(crate) struct PartGroups<'a, K> {
    groups: ArrayVec<PartGroup<'a, K>, { Part::MAX }>,
    join: PartJoin,
}

/// Combines the decisions of groups into the decision about a request.
#[derive(Clone, Debug)]
pub(crate) struct PartJoin {
    /// The cost of each part, and its group.
    parts: ArrayVec<(Cost, u8), { Part::MAX }>,
    flags: PartFlags,
}

impl<'a, K: Copy + Eq> PartGroups<'a, K> {
    /// Groups the parts of `request` by `key`.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`add`](Self::add).
    #[cfg(feature = "redis")]
    pub(crate) fn new(
        request: &DecideRequest<'a>,
        key: impl Fn(&'a Namespace, &'a Subject) -> K,
    ) -> Result<Self, StoreError> {
        let mut grouped = Self::empty();
        grouped.add(request, key)?;
        Ok(grouped)
    }

    /// Creates a value without groups.
    pub(crate) fn empty() -> Self {
        let join = PartJoin { parts: ArrayVec::new(), flags: PartFlags::default() };
        Self { groups: ArrayVec::new(), join }
    }

    /// Adds the parts of `request` to an empty value, and groups them by `key`. A value that is
    /// filled in place need not be moved.
    ///
    /// # Errors
    ///
    /// Returns an error of kind [`FailureKind::Unsupported`] if the request has no part or too
    /// many, or if parts with the same key differ in more than their cost.
    pub(crate) fn add(
        &mut self,
        request: &DecideRequest<'a>,
        key: impl Fn(&'a Namespace, &'a Subject) -> K,
    ) -> Result<(), StoreError> {
        check_count(request.parts)?;
        self.join.flags = Part::flags(request.parts);
        for (index, part) in request.parts.iter().enumerate() {
            let (Part { subject, policy, cost, .. }, is_shadow) = (*part, part.is_shadow());
            let namespace = request.namespace_of(part);
            let key = key(namespace, subject);
            let known = self.groups.iter().position(|group| group.key == key);
            self.join.parts.push((cost, known.unwrap_or(self.groups.len()) as u8));
            match known {
                Some(known) => self.groups[known].join(index, part)?,
                None => {
                    let group = PartGroup { key, namespace, subject, policy, cost, is_shadow };
                    self.groups.push(group);
                }
            }
        }
        Ok(())
    }

    /// Returns the groups, in the order of their first parts.
    pub(crate) fn groups(&self) -> &[PartGroup<'a, K>] {
        &self.groups
    }

    /// Returns the decision on the request, as [`PartJoin::decision`] does.
    pub(crate) fn decision(&self, decisions: DecisionList) -> Decision {
        self.join.decision(decisions)
    }

    /// Returns the data with which the decisions of the groups are combined.
    #[cfg(feature = "redis")]
    pub(crate) fn join(&self) -> PartJoin {
        self.join.clone()
    }
}

impl<K> PartGroup<'_, K> {
    /// Adds the part at `index` of a request, which has the subject and the namespace of the group.
    /// Fails if its policy differs from that of the group, or if only one of them is in shadow.
    fn join(&mut self, index: usize, part: &Part<'_>) -> Result<(), StoreError> {
        let is_same_policy = self.policy.is_same_handle(part.policy) || self.policy == part.policy;
        if !is_same_policy || self.is_shadow != part.is_shadow() {
            return Err(unsupported(format!(
                "part {index} counts the subject of another part in one namespace, but under \
                 other limits: give each rule a namespace of its own"
            )));
        }
        self.cost = Cost::new(self.cost.units().saturating_add(part.cost.units()));
        Ok(())
    }
}

impl PartJoin {
    /// Returns the decision on the request. `decisions` contains one decision for each group, in
    /// the order of the groups.
    ///
    /// Parts of one group have the same status. The charge of the group is divided among them in
    /// their order, each up to its cost.
    pub(crate) fn decision(&self, decisions: DecisionList) -> Decision {
        let is_divided = decisions.all().len() != self.parts.len();
        let decisions = if is_divided { self.divide(decisions.all()) } else { decisions };
        Decision::of_parts(self.flags, decisions)
    }

    /// Returns one decision for each part. If several parts share a group, divides its charge among
    /// them.
    fn divide(&self, groups: &[Decision]) -> DecisionList {
        let mut charged: SmallVec<[u64; 4]> = groups.iter().map(Decision::charged).collect();
        let decision = self.parts.iter().map(|(cost, group)| {
            let group = usize::from(*group);
            let share = charged[group].min(cost.units());
            charged[group] -= share;
            groups[group].clone().with_units(*cost, share)
        });
        decision.collect()
    }
}

/// Returns the largest number of units that every enforced group can grant. A group with a smaller
/// cost need only grant its cost.
///
/// `available` contains, for each group, the number of units that it can be charged. Returns
/// `u64::MAX` if every enforced group can grant its whole cost, and `None` if one can grant nothing
/// of it, so that the request is denied.
pub(crate) fn common_units<K>(groups: &[PartGroup<'_, K>], available: &[u64]) -> Option<u64> {
    let enforced = groups.iter().zip(available).filter(|(group, _)| !group.is_shadow);
    let scarce = enforced.filter(|(group, available)| **available < group.cost.units());
    let units = scarce.map(|(_, available)| *available).min().unwrap_or(u64::MAX);
    (units > 0).then_some(units)
}

/// Returns the units that the enforced limits of this decision can grant now.
pub(crate) fn available(decision: &Decision) -> u64 {
    let granted = decision.enforced().map(|status| match status.remaining() {
        1.. if status.limit().counts_requests() => u64::MAX,
        remaining => remaining,
    });
    granted.min().unwrap_or(u64::MAX)
}

/// Checks the number of parts of a request.
///
/// # Errors
///
/// Returns an error of kind [`FailureKind::Unsupported`] if there is no part, or if there are too
/// many.
fn check_count(parts: &[Part<'_>]) -> Result<(), StoreError> {
    if (1..=Part::MAX).contains(&parts.len()) { Ok(()) } else { Err(wrong_count(parts.len())) }
}

#[cold]
fn wrong_count(parts: usize) -> StoreError {
    let max = Part::MAX;
    unsupported(format!("a request of {parts} parts: expected 1 to {max}"))
}

#[cold]
fn unsupported(detail: String) -> StoreError {
    StoreError::new(FailureKind::Unsupported).with_detail(detail)
}
