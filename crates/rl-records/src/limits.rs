use std::fmt;
use std::str::FromStr;

use rl_core::{Algorithm, Anchor, InvalidLimit, InvalidPolicy, Limit, MAX_UNITS, Period, Policy};
use serde_json::Value;

use crate::call_limits::{CallLimit, CallLimits, CallPeriod};
use crate::error::InvalidField;

/// The name of the field that contains limits, in tables and documents.
const FIELD: &str = "limits";

/// The limits of a record, a tier or a resource: any that one [`Policy`] can have, or none.
///
/// They are ordered by their periods, the shortest first. The text form separates them by commas;
/// it is read with line breaks too.
///
/// # Examples
///
/// ```
/// use rl_records::Limits;
///
/// let limits: Limits = "10000/minute:unit=tokens, 20/minute:requests, 5/second:gcra".parse()?;
/// assert_eq!(
///     limits.to_string(),
///     "5/second:gcra, 20/minute:requests, 10000/minute:unit=tokens"
/// );
/// assert_eq!(limits.call_limits(), None);
///
/// let wrong = "10/second\n5/fortnight".parse::<Limits>().unwrap_err();
/// assert!(wrong.to_string().starts_with("limits \"5/fortnight\": expected at column 3 "), "{wrong}");
/// # Ok::<(), rl_records::InvalidField>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Limits(Vec<Limit>);

impl Limits {
    /// No limit.
    pub const UNLIMITED: Self = Self(Vec::new());

    /// Collects limits.
    ///
    /// # Errors
    ///
    /// Returns an error if one policy cannot have all of them: because there are more than
    /// [`Policy::MAX_LIMITS`], because two would count in the same state, or because they remember
    /// too much.
    pub fn new(limits: impl IntoIterator<Item = Limit>) -> Result<Self, InvalidField> {
        let limits = Self::sorted(limits.into_iter().collect());
        limits.check().map_err(|expected| InvalidField::new(FIELD, &limits, expected))?;
        Ok(limits)
    }

    /// Reads limits from the text form of each.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first text that is not a [`Limit`]. Returns the errors of
    /// [`new`](Self::new).
    pub fn from_texts<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self, InvalidField> {
        let limits = texts.into_iter().map(|text| {
            text.parse().map_err(|error: rl_core::ParseLimitError| {
                let expected = format!("at column {} {}", error.column(), error.expected());
                InvalidField::new(FIELD, text, expected)
            })
        });
        Self::new(limits.collect::<Result<Vec<Limit>, _>>()?)
    }

    fn sorted(mut limits: Vec<Limit>) -> Self {
        limits.sort_by_cached_key(|limit| {
            let text = limit.to_string();
            // Without its number, so that a limit keeps its place when its number changes.
            let kind = text.trim_start_matches(|char: char| char.is_ascii_digit()).to_owned();
            (limit.period(), kind)
        });
        Self(limits)
    }

    /// Returns a description of valid limits if these do not form a policy.
    fn check(&self) -> Result<(), String> {
        match Policy::new(self.0.iter().copied()) {
            Ok(_) | Err(InvalidPolicy::Empty) => Ok(()),
            Err(error) => Err(format!("limits of one policy, but {error}")),
        }
    }

    /// Returns the limits, the shortest period first.
    #[must_use]
    pub fn as_slice(&self) -> &[Limit] {
        &self.0
    }

    /// Returns whether there is no limit.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the six numbers of open banking systems. Returns `None` if they cannot express a
    /// limit, because it is not a fixed window of one of the six periods that begins with the first
    /// request, is enforced, and counts units without a name.
    #[must_use]
    pub fn call_limits(&self) -> Option<CallLimits> {
        self.0.iter().try_fold(CallLimits::UNLIMITED, |view, limit| {
            let is_plain =
                |period: &CallPeriod| Limit::new(limit.max(), period.period()).ok() == Some(*limit);
            let period = CallPeriod::ALL.into_iter().find(is_plain)?;
            Some(view.with(period, CallLimit::AtMost(limit.max())))
        })
    }

    /// Returns whether an enforced limit of 0 rejects every request.
    pub(crate) fn has_zero(&self) -> bool {
        self.0.iter().any(|limit| limit.max() == 0 && !limit.is_shadow())
    }

    /// Returns these limits without those of 0.
    pub(crate) fn without_zeros(mut self) -> Self {
        self.0.retain(|limit| limit.max() > 0);
        self
    }

