//! Creates the commands for decisions and amendments, in each layout.

use super::layout::Layout;
use super::placement::Placement;
use super::policy::{PolicyEncoding, has_fast_path};
use super::reply::CallArgs;
use super::{arguments, keys};
use crate::model::{Algorithm, Anchor, Cost, FailureKind, Mode, Period, StoreError, Subject};
use crate::policy::Policy;
use crate::store::redis::connection::Command;
#[cfg(feature = "redis-cluster")]
use crate::store::redis::hash_slot::slot_of;
use crate::store::redis::layer::Amendment;
use crate::store::redis::scripts::{self, Purpose, Script, ShapeScripts};
use crate::store::redis::subject_key::KeyedSubject;
use crate::store::{Namespace, Reservations};
use std::time::Duration;

/// One call of a deciding script, with the same costs for each of its subjects.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DecideCall<'a> {
    /// The subjects to decide. There may be several only for a check under a policy with a fast
    /// path ([`has_fast_path`]).
    pub(crate) subjects: &'a [&'a KeyedSubject],
    pub(crate) policy: &'a Policy,
    pub(crate) mode: Mode,
    pub(crate) costs: CallCosts<'a>,
    pub(crate) reservations: Reservations,
}

/// The costs of the calls of each subject. The calls are decided one after the other.
///
/// There may be several calls only in the packed layout.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CallCosts<'a> {
    /// `calls` calls of one cost. If fewer than `least` of them would be allowed, none is.
    Same { cost: Cost, calls: u16, least: u16 },
    /// A call for each of these costs.
    Each(&'a [Cost]),
}

impl CallCosts<'_> {
    /// Returns the costs of a single call.
    pub(crate) const fn same(cost: Cost) -> Self {
        Self::Same { cost, calls: 1, least: 1 }
    }
}

impl<'a> DecideCall<'a> {
    /// Returns the number of calls of each subject.
    pub(crate) fn calls(&self) -> u16 {
        match self.costs {
            CallCosts::Same { calls, .. } => calls,
            CallCosts::Each(costs) => u16::try_from(costs.len()).unwrap_or(u16::MAX),
        }
    }

    /// Returns the arguments of a decision on a call of `cost`.
    pub(crate) const fn args(&self, cost: Cost) -> CallArgs<'a> {
        CallArgs { policy: self.policy, mode: self.mode, cost }
    }

    /// Returns the time for which charged units are reserved.
    ///
    /// A peek and [`Mode::Charge`] make no reservation: a peek charges nothing, and `Charge` is for
    /// work that is already done.
    pub(crate) fn lifetime(&self) -> Option<Duration> {
        match self.reservations {
            Reservations::Reserve(lifetime)
                if self.mode != Mode::Peek && self.mode != Mode::Charge =>
            {
                Some(lifetime)
            }
            _ => None,
        }
    }
}

/// Creates commands for one layout and one prefix of keys.
#[derive(Debug)]
pub(crate) struct RequestEncoder {
    pub(crate) layout: Layout,
    prefix: String,
    pub(super) placement: Placement,
    pub(super) decide_scripts: ShapeScripts,
    pub(super) refund_scripts: ShapeScripts,
    pub(super) part_scripts: ShapeScripts,
}

impl RequestEncoder {
    /// Creates an encoder. At most `script_shapes` combinations of kinds of limits get a fast
    /// script of their own, for each purpose: decisions, refunds, and requests of parts. The other combinations use the script that accepts any policy.
    pub(crate) fn new(
        layout: Layout,
        prefix: String,
        placement: Placement,
        script_shapes: usize,
    ) -> Self {
        let decide = match layout {
            Layout::Packed => Purpose::Decide,
            Layout::Readable => Purpose::DecideReadable,
        };
        Self {
            layout,
            prefix,
            placement,
            decide_scripts: ShapeScripts::new(decide, script_shapes),
            refund_scripts: ShapeScripts::new(Purpose::Refund, script_shapes),
            part_scripts: ShapeScripts::new(Purpose::Parts, script_shapes),
        }
    }

    /// Returns the slot of a cluster that holds all keys of a subject; 0 if one server holds all
    /// keys.
    pub(crate) fn slot_of_subject(&self, namespace: &Namespace, subject: &Subject) -> u16 {
        if !self.placement.is_cluster() {
            return 0;
        }
        let Self { layout, prefix, placement, .. } = self;
        let key = match layout {
            Layout::Packed => keys::packed(prefix, placement.groups(), namespace, subject),
            // The keys of all periods have the same hash tag.
            Layout::Readable => {
                let key = keys::readable(prefix, namespace, subject, true)(Period::SECOND, false);
                key.unwrap_or_default()
            }
        };
        #[cfg(feature = "redis-cluster")]
        return slot_of(&key);
        #[cfg(not(feature = "redis-cluster"))]
        unreachable!("a cluster without its feature: {key}")
    }

