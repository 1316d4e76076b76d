use std::fmt;

use rl_core::source::ByRealm;
use rl_core::{Limit, Period, Policy, Realm};
use rl_records::{
    CallLimit, CallLimits, CallPeriod, DatabaseError, RecordSource, RecordSourceBuilder, Records,
    RecordsOptions, UsageRecorder, ZeroMeans,
};

use super::InvalidSetting;

/// The database of records, and the limits that apply without a record.
#[derive(Clone)]
pub struct RecordsSettings {
    database: String,
    defaults: CallLimits,
    zero_means: ZeroMeans,
    /// The limit per hour of an anonymous address.
    anonymous: CallLimit,
    /// The number of days for which the calls of consumers are stored; 0 if they are not recorded.
    usage_days: u32,
}

impl RecordsSettings {
    /// Reads the settings. `read` returns the value of a variable.
    ///
    /// # Errors
    ///
    /// Returns an error that names the variable and the expected value.
    pub fn read(read: impl Fn(&'static str) -> Option<String>) -> Result<Self, InvalidSetting> {
        const DATABASE: &str = "DATABASE_URL";
        const USAGE_DAYS: &str = "RL_USAGE_DAYS";
        const KINDS: [&str; 5] = ["postgres:", "postgresql:", "mysql:", "mariadb:", "sqlite:"];
        let expected =
            "expected postgres://user:password@host/database, mysql://… or sqlite://file";
        let database = read(DATABASE).ok_or_else(|| InvalidSetting::new(DATABASE, expected))?;
        if !KINDS.iter().any(|kind| database.starts_with(kind)) {
            let unknown = format!("unknown kind of database: {expected}");
            return Err(InvalidSetting::new(DATABASE, unknown));
        }
        let zero_means = match read("RL_ZERO_MEANS").as_deref() {
            None | Some("blocked") => ZeroMeans::Blocked,
            Some("unlimited") => ZeroMeans::Unlimited,
            Some(_) => {
                return Err(InvalidSetting::new("RL_ZERO_MEANS", "expected blocked or unlimited"));
            }
        };
        let anonymous = limit(&read, "RL_ANONYMOUS_PER_HOUR")?;
        let anonymous = anonymous.unwrap_or(CallLimit::AtMost(1_000));
        let usage_days = match read(USAGE_DAYS) {
            None => 400,
            Some(text) => text.parse().ok().filter(|days| *days <= 36_500).ok_or_else(|| {
                let expected = "0 (calls are not recorded) to 36500 days";
                InvalidSetting::new(USAGE_DAYS, format!("{text:?}: expected {expected}"))
            })?,
        };
        Ok(Self { database, defaults: defaults(read)?, zero_means, anonymous, usage_days })
    }

    /// Connects to the database.
    ///
    /// # Errors
    ///
    /// Returns an error if the database fails.
    pub async fn connect(&self) -> Result<Records, DatabaseError> {
        let options =
            RecordsOptions::new(&self.database).defaults(self.defaults).zero_means(self.zero_means);
        Records::connect_with(options).await
    }

    /// Returns the builder of the source of limits for consumers, for API keys in a tier and for
    /// addresses. Other subjects have no limits.
    pub fn source(&self, records: &Records) -> RecordSourceBuilder {
        RecordSource::builder(records).others(self.others()).tiers_of_keys()
    }

    /// Returns an observer that records the calls of consumers once it is
    /// [attached](UsageRecorder::attach) to the database. Returns `None` if calls are not recorded.
    #[must_use]
    pub fn usage_recorder(&self) -> Option<UsageRecorder> {
        let days = Some(self.usage_days).filter(|days| *days > 0)?;
        Some(UsageRecorder::builder().keep_days(days).build())
    }

    fn others(&self) -> ByRealm {
        let policies = ByRealm::unlimited_by_default();
        match self.anonymous {
            CallLimit::Unlimited => policies,
            CallLimit::AtMost(max) => {
                let limit =
                    Limit::new(max, Period::HOUR).expect("call limits are at most MAX_UNITS");
                let policy = Policy::new([limit]).expect("one limit");
                policies.with(Realm::Ip, policy.clone()).with(Realm::Unknown, policy)
            }
        }
    }
}

impl fmt::Debug for RecordsSettings {
    /// Omits the URL, which may contain a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordsSettings")
            .field("defaults", &self.defaults)
            .field("zero_means", &self.zero_means)
            .field("anonymous", &self.anonymous)
            .finish_non_exhaustive()
    }
}

