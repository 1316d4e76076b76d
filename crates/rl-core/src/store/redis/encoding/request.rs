//! Which commands carry out what is asked, in each layout. No I/O.

use std::time::Duration;

use super::{Layout, arguments, keys};
use crate::model::StoreError;
use crate::model::{Algorithm, Anchor, Mode};
use crate::model::{Cost, FailureKind, Period, Subject};
use crate::policy::{LimitSet, Policy};
use crate::store::redis::connection::Command;
use crate::store::redis::encoding::policy::coded;
use crate::store::redis::scripts;
use crate::store::redis::subject_key::WhoRef;
use crate::store::{
    DecideRequest, Namespace, Refund, Renewal, Reservation, ReservationChange, Reset,
};

/// A decision request of one part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OnePart<'a> {
    pub(crate) namespace: &'a Namespace,
    pub(crate) subject: &'a Subject,
    pub(crate) policy: &'a Policy,
    pub(crate) mode: Mode,
    pub(crate) cost: Cost,
}

impl<'a> TryFrom<&DecideRequest<'a>> for OnePart<'a> {
    type Error = StoreError;

    fn try_from(request: &DecideRequest<'a>) -> Result<Self, StoreError> {
        let part = request.sole_part()?;
        Ok(Self {
            namespace: request.namespace,
            subject: part.subject,
            policy: part.policy,
            mode: request.mode,
            cost: part.cost,
        })
    }
}

/// The arguments of the scripts of the packed layout.
fn packed(policy: &Policy, plan: Vec<u8>) -> Vec<Vec<u8>> {
    let coded = coded(policy);
    vec![coded.shape.clone(), plan, coded.format.clone()]
}

/// A layout and what its keys look like.
#[derive(Debug)]
pub(crate) struct Commands {
    pub(crate) layout: Layout,
    pub(crate) prefix: String,
    /// Whether readable keys have a hash tag too, so that a cluster keeps them together.
    pub(crate) tagged: bool,
}

impl Commands {
    pub(crate) fn decide(&self, charge: &OnePart<'_>) -> Result<Command, StoreError> {
        let OnePart { namespace, subject, policy, mode, cost } = *charge;
        let arguments = match self.layout {
            Layout::Packed => packed(policy, arguments::decide_plan(policy, mode, cost, 1, 1)),
            Layout::Readable => {
                vec![
                    arguments::readable_periods(policy),
                    arguments::readable_plan(policy, mode, cost),
                ]
            }
        };
        let keys = self.keys(namespace, subject, policy)?;
        Ok(Command::Script { script: scripts::decide(self.layout), keys, arguments })
    }

