//! Runs a [`Scenario`] on a store, and returns a [`Verdict`].

use std::collections::HashMap;
use std::fmt;

use rl_core::StoreError;
use rl_core::store::{DecideRequest, Mode, Namespace, Part, Refund, RefundOf, Reset, Store};
use rl_core::time::ManualClock;
use rl_core::{Cost, Decision, FailureKind, PartStatus, Policy, RetryAfter, Subject};

use super::{Expect, ExpectPart, NamedPolicy, Operation, Scenario, Step, StepPart, Unit, Wait};
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
    /// The scenario needs something that is not supported. The text says what.
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

/// Runs `scenario` on `store`. The store must be empty, and `clock` must be its clock. Returns
/// `None` if the store does not support the limits of the scenario.
///
/// If the keys of the store can be read, each of them must have an expiry.
pub(super) async fn run(
    scenario: &Scenario,
    store: &dyn Store,
    clock: &ManualClock,
    keys: Option<&mut Bystander>,
) -> Option<Verdict> {
    let mut policies = Vec::new();
    for NamedPolicy { name, limits } in &scenario.policies {
        let namespace = Namespace::default();
        let namespace = match &**name {
            "" => namespace,
            name => namespace.rule(name).expect("the name of a policy is one of a rule"),
        };
        match limits {
            Ok(policy) => policies.push((namespace, policy.clone())),
            Err(unknown) => return Some(Verdict::Cannot(unknown.to_string())),
        }
    }
    let mut run =
        Run { store, clock, keys, unit: scenario.unit, policies, granted: HashMap::new() };
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
    policies: Vec<(Namespace, Policy)>,
    /// The latest decision of each subject that granted units.
    granted: HashMap<String, Decision>,
}

impl Run<'_> {
    async fn take(&mut self, step: &Step) -> Result<(), Stop> {
        self.clock.set(step.at);
        let decision = match &step.operation {
            Operation::Decide(mode) => {
                let decision = self.decide(&step.parts, *mode).await?;
                if let [part] = &*step.parts
                    && decision.granted() > 0
                {
                    self.granted.insert(part.subject.clone(), decision.clone());
                }
                decision
            }
            other => {
                let [part] = &*step.parts else { return Ok(()) };
                let subject = Subject::consumer(&part.subject);
                self.amend(part, &subject, other).await?;
                // A step without a decision, such as a refund, is checked by a peek after it.
                let usage = StepPart { cost: 0, ..part.clone() };
                self.decide(&[usage], Mode::Peek).await?
            }
        };
        self.compare(&step.expect, &decision)?;
        self.look_for_keys_without_expiry().await
    }

    async fn decide(&self, parts: &[StepPart], mode: Mode) -> Result<Decision, Stop> {
        let subjects: Vec<_> = parts.iter().map(|part| Subject::consumer(&part.subject)).collect();
        let parts = parts.iter().zip(&subjects).map(|(part, subject)| {
            let (namespace, policy) = &self.policies[part.policy];
            Part::new(subject, policy, Cost::new(part.cost)).with_namespace(namespace)
        });
        let (namespace, parts) = (Namespace::default(), parts.collect::<Vec<_>>());
        Ok(self.store.decide(DecideRequest::new(&namespace, &parts, mode)).await?)
    }

    async fn amend(
        &mut self,
        part: &StepPart,
        subject: &Subject,
        operation: &Operation,
    ) -> Result<(), Stop> {
        let (namespace, current) = &mut self.policies[part.policy];
        let namespace = &*namespace;
        match operation {
            Operation::Decide(..) => {}
            Operation::Refund => {
                if let Some(decision) = self.granted.get(&part.subject)
                    && let Some(policy) = decision.policy()
                {
                    let refund = Refund {
                        namespace,
                        subject,
                        policy,
                        charged: decision.at(),
                        units: part.cost.min(decision.granted()),
                        of: RefundOf::All,
                        uncharged: decision.uncharged(),
                    };
                    self.store.settle(&[refund.into()]).await?;
                }
            }
            Operation::Reset(limit) => {
                let limit = limit.as_ref().and_then(|name| current.position(name));
                let reset = Reset { namespace, subject, policy: current, limit };
                self.store.reset(&[reset]).await?;
            }
            Operation::SetLimits(Ok(policy)) => *current = policy.clone(),
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
        if let Some(wait) = expect.retry_after {
            let got = match decision.retry_after() {
                RetryAfter::Now => Wait::For(0),
                RetryAfter::In(wait) => Wait::For(self.unit.of(wait)),
                RetryAfter::Never => Wait::Never,
            };
            differences.note("retry_after", wait, got);
        }
        if decision.parts().len() != expect.parts.len() && !expect.parts.is_empty() {
            differences.note("parts", expect.parts.len(), decision.parts().len());
        }
        for (expect, part) in expect.parts.iter().zip(decision.parts()) {
            self.compare_part(expect, part, &mut differences);
        }
        differences.none_or_stop()
    }

    fn compare_part(
        &self,
        expect: &ExpectPart,
        part: PartStatus<'_>,
        differences: &mut Differences,
    ) {
        for limit in part.limits() {
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
        if let Some(over) = &expect.over {
            let limits = part.limits().filter(|limit| limit.is_over());
            let got: Vec<&str> = limits.map(|limit| limit.name()).collect();
            differences.note(
                "over",
                format!("[{}]", over.join(" ")),
                format!("[{}]", got.join(" ")),
            );
        }
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