    /// Returns a policy of these limits, or `None` if there is no limit.
    #[must_use]
    pub fn policy(&self) -> Option<Policy> {
        // Sums are checked when a record is stored. A sum may have more limits all the same, after
        // a change of a tier with subscriptions. Then those with the shortest periods apply.
        let most = self.0.len().min(Policy::MAX_LIMITS);
        (1..=most).rev().find_map(|count| Policy::new(self.0[..count].iter().copied()).ok())
    }

    /// Returns whether a limit of [`counting_policy`](Self::counting_policy) only counts, and never
    /// denies. Display such a limit as unlimited.
    #[must_use]
    pub const fn only_counts(limit: Limit) -> bool {
        limit.is_shadow() && limit.max() == MAX_UNITS
    }

    /// Returns a policy that also counts the calls in each of the six periods without a limit.
    ///
    /// Each of those periods gets a shadow limit of [`MAX_UNITS`], which never denies. Thus the
    /// usage is known before there is a limit, and a new limit includes earlier calls. Such a
    /// policy costs as much as six limits or more.
    ///
    /// # Examples
    ///
    /// ```
    /// use rl_records::Limits;
    ///
    /// let limits: Limits = "100/minute".parse()?;
    /// assert_eq!(limits.policy().unwrap().limits().len(), 1);
    /// let counted = limits.counting_policy().unwrap();
    /// assert_eq!(counted.limits().len(), 6);
    /// assert_eq!(counted.limits().iter().filter(|limit| !limit.limit().is_shadow()).count(), 1);
    /// # Ok::<(), rl_records::InvalidField>(())
    /// ```
    #[must_use]
    pub fn counting_policy(&self) -> Option<Policy> {
        let counters = CallPeriod::ALL.into_iter().filter_map(|period| {
            let counter = Limit::new(MAX_UNITS, period.period()).ok()?.shadow();
            let is_counted = self.0.iter().any(|limit| limit.shares_state_with(counter));
            (!is_counted).then_some(counter)
        });
        let room = Policy::MAX_LIMITS.saturating_sub(self.0.len());
        let counted = self.0.iter().copied().chain(counters.take(room));
        Self::sorted(counted.collect()).policy()
    }

    /// Returns these limits with calendar months that begin on this day of the month, 1 to 28.
    /// Months with an offset of their own keep it.
    pub(crate) fn billed_on(&self, day: Option<u8>) -> Self {
        let days = u64::from(day.unwrap_or(1).saturating_sub(1));
        let Ok(offset) = Period::from_millis(days * Period::DAY.as_millis()) else {
            return self.clone();
        };
        const ON_CLOCK: Algorithm = Algorithm::FixedWindow { anchor: Anchor::Clock };
        let billed = self.0.iter().map(|limit| match limit.period() {
            Period::MONTH if limit.algorithm() == ON_CLOCK => {
                limit.with_clock_offset(offset).unwrap_or(*limit)
            }
            _ => *limit,
        });
        // A month may begin on this day already. Of two such limits, the smaller one decides.
        let mut kept: Vec<Limit> = Vec::new();
        for limit in billed {
            match kept.iter_mut().find(|known| known.shares_state_with(limit)) {
                Some(known) if known.max() <= limit.max() => {}
                Some(known) => *known = limit,
                None => kept.push(limit),
            }
        }
        Self::sorted(kept)
    }

    /// Returns limits that are `factor` times as large.
    #[must_use]
    pub fn times(&self, factor: usize) -> Self {
        Self::sum(std::iter::repeat_n(self, factor))
    }

