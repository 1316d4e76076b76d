//! The events that follow from decisions: a limit is nearly used up, or the failure policy begins
//! or stops deciding requests.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::near_limit::{Crossing, NearLimits};
use super::parts::CounterKey;
use super::stores::Stores;
use crate::decision::{Decision, Origin};
use crate::model::FailureKind;
use crate::observe::{DecisionEvent, Ended, Event, EventKind, EventLocation, Observer, Transition};
use crate::store::Namespace;

/// The names of a limiter and its stores in events and log lines.
#[derive(Debug)]
pub(super) struct EventNames {
    /// The namespace of the limiter.
    limiter: String,
    /// The kind of store and its server.
    store: String,
    /// The kind of the fallback and its server; empty without a fallback.
    fallback: String,
}

impl EventNames {
    pub(super) fn new(stores: &Stores) -> Self {
        let fallback = stores.fallback.as_ref();
        Self {
            limiter: stores.namespace.to_string(),
            store: stores.primary.report().label.to_owned(),
            fallback: fallback
                .map_or(String::new(), |fallback| fallback.store.report().label.to_owned()),
        }
    }

    /// Returns the location for events of the limiter that concern its store.
    pub(super) fn on_store(&self) -> EventLocation<'_> {
        EventLocation::new(&self.limiter, &self.store)
    }

    /// Returns the location for events of the limiter that concern its fallback.
    pub(super) fn on_fallback(&self) -> EventLocation<'_> {
        EventLocation::new(&self.limiter, &self.fallback)
    }

    /// Returns the location of a decision with this origin.
    pub(super) fn of_origin(&self, origin: Origin) -> EventLocation<'_> {
        match origin {
            Origin::Fallback(_) => self.on_fallback(),
            _ => self.on_store(),
        }
    }

    /// Returns the name of the rule that counts in `namespace`. Returns `None` in the limiter's own
    /// namespace, and the whole name of a namespace that belongs to no rule of the limiter.
    pub(super) fn rule<'a>(&self, namespace: Option<&'a Namespace>) -> Option<&'a str> {
        let namespace = namespace?;
        let name = namespace.rule_below(&self.limiter).unwrap_or(namespace.as_str());
        Some(name).filter(|name| **name != *self.limiter)
    }
}

/// Reports decisions to the observer, with the events that follow from them.
#[derive(Debug)]
pub(super) struct DecisionEvents {
    observer: Arc<dyn Observer>,
    /// Whether the observer receives decisions.
    observes_decisions: bool,
    near_limits: NearLimits,
    /// The actions of the failure policy: it allows requests, rejects them, or lets the fallback
    /// decide.
    failure_policy: [FailureAction; 3],
}

/// An action of the failure policy.
#[derive(Debug)]
struct FailureAction {
    /// The index of the origin of its decisions.
    origin_index: usize,
    /// The origin of the first decision since the action began, with its kind of failure.
    first_origin: Mutex<Origin>,
    /// The condition that begins and ends with the action.
    condition: Transition,
}

impl FailureAction {
    fn new(origin: Origin, recovery_period: Duration) -> Self {
        Self {
            origin_index: origin.index(),
            first_origin: Mutex::new(origin),
            condition: Transition::new(recovery_period),
        }
    }

    /// Records a decision of this action. Returns true if the action begins with it.
    fn decided(&self, origin: Origin) -> bool {
        let begins = self.condition.occurred();
        if begins {
            *self.first_origin.lock().unwrap_or_else(PoisonError::into_inner) = origin;
        }
        begins
    }

    /// Ends the action if it has decided no request for a while. Returns the origin of its first
    /// decision.
    fn ended(&self) -> Option<(Origin, Ended)> {
        let ended = self.condition.ended()?;
        Some((*self.first_origin.lock().unwrap_or_else(PoisonError::into_inner), ended))
    }
}

impl DecisionEvents {
    /// Creates the events of an observer. An action of the failure policy has ended when it has
    /// decided no request for `recovery_period`.
    pub(super) fn new(observer: &Arc<dyn Observer>, recovery_period: Duration) -> Self {
        let kind = FailureKind::Unavailable;
        let origins =
            [Origin::FailedOpen(kind), Origin::FailedClosed(kind), Origin::Fallback(kind)];
        Self {
            observer: Arc::clone(observer),
            observes_decisions: observer.observes_decisions(),
            near_limits: NearLimits::default(),
            failure_policy: origins.map(|origin| FailureAction::new(origin, recovery_period)),
        }
    }

    /// Returns whether the observer receives decisions.
    pub(super) const fn observes_decisions(&self) -> bool {
        self.observes_decisions
    }

    /// Reports a decision.
    pub(super) fn decided<'a>(
        &self,
        names: &EventNames,
        counters_of: &dyn Fn(usize) -> CounterKey<'a>,
        decision: &Decision,
        event: &DecisionEvent<'_>,
    ) {
        let origin = decision.origin();
        let mut actions = self.failure_policy.iter();
        let action = actions.find(|action| action.origin_index == origin.index());
        if action.is_some_and(|action| action.decided(origin)) {
            let kind = EventKind::FailurePolicyBegan { origin };
            self.observer.observe(&Event::new(event.location, kind));
        }
        if !self.observes_decisions {
            return;
        }
        self.observer.decided(event);
        for (index, part) in decision.parts().enumerate().filter(|(_, part)| part.charged() > 0) {
            let counters = counters_of(index);
            for limit in part.limits() {
                let (charged, now) = (part.charged(), decision.at());
                let crossing = self.near_limits.crossing(counters, &limit, charged, origin, now);
                let Some(Crossing { percent, suppressed }) = crossing else { continue };
                let location = event.location.with_rule(names.rule(counters.namespace));
                let subject = counters.subject;
                let kind = EventKind::NearLimit { subject, limit, percent, suppressed };
                self.observer.observe(&Event::new(location, kind));
            }
        }
    }

    /// Ends the actions of the failure policy that have decided no request for a while, and reports
    /// their ends.
    pub(super) fn failure_policy_ended(&self, names: &EventNames) {
        for (origin, ended) in self.failure_policy.iter().filter_map(FailureAction::ended) {
            let Ended { lasted, count: requests } = ended;
            let kind = EventKind::FailurePolicyEnded { origin, lasted, requests };
            self.observer.observe(&Event::new(names.of_origin(origin), kind));
        }
    }
}
