//! Runs a [`Scenario`] on a store, and returns a [`Verdict`].

use std::collections::HashMap;
use std::fmt;

use rl_core::StoreError;
use rl_core::store::{DecideRequest, Mode, Namespace, Part, Refund, RefundOf, Reset, Store};
use rl_core::time::ManualClock;
use rl_core::{Cost, Decision, FailureKind, Policy, RetryAfter, Subject};

use super::{Expect, Operation, Scenario, Step, Unit, Wait};
use crate::Bystander;

/// The result of a scenario on a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every decision was as expected.
    Passed,
    /// A decision was not as expected, or the store failed.
    Failed {
        /// The number of the step, counted from 1.
        step: usize,
        /// The expected value.
        expected: String,
        /// The actual value.
        got: String,
    },
    /// The scenario needs something that is not supported, for this reason.
    Cannot(String),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed => f.write_str("ok"),
            Self::Failed { step, expected, got } => {
                write!(f, "FAILED: step {step}, expected {expected}, got {got}")
            }
            Self::Cannot(why) => write!(f, "cannot: {why}"),
        }
    }
}

/// Runs `scenario` on `store`, which must be empty and take its time from `clock`. Returns `None`
/// if the store does not support the limits of the scenario. If the keys of the store can be read,
/// none of them may be without an expiry.
pub(super) async fn run(
    scenario: &Scenario,
    store: &dyn Store,
    clock: &ManualClock,
    keys: Option<&mut Bystander>,
) -> Option<Verdict> {
    let policy = match &scenario.limits {
        Ok(policy) => policy.clone(),
        Err(unknown) => return Some(Verdict::Cannot(unknown.to_string())),
    };
    let mut run = Run {
        store,
        clock,
        keys,
        unit: scenario.unit,
        namespace: Namespace::default(),
        policy,
        granted: HashMap::new(),
    };
    for (step, number) in scenario.steps.iter().zip(1..) {
        for _ in 0..step.repeat {
            match run.take(step).await {
                Ok(()) => {}
                Err(Stop::Differs { expected, got }) => {
                    return Some(Verdict::Failed { step: number, expected, got });
                }
                Err(Stop::Cannot(why)) => return Some(Verdict::Cannot(why)),
                Err(Stop::Unsupported) => return None,
            }
        }
    }
    Some(Verdict::Passed)
}

/// The reason why a run ends early.
enum Stop {
    Differs { expected: String, got: String },
    Cannot(String),
    Unsupported,
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Self {
        if error.kind() == FailureKind::Unsupported {
            Self::Unsupported
        } else {
            Self::Differs { expected: "an answer".to_owned(), got: error.to_string() }
        }
    }
}

struct Run<'a> {
    store: &'a dyn Store,
    clock: &'a ManualClock,
    keys: Option<&'a mut Bystander>,
    unit: Unit,
    namespace: Namespace,
    policy: Policy,
    /// The latest decision of each subject in which units were granted.
    granted: HashMap<String, Decision>,
}