    /// Adds up limits: those with the same state to one limit, the others beside each other.
    ///
    /// A limit of 0 adds nothing to a larger one, and a limit in shadow adds nothing to an enforced
    /// one.
    pub(crate) fn sum<'a>(all: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut sum: Vec<Limit> = Vec::new();
        for limit in all.into_iter().flat_map(|limits| &limits.0) {
            match sum.iter_mut().find(|known| known.shares_state_with(*limit)) {
                // Sums are checked when a record is stored. For records that another program
                // wrote, the larger limit applies.
                Some(known) => {
                    let larger = if known.max() < limit.max() { *limit } else { *known };
                    *known = add(*known, *limit).unwrap_or(larger);
                }
                None => sum.push(*limit),
            }
        }
        Self::sorted(sum)
    }

    /// Returns `limit`, raised by the grant with the same state. A limit of 0 stays 0.
    pub(crate) fn grant_to(&self, limit: Limit) -> Limit {
        if limit.max() == 0 {
            return limit;
        }
        let same = self.0.iter().find(|granted| granted.shares_state_with(limit));
        let is_shadow = limit.is_shadow();
        let granted = same.map(|&granted| if is_shadow { granted.shadow() } else { granted });
        // A tier may have changed its unit after the grant was checked. Then the grant adds nothing.
        granted.and_then(|granted| add(limit, granted).ok()).unwrap_or(limit)
    }

    /// Returns these limits, each raised by the grant with the same state.
    pub(crate) fn with_grants(mut self, grants: &Self) -> Self {
        self.0.iter_mut().for_each(|limit| *limit = grants.grant_to(*limit));
        self
    }

    /// Returns `policy` with each limit raised by the grant with the same state. A policy that blocks
    /// is returned unchanged.
    pub(crate) fn add_to_policy(&self, policy: Policy) -> Policy {
        let limits = policy.limits().iter();
        let builder = limits.fold(Policy::builder(), |builder, named| {
            builder.named(named.name(), self.grant_to(named.limit()))
        });
        match builder.build() {
            Ok(granted) if policy.block().is_none() => granted,
            _ => policy,
        }
    }

    /// Returns the first of these limits that, in a grant, adds to none of the limits `applying`.
    /// Limits of 0 are left out, because they add nothing by intention.
    ///
    /// # Examples
    ///
    /// ```
    /// use rl_records::Limits;
    ///
    /// let applying: Limits = "60/minute, 400/day:clock".parse()?;
    /// let [some, none]: [Limits; 2] = ["30/minute".parse()?, "5000/month".parse()?];
    /// assert_eq!(some.useless_grant(&applying), None);
    /// assert_eq!(none.useless_grant(&applying).unwrap().to_string(), "5000/month");
    /// # Ok::<(), rl_records::InvalidField>(())
    /// ```
    #[must_use]
    pub fn useless_grant(&self, applying: &Self) -> Option<Limit> {
        let adds = |limit: &Limit| {
            let grant = Self(vec![*limit]);
            applying.0.iter().any(|known| grant.grant_to(*known) != *known)
        };
        self.0.iter().copied().find(|limit| limit.max() > 0 && !adds(limit))
    }

    /// Checks that each of these limits can be added to those with the same state in `others`.
    pub(crate) fn check_additions<'a>(
        &'a self,
        others: impl Iterator<Item = &'a Self> + Clone,
    ) -> Result<(), InvalidField> {
        for limit in &self.0 {
            let same = others.clone().flat_map(|other| &other.0);
            let mut same = same.filter(|other| other.shares_state_with(*limit));
            if let Some(other) = same.clone().find(|other| other.unit() != limit.unit()) {
                let expected = format!(
                    "the unit {} of a record that overlaps and counts in the same window",
                    other.unit()
                );
                return Err(InvalidField::new(FIELD, limit, expected));
            }
            same.try_fold(*limit, |sum, other| add(sum, *other)).map_err(|error| {
                let expected = format!("less, together with the records that overlap: {error}");
                InvalidField::new(FIELD, limit, expected)
            })?;
        }
        Ok(())
    }

    /// Checks that one policy can have the sum of these limits and `others`.
    pub(crate) fn check_sum<'a>(
        &'a self,
        others: impl Iterator<Item = &'a Self>,
    ) -> Result<(), InvalidField> {
        Self::sum(others.chain([self])).check().map_err(|expected| {
            let expected = format!("together with the records that overlap {expected}");
            InvalidField::new(FIELD, self, expected)
        })
    }

    /// Returns the JSON of the history.
    pub(crate) fn to_json(&self) -> Value {
        self.0.iter().map(Limit::to_string).collect()
    }

    /// Reads the limits of `object` in the history. Older entries have a number for each of six
    /// periods.
    pub(crate) fn from_json(object: &Value) -> Option<Self> {
        if let Some(texts) = object[FIELD].as_array() {
            return Self::from_texts(texts.iter().filter_map(Value::as_str)).ok();
        }
        let mut numbers = [0; 6];
        for (period, number) in CallPeriod::ALL.into_iter().zip(&mut numbers) {
            *number = object[period.field()].as_i64()?;
        }
        CallLimits::from_numbers(numbers).ok().map(Self::from)
    }
}

