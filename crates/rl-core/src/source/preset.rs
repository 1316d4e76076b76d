use std::sync::LazyLock;

use super::{ByRealm, PolicyFuture, PolicySource};
use crate::model::{Limit, Realm, Subject};
use crate::policy::Policy;

/// Policies for a known purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Preset {
    /// An open banking API. Identified callers get 10 requests per second, 100 per minute, 1 000
    /// per hour, 10 000 per day, 50 000 per week and 200 000 per month (of 30 days). Anonymous
    /// callers get 1 000 requests per hour and address. Windows begin with the first request.
    OpenBank,
}

impl Preset {
    /// Returns the preset as a [`ByRealm`], whose policies can be changed.
    #[must_use]
    #[expect(clippy::missing_panics_doc, reason = "its limits make a policy, as every use shows")]
    pub fn policies(self) -> ByRealm {
        match self {
            Self::OpenBank => {
                let of = |limits: &[Limit]| {
                    Policy::new(limits.iter().copied()).expect("limits of different periods")
                };
                let identified = of(&[
                    Limit::per_second(10),
                    Limit::per_minute(100),
                    Limit::per_hour(1_000),
                    Limit::per_day(10_000),
                    Limit::per_week(50_000),
                    Limit::per_month(200_000),
                ]);
                let anonymous = of(&[Limit::per_hour(1_000)]);
                ByRealm::with_default(identified)
                    .with(Realm::Ip, anonymous.clone())
                    .with(Realm::Unknown, anonymous)
            }
        }
    }
}

static OPEN_BANK: LazyLock<ByRealm> = LazyLock::new(|| Preset::OpenBank.policies());

impl PolicySource for Preset {
    fn policy(&self, subject: &Subject) -> PolicyFuture {
        match self {
            Self::OpenBank => OPEN_BANK.policy(subject),
        }
    }

    fn cached(&self, subject: &Subject) -> Option<&Policy> {
        match self {
            Self::OpenBank => OPEN_BANK.cached(subject),
        }
    }
}