impl Run<'_> {
    async fn take(&mut self, step: &Step) -> Result<(), Stop> {
        self.clock.set(step.at);
        let subject = Subject::consumer(&step.subject);
        let decision = match &step.operation {
            Operation::Decide(mode, cost) => {
                let decision = self.decide(&subject, *mode, *cost).await?;
                if decision.granted() > 0 {
                    self.granted.insert(step.subject.clone(), decision.clone());
                }
                decision
            }
            other => {
                self.amend(&step.subject, &subject, other).await?;
                // After a step without a decision, the usage of the subject is compared.
                self.decide(&subject, Mode::Peek, 0).await?
            }
        };
        self.compare(&step.expect, &decision)?;
        self.look_for_keys_without_expiry().await
    }

    async fn decide(&self, subject: &Subject, mode: Mode, cost: u64) -> Result<Decision, Stop> {
        let parts = [Part::new(subject, &self.policy, Cost::new(cost))];
        let request = DecideRequest::new(&self.namespace, &parts, mode);
        Ok(self.store.decide(request).await?)
    }

    async fn amend(
        &mut self,
        name: &str,
        subject: &Subject,
        operation: &Operation,
    ) -> Result<(), Stop> {
        let namespace = &self.namespace;
        match operation {
            Operation::Decide(..) => {}
            Operation::Refund(units) => {
                if let Some(decision) = self.granted.get(name)
                    && let Some(policy) = decision.policy()
                {
                    let refund = Refund {
                        namespace,
                        subject,
                        policy,
                        charged: decision.at(),
                        units: *units.min(&decision.granted()),
                        of: RefundOf::All,
                        uncharged: decision.uncharged(),
                    };
                    self.store.refund(refund).await?;
                }
            }
            Operation::Reset(limit) => {
                let limit = limit.as_ref().and_then(|name| self.policy.position(name));
                let reset = Reset { namespace, subject, policy: &self.policy, limit };
                self.store.reset(reset).await?;
            }
            Operation::SetLimits(Ok(policy)) => self.policy = policy.clone(),
            Operation::SetLimits(Err(unknown)) => return Err(Stop::Cannot(unknown.to_string())),
        }
        Ok(())
    }

    fn compare(&self, expect: &Expect, decision: &Decision) -> Result<(), Stop> {
        let mut differences = Differences::default();
        if let Some(allowed) = expect.allowed {
            differences.note("allowed", allowed, decision.is_allowed());
        }
        if let Some(granted) = expect.granted {
            differences.note("granted", granted, decision.granted());
        }
        for limit in decision.limits() {
            let of_limit = |expected: &[(String, u64)]| {
                let found = expected.iter().find(|(name, _)| name == limit.name());
                found.map(|(_, number)| *number)
            };
            if let Some(remaining) = of_limit(&expect.remaining) {
                let what = format!("remaining {}", limit.name());
                differences.note(&what, remaining, limit.remaining());
            }
            if let Some(reset) = of_limit(&expect.reset_after) {
                let what = format!("reset_after {}", limit.name());
                differences.note(&what, reset, self.unit.of(limit.reset_after()));
            }
        }
        if let Some(wait) = expect.retry_after {
            let got = match decision.retry_after() {
                RetryAfter::Now => Wait::For(0),
                RetryAfter::In(wait) => Wait::For(self.unit.of(wait)),
                RetryAfter::Never => Wait::Never,
            };
            differences.note("retry_after", wait, got);
        }
        if let Some(over) = &expect.over {
            let limits = decision.limits().filter(|limit| limit.is_over());
            let got: Vec<&str> = limits.map(|limit| limit.name()).collect();
            differences.note(
                "over",
                format!("[{}]", over.join(" ")),
                format!("[{}]", got.join(" ")),
            );
        }
        differences.none_or_stop()
    }

    async fn look_for_keys_without_expiry(&mut self) -> Result<(), Stop> {
        let Some(keys) = &mut self.keys else {
            return Ok(());
        };
        let lasting = keys.keys_without_expiry().await;
        if lasting.is_empty() {
            return Ok(());
        }
        Err(Stop::Differs {
            expected: "every key with an expiry".to_owned(),
            got: format!("none on {}", lasting.join(" ")),
        })
    }
}

#[derive(Default)]
struct Differences {
    expected: Vec<String>,
    got: Vec<String>,
}

impl Differences {
    fn note<T: PartialEq + fmt::Display>(&mut self, what: &str, expected: T, got: T) {
        if expected != got {
            self.expected.push(format!("{what} {expected}"));
            self.got.push(format!("{what} {got}"));
        }
    }

    fn none_or_stop(self) -> Result<(), Stop> {
        if self.expected.is_empty() {
            return Ok(());
        }
        Err(Stop::Differs { expected: self.expected.join(" and "), got: self.got.join(" and ") })
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::For(wait) => wait.fmt(f),
            Self::Never => f.write_str("never"),
        }
    }
}