/// Adds up two limits with the same state.
fn add(sum: Limit, other: Limit) -> Result<Limit, InvalidLimit> {
    match (sum.is_shadow(), other.is_shadow()) {
        (true, false) => return Ok(other),
        (false, true) => return Ok(sum),
        _ if other.max() == 0 => return Ok(sum),
        _ if sum.max() == 0 => return Ok(other),
        _ => {}
    }
    if sum.unit() != other.unit() {
        return Err(InvalidLimit::Unit { counts_requests: sum.counts_requests() });
    }
    let algorithm = match (sum.algorithm(), other.algorithm()) {
        (Algorithm::Gcra { burst }, Algorithm::Gcra { burst: more }) => {
            Algorithm::Gcra { burst: burst.saturating_add(more) }
        }
        (
            Algorithm::TokenBucket { capacity, refill },
            Algorithm::TokenBucket { capacity: more, .. },
        ) => Algorithm::TokenBucket { capacity: capacity.saturating_add(more), refill },
        (same, _) => same,
    };
    let max = sum.max().saturating_add(other.max());
    let mut limit = Limit::new(max, sum.period())?.with_algorithm(algorithm)?;
    if let Some(hint) = sum.retry_hint() {
        let millis = u64::try_from(hint.as_millis()).unwrap_or(u64::MAX);
        limit =
            Period::from_millis(millis).map_or(Ok(limit), |hint| limit.with_retry_hint(hint))?;
    }
    limit =
        if sum.counts_requests() { limit.count_requests() } else { limit.with_unit(sum.unit())? };
    Ok(if sum.is_shadow() { limit.shadow() } else { limit })
}

impl From<CallLimits> for Limits {
    fn from(limits: CallLimits) -> Self {
        let limits = CallPeriod::ALL.into_iter().filter_map(|period| match limits.get(period) {
            CallLimit::AtMost(max) => Limit::new(max.min(MAX_UNITS), period.period()).ok(),
            CallLimit::Unlimited => None,
        });
        Self(limits.collect())
    }
}

/// Reads limits that are separated by commas or line breaks.
impl FromStr for Limits {
    type Err = InvalidField;

    fn from_str(text: &str) -> Result<Self, InvalidField> {
        let texts = text.split([',', '\n']).map(str::trim);
        Self::from_texts(texts.filter(|text| !text.is_empty()))
    }
}