/// Reads the limits of consumers without records.
fn defaults(read: impl Fn(&'static str) -> Option<String>) -> Result<CallLimits, InvalidSetting> {
    let mut limits = CallLimits::UNLIMITED;
    for (period, name) in CallPeriod::ALL.into_iter().zip([
        "RL_DEFAULT_PER_SECOND",
        "RL_DEFAULT_PER_MINUTE",
        "RL_DEFAULT_PER_HOUR",
        "RL_DEFAULT_PER_DAY",
        "RL_DEFAULT_PER_WEEK",
        "RL_DEFAULT_PER_MONTH",
    ]) {
        if let Some(limit) = limit(&read, name)? {
            limits = limits.with(period, limit);
        }
    }
    Ok(limits)
}

fn limit(
    read: impl Fn(&'static str) -> Option<String>,
    name: &'static str,
) -> Result<Option<CallLimit>, InvalidSetting> {
    let Some(text) = read(name) else { return Ok(None) };
    let number = text.parse::<i64>().ok();
    let limit = number.and_then(|number| CallLimit::from_number(name, number).ok());
    let expected = "-1 (no limit), or 0 to 9007199254740991 calls";
    let wrong = || InvalidSetting::new(name, format!("{text:?}: expected {expected}"));
    limit.map(Some).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(variables: &[(&str, &str)]) -> Result<RecordsSettings, String> {
        let find = |name: &str| variables.iter().find(|(known, _)| *known == name);
        RecordsSettings::read(|name| find(name).map(|(_, value)| (*value).to_owned()))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn only_the_database_is_required() {
        let least = settings(&[("DATABASE_URL", "sqlite::memory:")]).unwrap();
        assert_eq!(least.defaults, CallLimits::UNLIMITED);
        assert_eq!(least.anonymous, CallLimit::AtMost(1_000));
        assert!(least.usage_recorder().is_some());
        let without = settings(&[("DATABASE_URL", "sqlite::memory:"), ("RL_USAGE_DAYS", "0")]);
        assert!(without.unwrap().usage_recorder().is_none());
        let error = settings(&[]).unwrap_err();
        assert!(error.starts_with("DATABASE_URL: expected postgres://"), "{error}");
    }

    #[test]
    fn errors_name_the_variable_and_the_expected_value() {
        #[rustfmt::skip]
        let table = [
            ("DATABASE_URL", "oracle://root:swordfish@host/x", "DATABASE_URL: unknown kind of database"),
            ("RL_ZERO_MEANS", "nothing", "RL_ZERO_MEANS: expected blocked or unlimited"),
            ("RL_DEFAULT_PER_HOUR", "-2", "RL_DEFAULT_PER_HOUR: \"-2\": expected -1 (no limit)"),
            ("RL_USAGE_DAYS", "-1", "RL_USAGE_DAYS: \"-1\": expected 0 (calls are not recorded) to 36500 days"),
            ("RL_ANONYMOUS_PER_HOUR", "many", "RL_ANONYMOUS_PER_HOUR: \"many\": expected -1 (no limit)"),
        ];
        for (name, value, message) in table {
            let error =
                settings(&[(name, value), ("DATABASE_URL", "sqlite::memory:")]).unwrap_err();
            assert!(error.starts_with(message) && !error.contains("swordfish"), "{error}");
        }
    }
}