    /// Creates the command for a call of a deciding script, in the packed layout.
    pub(crate) fn decide(
        &self,
        call: &DecideCall<'_>,
        encoding: &PolicyEncoding,
    ) -> Result<Command, StoreError> {
        let (policy, mode) = (call.policy, call.mode);
        let (cost, calls, least) = match call.costs {
            CallCosts::Same { cost, calls, least } => (cost, calls, least),
            CallCosts::Each(_) => (Cost::ZERO, 0, 1),
        };
        let mut keys = match call.subjects {
            [KeyedSubject { namespace, subject, .. }] => {
                self.keys(namespace, subject, policy, encoding)?
            }
            // For several subjects, the script reads only one key of each: that of its state.
            several => {
                several.iter().map(|of| self.state_key(&of.namespace, &of.subject)).collect()
            }
        };
        let mut plan = arguments::decide_plan(policy, encoding, mode, cost, calls, least);
        if call.subjects.len() > 1 {
            plan = arguments::of_several_subjects(plan);
        }
        let mut arguments = packed_arguments(encoding, plan);
        if let CallCosts::Each(costs) = call.costs {
            arguments.push(arguments::costs(costs));
        }
        if call.reservations == Reservations::Ignore {
            let script = self.fast_script(call, encoding).unwrap_or_else(scripts::decide);
            return Ok(Command::Script { script, keys, arguments });
        }
        arguments.push(arguments::lifetime(call.lifetime()));
        keys.push(keys::reservations(&keys[0]));
        Ok(Command::Script { script: scripts::reserve(), keys, arguments })
    }

    /// Returns the script with a fast path for the call, if there is one. Without a fast path, a
    /// call can decide only one subject.
    pub(crate) fn fast_script(
        &self,
        call: &DecideCall<'_>,
        encoding: &PolicyEncoding,
    ) -> Option<&'static Script> {
        let is_check = call.mode == Mode::Check
            && call.reservations == Reservations::Ignore
            && matches!(call.costs, CallCosts::Same { cost, .. } if cost > Cost::ZERO);
        let is_fast = is_check && has_fast_path(call.policy);
        if is_fast { self.decide_scripts.get(&[encoding.script_shape()]) } else { None }
    }

    /// Creates the command that refunds units of two or more subjects under one policy. Returns
    /// `None` if no script refunds them together.
    pub(crate) fn refund_together(&self, refunds: &[&Amendment]) -> Option<Command> {
        let first = refunds.first()?;
        let encoding = PolicyEncoding::new(&first.policy);
        let script = match self.layout {
            Layout::Packed => self.refund_scripts.get(&[encoding.script_shape()])?,
            Layout::Readable => return None,
        };
        let key = |of: &&Amendment| self.state_key(&of.subject.namespace, &of.subject.subject);
        let keys = refunds.iter().map(key).collect();
        let plan = arguments::of_several_subjects(arguments::change_plan(first, &encoding));
        let mut arguments = packed_arguments(&encoding, plan);
        arguments.push(arguments::refund_charges(refunds, &encoding));
        Some(Command::Script { script, keys, arguments })
    }

    /// Returns the keys that hold the states of the policy's limits, in the order of the scripts.
    pub(super) fn keys(
        &self,
        namespace: &Namespace,
        subject: &Subject,
        policy: &Policy,
        encoding: &PolicyEncoding,
    ) -> Result<Vec<String>, StoreError> {
        let mut keys = Vec::with_capacity(1);
        self.push_keys(&mut keys, namespace, subject, policy, encoding)?;
        Ok(keys)
    }

    /// Returns the key of a subject's state in the packed layout.
    fn state_key(&self, namespace: &Namespace, subject: &Subject) -> String {
        keys::packed(&self.prefix, self.placement.groups(), namespace, subject)
    }

    pub(super) fn push_keys(
        &self,
        keys: &mut Vec<String>,
        namespace: &Namespace,
        subject: &Subject,
        policy: &Policy,
        encoding: &PolicyEncoding,
    ) -> Result<(), StoreError> {
        if self.layout == Layout::Packed {
            let state = keys.len();
            keys.push(self.state_key(namespace, subject));
            for limit in encoding.limits(policy) {
                keys.extend(keys::log_key(&keys[state], limit));
            }
            return Ok(());
        }
        let key = self.readable_key(namespace, subject);
        for limit in encoding.limits(policy) {
            const STORED: Algorithm = Algorithm::FixedWindow { anchor: Anchor::FirstRequest };
            let key = key(limit.period(), limit.counts_requests());
            let key = key.filter(|_| limit.algorithm() == STORED);
            keys.push(key.ok_or_else(|| {
                StoreError::new(FailureKind::Unsupported).with_detail(format!(
                    "the readable layout holds fixed windows of the six named periods that begin \
                     with the first request, not {limit}"
                ))
            })?);
        }
        Ok(())
    }

    pub(super) fn readable_key<'a>(
        &'a self,
        namespace: &'a Namespace,
        subject: &Subject,
    ) -> impl Fn(Period, bool) -> Option<String> + use<'a> {
        // On a cluster, the hash tag keeps the counters of a subject together.
        keys::readable(&self.prefix, namespace, subject, self.placement.is_cluster())
    }
}

/// Returns the arguments with which all scripts of the packed layout begin.
pub(super) fn packed_arguments(encoding: &PolicyEncoding, plan: Vec<u8>) -> Vec<Vec<u8>> {
    vec![encoding.shape.clone(), plan, encoding.format.clone()]
}