/// Writes the limits, separated by commas.
impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, limit) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{limit}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Limits({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(texts: &[&str]) -> String {
        let limits: Vec<Limits> = texts.iter().map(|text| text.parse().unwrap()).collect();
        Limits::sum(&limits).to_string()
    }

    #[test]
    fn limits_with_the_same_state_add_up_and_others_stand_beside_each_other() {
        #[rustfmt::skip]
        let table: &[(&[&str], &str)] = &[
            (&["100/minute", "50/minute, 5/second"],         "5/second, 150/minute"),
            (&["10/second", "10/second:clock"],              "10/second, 10/second:clock"),
            (&["5/second:gcra:burst=20", "3/second:gcra"],   "8/second:gcra:burst=23"),
            (&["9/hour:token-bucket:capacity=20", "1/hour:token-bucket"], "10/hour:token-bucket:capacity=21"),
            (&["600/hour:sliding-window:precision=minute", "60/hour:sliding-window:precision=minute"], "660/hour:sliding-window:precision=minute"),
            (&["20/minute:requests", "9/minute", "2/minute:requests"], "9/minute, 22/minute:requests"),
            (&["9000/minute:unit=tokens", "1000/minute:unit=tokens"],  "10000/minute:unit=tokens"),
            (&["2:concurrency:retry=5s", "3:concurrency"],   "5:concurrency:retry=5seconds"),
            // A limit of 0 adds nothing, not even its burst.
            (&["0/second:gcra:burst=9", "3/second:gcra"],    "3/second:gcra"),
            (&["0/second", "0/second"],                      "0/second"),
            // A limit in shadow adds nothing to an enforced one.
            (&["100/minute:shadow", "50/minute"],            "50/minute"),
            (&["100/minute:shadow", "50/minute:shadow"],     "150/minute:shadow"),
            (&["", "5/second"],                              "5/second"),
        ];
        for (texts, expected) in table {
            assert_eq!(sum(texts), *expected, "{texts:?}");
            let reversed: Vec<_> = texts.iter().rev().copied().collect();
            if !expected.contains("retry") {
                assert_eq!(sum(&reversed), *expected, "{reversed:?}");
            }
        }
    }

    #[test]
    fn a_sum_that_cannot_be_counted_is_an_error_and_the_larger_limit_applies() {
        let check = |own: &str, other: &str| {
            let [own, other]: [Limits; 2] = [own, other].map(|text| text.parse().unwrap());
            let checked = own.check_additions([&other].into_iter());
            checked
                .and_then(|()| own.check_sum([&other].into_iter()))
                .map_err(|error| error.to_string())
        };
        let largest = format!("{MAX_UNITS}/hour");
        let error = check("1/hour", &largest).unwrap_err();
        assert!(error.starts_with("limits \"1/hour\": expected less, together"), "{error}");
        assert_eq!(sum(&["1/hour", &largest]), largest);
        assert_eq!(sum(&["6000:concurrency", "7000:concurrency"]), "7000:concurrency");
        assert_eq!(check("1/minute", &largest), Ok(()));
        let error = check("9/minute:unit=tokens", "1/minute").unwrap_err();
        assert!(error.contains("expected the unit requests of a record that overlaps"), "{error}");
        assert_eq!(sum(&["9/minute:unit=tokens", "1/minute"]), "9/minute:unit=tokens");
        let many = |from: u64, to: u64| {
            let texts: Vec<_> = (from..to).map(|hours| format!("{hours}/{hours}hours")).collect();
            texts.join(", ")
        };
        assert_eq!(check(&many(2, 10), &many(10, 18)), Ok(()));
        let error = check(&many(2, 10), &many(10, 19)).unwrap_err();
        assert!(error.contains("policy has 17 limits: expected at most 16"), "{error}");
        let limits = Limits::sum(&[many(2, 10), many(10, 19)].map(|text| text.parse().unwrap()));
        assert_eq!(limits.policy().unwrap().limits().len(), 16);
    }

    #[test]
    fn a_grant_adds_to_limits_with_the_same_state_and_nothing_to_zero() {
        #[rustfmt::skip]
        let table = [
            // limits                      grants                     together
            ("10/second, 20000/month",     "5000/month",              "10/second, 25000/month"),
            ("10/second",                  "5000/month",              "10/second"),
            ("0/month",                    "5000/month",              "0/month"),
            ("",                           "5000/month",              ""),
            ("20000/month:clock",          "5000/month",              "20000/month:clock"),
            ("9/second:gcra:burst=20",     "1/second:gcra:burst=5",   "10/second:gcra:burst=25"),
            ("100/minute:shadow",          "50/minute",               "150/minute:shadow"),
            ("100/minute:unit=tokens",     "50/minute",               "100/minute:unit=tokens"),
            ("3:concurrency",              "2:concurrency",           "5:concurrency"),
        ];
        for (limits, grants, expected) in table {
            let [limits, grants]: [Limits; 2] = [limits, grants].map(|text| text.parse().unwrap());
            assert_eq!(limits.clone().with_grants(&grants).to_string(), expected, "{limits}");
        }
    }

    #[test]
    fn six_numbers_express_plain_windows_only() {
        let numbers = [10, 100, -1, 0, -1, 7];
        let limits = Limits::from(CallLimits::from_numbers(numbers).unwrap());
        assert_eq!(limits.to_string(), "10/second, 100/minute, 0/day, 7/month");
        assert_eq!(limits.call_limits().unwrap().numbers(), numbers);
        assert_eq!(Limits::UNLIMITED.call_limits(), Some(CallLimits::UNLIMITED));
        for other in ["1/day:clock", "1/day:gcra", "1/2days", "1/day:requests", "1/day:shadow"] {
            assert_eq!(other.parse::<Limits>().unwrap().call_limits(), None, "{other}");
        }
    }

    #[test]
    fn the_history_is_read_in_the_form_of_older_versions_too() {
        let old = serde_json::json!({
            "per_second_call_limit": 10, "per_minute_call_limit": -1, "per_hour_call_limit": -1,
            "per_day_call_limit": 0, "per_week_call_limit": -1, "per_month_call_limit": -1,
        });
        assert_eq!(Limits::from_json(&old).unwrap().to_string(), "10/second, 0/day");
        let limits: Limits = "5/second:gcra, 1/day".parse().unwrap();
        let new = serde_json::json!({ "limits": limits.to_json() });
        assert_eq!(Limits::from_json(&new), Some(limits));
    }
}