    /// Makes the command of `calls` checks of one cost for each subject, of which at least `least` pass, or
    /// none. Several subjects, or a `least` above one, need a policy of fixed windows only. Several calls
    /// need the packed layout.
    pub(crate) fn check(
        &self,
        who: &[WhoRef<'_>],
        policy: &Policy,
        cost: Cost,
        calls: u16,
        least: u16,
    ) -> Result<Command, StoreError> {
        let arguments = match self.layout {
            Layout::Packed => {
                packed(policy, arguments::decide_plan(policy, Mode::Check, cost, calls, least))
            }
            Layout::Readable => {
                let plan = arguments::readable_plan(policy, Mode::Check, cost);
                vec![arguments::readable_periods(policy), plan]
            }
        };
        let mut keys = Vec::with_capacity(who.len());
        for WhoRef { namespace, subject, .. } in who {
            self.push_keys(&mut keys, namespace, subject, policy)?;
        }
        Ok(Command::Script { script: scripts::decide(self.layout), keys, arguments })
    }

    /// Checks of these costs, one after the other.
    pub(crate) fn check_costs(
        &self,
        WhoRef { namespace, subject, .. }: WhoRef<'_>,
        policy: &Policy,
        costs: &[Cost],
    ) -> Result<Command, StoreError> {
        let plan = arguments::decide_plan(policy, Mode::Check, Cost::ZERO, 0, 1);
        let mut arguments = packed(policy, plan);
        arguments.push(arguments::costs(costs));
        let keys = self.keys(namespace, subject, policy)?;
        Ok(Command::Script { script: scripts::decide(self.layout), keys, arguments })
    }

    pub(crate) fn refund(&self, refund: &Refund<'_>) -> Result<Command, StoreError> {
        let Refund { namespace, subject, policy, .. } = *refund;
        let arguments = match self.layout {
            Layout::Packed => packed(policy, arguments::refund_plan(refund)),
            Layout::Readable => {
                vec![arguments::readable_periods(policy), arguments::readable_refund_plan(refund)]
            }
        };
        let keys = self.keys(namespace, subject, policy)?;
        Ok(Command::Script { script: scripts::amend(self.layout), keys, arguments })
    }

    pub(crate) fn renew(&self, renewal: &Renewal<'_>) -> Result<Command, StoreError> {
        let Renewal { namespace, subject, policy, .. } = *renewal;
        // The readable layout holds no permits: its keys say so.
        let keys = self.keys(namespace, subject, policy)?;
        let arguments = packed(policy, arguments::renew_plan(renewal));
        Ok(Command::Script { script: scripts::amend(self.layout), keys, arguments })
    }

    /// Makes the command that gives expired reservations back, decides `charge`, and reserves the charged
    /// units for `lifetime`. Only in the packed layout.
    pub(crate) fn reserve(
        &self,
        charge: &OnePart<'_>,
        lifetime: Option<Duration>,
    ) -> Result<Command, StoreError> {
        let OnePart { namespace, subject, policy, mode, cost } = *charge;
        let mut arguments = packed(policy, arguments::decide_plan(policy, mode, cost, 1, 1));
        arguments.push(arguments::lifetime(lifetime));
        let keys = self.keys_with_reservations(namespace, subject, policy)?;
        Ok(Command::Script { script: scripts::reserve(), keys, arguments })
    }

    /// Makes the command that renews or settles a reservation. Only in the packed layout.
    pub(crate) fn change_reservation(
        &self,
        reservation: &Reservation<'_>,
        change: ReservationChange,
    ) -> Result<Command, StoreError> {
        let Reservation { namespace, subject, policy, .. } = *reservation;
        let (refund, lifetime) = match change {
            ReservationChange::Renew(lifetime) => {
                (reservation.refund(0, LimitSet::EMPTY), Some(lifetime))
            }
            ReservationChange::Settle { returned, kept } => {
                (reservation.refund(returned, kept), None)
            }
        };
        let mut arguments = packed(policy, arguments::refund_plan(&refund));
        arguments.push(arguments::reservation(reservation));
        arguments.push(arguments::lifetime(lifetime));
        arguments.push(arguments::expires(reservation));
        let keys = self.keys_with_reservations(namespace, subject, policy)?;
        Ok(Command::Script { script: scripts::change_reservation(), keys, arguments })
    }

    pub(crate) fn reset(&self, reset: &Reset<'_>) -> Result<Command, StoreError> {
        let Reset { namespace, subject, policy, limit } = *reset;
        let keys = match (self.layout, limit) {
            (Layout::Packed, limit) => {
                let plan = match limit {
                    None => arguments::forget_all_plan(),
                    Some(limit) => arguments::forget_plan(policy, limit),
                };
                let arguments = packed(policy, plan);
                let keys = self.keys(namespace, subject, policy)?;
                return Ok(Command::Script {
                    script: scripts::amend(self.layout),
                    keys,
                    arguments,
                });
            }
            (Layout::Readable, None) => {
                let key = self.readable(namespace, subject);
                let key = |period| [key(period, false), key(period, true)];
                Period::NAMED.into_iter().flat_map(key).flatten().collect()
            }
            (Layout::Readable, Some(limit)) => {
                let keys = self.keys(namespace, subject, policy)?;
                let mut keys = coded(policy).places.iter().zip(keys);
                keys.find(|(place, _)| **place == limit).map(|(_, key)| key).into_iter().collect()
            }
        };
        Ok(Command::Delete { keys })
    }

    fn readable<'a>(
        &'a self,
        namespace: &'a Namespace,
        subject: &Subject,
    ) -> impl Fn(Period, bool) -> Option<String> + use<'a> {
        keys::readable(&self.prefix, namespace, subject, self.tagged)
    }

    /// The keys that hold the states of the policy's limits, in the order in which scripts know them.
    fn keys(
        &self,
        namespace: &Namespace,
        subject: &Subject,
        policy: &Policy,
    ) -> Result<Vec<String>, StoreError> {
        let mut keys = Vec::with_capacity(1);
        self.push_keys(&mut keys, namespace, subject, policy)?;
        Ok(keys)
    }

    /// Returns the same keys, and then the key of the subject's reservations.
    fn keys_with_reservations(
        &self,
        namespace: &Namespace,
        subject: &Subject,
        policy: &Policy,
    ) -> Result<Vec<String>, StoreError> {
        let mut keys = self.keys(namespace, subject, policy)?;
        keys.push(keys::reservations(&keys[0]));
        Ok(keys)
    }

    fn push_keys(
        &self,
        keys: &mut Vec<String>,
        namespace: &Namespace,
        subject: &Subject,
        policy: &Policy,
    ) -> Result<(), StoreError> {
        if self.layout == Layout::Packed {
            let state = keys.len();
            keys.push(keys::packed(&self.prefix, namespace, subject));
            for limit in policy.limits() {
                keys.extend(keys::ring(&keys[state], limit.limit()));
            }
            return Ok(());
        }
        let key = self.readable(namespace, subject);
        for limit in coded(policy).in_order(policy) {
            const HELD: Algorithm = Algorithm::FixedWindow { anchor: Anchor::FirstRequest };
            let key = key(limit.period(), limit.counts_requests());
            let key = key.filter(|_| limit.algorithm() == HELD);
            keys.push(key.ok_or_else(|| {
                StoreError::new(FailureKind::Unsupported).with_detail(format!(
                    "the readable layout holds fixed windows of the six named periods that begin \
                     with the first request, not {limit}"
                ))
            })?);
        }
        Ok(())
    }
}
