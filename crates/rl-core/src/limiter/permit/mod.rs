mod inner;
mod renewal;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use inner::{PermitInner, charge_excess, settle_all};

use super::parts::{Charge, ChargedPart};
use super::pipeline::Pipeline;
use crate::decision::Decision;
use crate::headers::ResponseInfo;
use crate::maybe_ready::{both, done};
use crate::model::{Cost, Subject};
use crate::observe;
use crate::rules::RequestParts;
use crate::store::{Namespace, Part, StoreFuture};

/// The charge of a request, which can still change until the request ends.
///
/// The cost of a request is often known only at its end.
/// [`RateLimiter::acquire`](crate::RateLimiter::acquire) charges an estimate, and the permit is
/// *settled* when the request ends. Settling refunds unused units, and charges units beyond the
/// estimate, even beyond the limits. In the adapters, a cost beyond the estimate is charged with
/// the head of the response already, and later whenever it has doubled.
///
/// Until then the permit holds units of concurrency limits under leases. A task renews the leases
/// of all permits, on the tokio runtime in which the first permit was made.
///
/// All clones are handles of one permit. It is settled when the last of them is dropped, whether
/// the request succeeded, failed, panicked or was cancelled.
///
/// # Examples
///
/// ```
/// use rl_core::{Limit, RateLimiter, Subject};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = RateLimiter::builder().limit(Limit::per_minute(1_000)).build()?;
/// let caller = Subject::consumer("abc123");
///
/// let permit = limiter.acquire(&caller, 400).await; // an estimate of the tokens
/// assert!(permit.decision().is_allowed());
/// permit.set_cost(150); // the tokens of the response
/// permit.settle().await?; // or drop the permit
///
/// let usage = limiter.usage(&caller).await?;
/// assert_eq!(usage.limits().next().map(|limit| limit.used()), Some(150));
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a permit that is dropped is settled"]
pub struct Permit {
    inner: Arc<PermitInner>,
    // Whether `set_cost` and `add_cost` change the cost.
    is_metered: bool,
    // The permit of the outer limiter, if limiters are nested.
    outer: Option<Arc<Permit>>,
    // The permits of all parts, `inner` among them, if the request is a list of parts.
    all: Option<Arc<AllParts>>,
    // The rules under which the request is counted, if the limiter has rules.
    rules: Option<Arc<RequestParts>>,
}

/// The state of a permit for several parts: the charges, the decision about the request, and the
/// cost of each part. When this value is dropped, the charges are settled in one step.
struct AllParts {
    decision: Decision,
    permits: Vec<Arc<PermitInner>>,
    costs: Vec<PartCost>,
}

/// The cost of a part: the charged units, until the final cost is set.
struct PartCost {
    /// The position of the part in the request.
    part: usize,
    /// The position of the part's charge in `permits`. Parts with the same counters share a charge.
    permit: usize,
    /// Changes only while the account of the charge is locked.
    units: AtomicU64,
}

impl Permit {
    /// Creates the permit of a request on which `decision` was made.
    pub(super) fn new(
        pipeline: &Arc<Pipeline>,
        namespace: Option<Box<Namespace>>,
        subject: Subject,
        decision: Decision,
    ) -> Self {
        let inner = hold(pipeline, namespace, subject, decision);
        Self { inner, is_metered: true, outer: None, all: None, rules: None }
    }

    /// Creates the permit of a request of several parts. Parts with the same counters have one
    /// charge, so that their places are renewed and freed once.
    pub(super) fn of_parts(
        pipeline: &Arc<Pipeline>,
        parts: &[Part<'_>],
        decision: Decision,
    ) -> Self {
        let charges = Charge::of_parts(&pipeline.stores.namespace, parts, &decision);
        let costs = charges.iter().enumerate().flat_map(|(permit, charge)| {
            let cost = move |part: &ChargedPart| {
                let units = AtomicU64::new(part.units);
                PartCost { part: part.index, permit, units }
            };
            charge.parts.iter().map(cost)
        });
        let costs = costs.collect();
        let permits = charges.into_iter().map(|Charge { counters, decision, .. }| {
            let namespace = counters.namespace.cloned().map(Box::new);
            hold(pipeline, namespace, counters.subject.clone(), decision)
        });
        let permits: Vec<_> = permits.collect();
        let Some(inner) = permits.first().map(Arc::clone) else {
            return Self::new(pipeline, None, Subject::global(), decision);
        };
        let all = Some(Arc::new(AllParts { decision, permits, costs }));
        Self { inner, is_metered: true, outer: None, all, rules: None }
    }

    /// Creates the permit of a request that is counted under rules.
    pub(super) fn of_rules(
        pipeline: &Arc<Pipeline>,
        rules: &Arc<RequestParts>,
        decision: Decision,
    ) -> Self {
        let permit = Self::of_parts(pipeline, &rules.parts(), decision);
        Self { rules: Some(Arc::clone(rules)), ..permit }
    }

    /// Returns the decision on the request.
    #[must_use]
    pub fn decision(&self) -> &Decision {
        self.all.as_ref().map_or(&self.inner.decision, |all| &all.decision)
    }

    /// Returns the cost of the request: the granted cost, until the final cost is set. For a
    /// request of several parts, it is the cost of the first.
    #[must_use]
    pub fn cost(&self) -> Cost {
        match &self.all {
            None => self.inner.account().cost,
            Some(all) => {
                let first = all.costs.iter().find(|cost| cost.part == 0);
                Cost::new(first.map_or(0, |cost| cost.units.load(Ordering::Relaxed)))
            }
        }
    }

    /// Sets the final cost of the request, and of each of its parts, under this limiter and every
    /// outer limiter that is metered.
    ///
    /// A [rule](crate::rules) with a cost of its own keeps that cost.
    /// [`set_rule_cost`](Self::set_rule_cost) changes it.
    pub fn set_cost(&self, cost: impl Into<Cost>) {
        let cost = cost.into();
        self.change_cost(&|_| cost);
    }

    /// Adds units to the cost of the request, and of each of its parts, under this limiter and
    /// every outer limiter that is metered. A [rule](crate::rules) with a cost of its own keeps
    /// that cost.
    pub fn add_cost(&self, units: u64) {
        self.change_cost(&|cost| Cost::new(cost.units().saturating_add(units)));
    }

    /// Sets the final cost of the request under the [rule](crate::rules) called `rule`, in this
    /// limiter and every outer limiter that is metered. Returns whether this rule counts the
    /// request.
    ///
    /// With this method, a rule that counts requests and a rule that counts tokens can have
    /// different final costs. If no limiter of the request has a rule of this name, it logs a
    /// warning, once.
    pub fn set_rule_cost(&self, rule: &str, cost: impl Into<Cost>) -> bool {
        if !self.has_rule(rule) {
            let pipeline = &self.inner.pipeline;
            if !pipeline.has_logged_unknown_rule.swap(true, Ordering::Relaxed) {
                observe::unknown_rule(pipeline.stores.namespace.as_str(), rule);
            }
            return false;
        }
        self.set_cost_of_rule(rule, cost.into())
    }

    /// Returns whether this limiter or an outer one has a rule of this name.
    fn has_rule(&self, rule: &str) -> bool {
        self.rules.as_ref().is_some_and(|rules| rules.has_rule(rule))
            || self.outer.as_ref().is_some_and(|outer| outer.has_rule(rule))
    }

    fn set_cost_of_rule(&self, rule: &str, cost: Cost) -> bool {
        let mut is_counted = false;
        if let (true, Some(rules)) = (self.is_metered, &self.rules) {
            let is_named = |index| rules.rule(index).is_some_and(|(_, name)| name == rule);
            is_counted = (0..Part::MAX).any(is_named);
            self.change_part_costs(&is_named, &|_| cost);
        }
        let outer = self.outer.as_ref().is_some_and(|outer| outer.set_cost_of_rule(rule, cost));
        is_counted || outer
    }

    /// Sets the final cost of the part at `index` of a request of several parts
    /// ([`LimiterRequest::acquire`](crate::LimiterRequest::acquire)). Ignores a part that
    /// does not exist.
    pub fn set_part_cost(&self, index: usize, cost: impl Into<Cost>) {
        let cost = cost.into();
        self.change_part_costs(&|part| part == index, &|_| cost);
    }

    /// Adds units to the cost of the part at `index`.
    pub fn add_part_cost(&self, index: usize, units: u64) {
        let change = |cost: Cost| Cost::new(cost.units().saturating_add(units));
        self.change_part_costs(&|part| part == index, &change);
    }

    /// Changes the cost of each part for whose position `selected` returns true.
    fn change_part_costs(&self, selected: &dyn Fn(usize) -> bool, change: &dyn Fn(Cost) -> Cost) {
        let Some(all) = &self.all else {
            if selected(0) {
                let mut account = self.inner.account();
                account.cost = change(account.cost);
            }
            return self.charge_growth();
        };
        for (index, permit) in self.permits().iter().enumerate() {
            let mut account = permit.account();
            let mut sum: u64 = 0;
            for cost in all.costs.iter().filter(|cost| cost.permit == index) {
                if selected(cost.part) {
                    let before = Cost::new(cost.units.load(Ordering::Relaxed));
                    cost.units.store(change(before).units(), Ordering::Relaxed);
                }
                sum = sum.saturating_add(cost.units.load(Ordering::Relaxed));
            }
            account.cost = Cost::new(sum);
        }
        self.charge_growth();
    }

    /// Charges a cost that has doubled since the head of the response. So a client that leaves the
    /// end of a body unread has used at most half of its cost without a charge, and a cost that
    /// grows by small steps needs few calls.
    fn charge_growth(&self) {
        if self.permits().iter().any(|permit| permit.has_doubled()) {
            charge_excess(self.permits());
        }
    }

    /// Charges the units by which the cost exceeds the charge. This does not wait for the end of
    /// the body, because the client decides when that is.
    pub(crate) fn charge_cost_of_head(&self) {
        charge_excess(self.permits());
    }

    /// Returns the charges: one for each subject under which the request is counted.
    fn permits(&self) -> &[Arc<PermitInner>] {
        self.all.as_ref().map_or(std::slice::from_ref(&self.inner), |all| &all.permits)
    }

    /// Returns whether the rule of the part at `index` has no cost of its own.
    fn has_common_cost(&self, index: usize) -> bool {
        self.rules.as_ref().is_none_or(|rules| !rules.has_own_cost(index))
    }

    fn change_cost(&self, change: &dyn Fn(Cost) -> Cost) {
        if self.is_metered {
            self.change_part_costs(&|index| self.has_common_cost(index), change);
        }
        if let Some(outer) = &self.outer {
            outer.change_cost(change);
        }
    }

    /// Sets the final cost of the request under this limiter alone, metered or not. A rule with a
    /// cost of its own keeps that cost.
    pub(crate) fn set_own_cost(&self, cost: Cost) {
        self.change_part_costs(&|index| self.has_common_cost(index), &|_| cost);
    }

    /// Sets the final costs that rules read from the response.
    pub(crate) fn set_costs_of_response(&self, response: &dyn ResponseInfo) {
        let costs = self.rules.iter().flat_map(|rules| rules.costs_of_response(response));
        for (part, cost) in costs {
            self.change_part_costs(&|index| index == part, &|_| cost);
        }
    }

    /// Sets the final cost of every part under this limiter alone to zero, metered or not.
    pub(crate) fn refund_all_parts(&self) {
        self.change_part_costs(&|_| true, &|_| Cost::ZERO);
    }

    /// Sets whether [`set_cost`](Self::set_cost) and [`add_cost`](Self::add_cost) change the cost.
    pub(crate) fn metered(self, is_metered: bool) -> Self {
        Self { is_metered, ..self }
    }

    /// Sets the permit of the outer limiter.
    pub(crate) fn inside(self, outer: Option<Self>) -> Self {
        Self { outer: outer.map(Arc::new), ..self }
    }

    /// Settles the permit now, for all clones, and also the permits of outer limiters.
    ///
    /// Otherwise a permit is settled when its last clone is dropped. In memory this takes no time;
    /// on a server it happens in a task of the tokio runtime in which the clone is dropped.
    ///
    /// # Errors
    ///
    /// Resolves to an error if a store failed. The settlement may have been carried out
    /// nevertheless. On Redis, a settlement that certainly was not executed is repeated for a
    /// minute, also after this error.
    pub fn settle(self) -> StoreFuture<()> {
        // The settlement runs in a task, so that it is completed even if the caller stops waiting.
        let settled = match &self.all {
            None => self.inner.settle(),
            Some(all) => settle_all(&all.permits),
        };
        let own = self.inner.pipeline.settlements.spawn(settled);
        let outer = self.outer.as_deref().cloned();
        both(own, outer.map_or(done(), Self::settle))
    }
}

impl Drop for AllParts {
    fn drop(&mut self) {
        let Some(PermitInner { pipeline, subject, decision, .. }) =
            self.permits.first().map(|permit| &**permit)
        else {
            return;
        };
        let call = pipeline.breaker.observe();
        let settled = settle_all(&self.permits);
        pipeline.settlements.complete(subject, decision.origin(), call, settled);
    }
}

/// Creates the shared state of a permit, and renews it while it is held.
fn hold(
    pipeline: &Arc<Pipeline>,
    namespace: Option<Box<Namespace>>,
    subject: Subject,
    decision: Decision,
) -> Arc<PermitInner> {
    let inner = Arc::new(PermitInner::new(Arc::clone(pipeline), namespace, subject, decision));
    inner.start_renewal();
    inner
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit")
            .field("subject", &self.inner.subject)
            .field("cost", &self.cost())
            .finish_non_exhaustive()
    }
}
