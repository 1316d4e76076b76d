//! The calls of subjects, added up for each rule and day.

use std::fmt;
use std::ops::AddAssign;
use std::str::FromStr;

use rl_core::Realm;

use crate::day::Day;

/// Calls under a rule, added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct UsageCounts {
    /// The allowed calls.
    pub allowed: u64,
    /// The calls that the rule denied.
    pub denied: u64,
    /// The allowed calls that the rule or one of its limits would have denied if it were not in
    /// shadow. They are allowed calls too.
    pub would_be_denied: u64,
    /// The charged units minus the refunded ones. The number is negative if the day has more
    /// refunds of earlier charges than charges.
    pub units: i64,
}

impl UsageCounts {
    /// Returns whether all numbers are 0.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl AddAssign for UsageCounts {
    fn add_assign(&mut self, other: Self) {
        self.allowed = self.allowed.saturating_add(other.allowed);
        self.denied = self.denied.saturating_add(other.denied);
        self.would_be_denied = self.would_be_denied.saturating_add(other.would_be_denied);
        self.units = self.units.saturating_add(other.units);
    }
}

/// The calls of a subject under a rule on a day.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UsageRow {
    /// The day.
    pub day: Day,
    /// The id of the subject. `None` for all subjects together that have no row of their own.
    pub subject: Option<String>,
    /// The name of the rule; `None` in a limiter without rules.
    pub rule: Option<String>,
    /// The calls.
    pub counts: UsageCounts,
}

/// Selects rows of [`UsageHistory::days`](crate::UsageHistory::days), which are ordered by day,
/// subject and rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageQuery {
    /// The realm of the subjects.
    pub realm: Realm,
    /// Selects the subject with this id.
    pub subject: Option<String>,
    /// Selects the subjects with these ids.
    pub subjects: Option<Vec<String>>,
    /// Selects the rule with this name. An empty name selects limiters without rules.
    pub rule: Option<String>,
    /// The first day.
    pub from: Day,
    /// The last day.
    pub to: Day,
    /// Selects the rows after this one. Pass [`UsagePage::next`] of the previous page.
    pub after: Option<UsageCursor>,
    /// Selects the last rows before this one, in the same order. Pass [`UsagePage::previous`] of
    /// the next page.
    pub before: Option<UsageCursor>,
    /// The maximum number of rows on a page: 1 to 1 000.
    pub limit: u32,
}

impl UsageQuery {
    /// Returns a query for the first 50 rows of all consumers from one day to another.
    #[must_use]
    pub const fn new(from: Day, to: Day) -> Self {
        Self {
            realm: Realm::Consumer,
            subject: None,
            subjects: None,
            rule: None,
            from,
            to,
            after: None,
            before: None,
            limit: 50,
        }
    }
}

/// A page of rows.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UsagePage {
    /// The rows.
    pub rows: Vec<UsageRow>,
    /// The cursor of the next page, if there is one.
    pub next: Option<UsageCursor>,
    /// The cursor of the previous page, if there is one.
    pub previous: Option<UsageCursor>,
}

/// A position in the list of rows. A client can receive its text form and send it back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageCursor {
    pub(crate) day: Day,
    pub(crate) subject: String,
    pub(crate) rule: String,
}

impl UsageCursor {
    pub(crate) fn of(row: &UsageRow) -> Self {
        let UsageRow { day, subject, rule, .. } = row;
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        Self { day: *day, subject: text(subject), rule: text(rule) }
    }
}

impl fmt::Display for UsageCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // No name of a rule contains `!`.
        write!(f, "{}!{}!{}", self.day, self.rule, self.subject)
    }
}

impl FromStr for UsageCursor {
    type Err = InvalidUsageCursor;

    fn from_str(text: &str) -> Result<Self, InvalidUsageCursor> {
        let mut parts = text.splitn(3, '!');
        let mut part = || parts.next().ok_or(InvalidUsageCursor);
        let day = part()?.parse().map_err(|_| InvalidUsageCursor)?;
        let (rule, subject) = (part()?.to_owned(), part()?.to_owned());
        // PostgreSQL rejects NUL in text, and no stored id contains it.
        if text.contains('\0') { Err(InvalidUsageCursor) } else { Ok(Self { day, subject, rule }) }
    }
}

/// The error for a text that is no [`UsageCursor`] or [`MonthCursor`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct InvalidUsageCursor;

rl_core::debug_as_display!(InvalidUsageCursor);

impl fmt::Display for InvalidUsageCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected the cursor of an earlier page")
    }
}

impl std::error::Error for InvalidUsageCursor {}

/// The order of a list of subjects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UsageOrder {
    /// By the id of the subject.
    #[default]
    Subject,
    /// By the allowed calls, largest first.
    Allowed,
    /// By the denied calls, largest first.
    Denied,
    /// By the units, largest first.
    Units,
}

/// Selects subjects of [`UsageHistory::month`](crate::UsageHistory::month).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MonthQuery {
    /// A day of the month.
    pub month: Day,
    /// The realm of the subjects.
    pub realm: Realm,
    /// Selects the ids that begin with this text.
    pub search: Option<String>,
    /// Selects the subjects with these ids.
    pub subjects: Option<Vec<String>>,
    /// Selects the rule with this name. An empty name selects limiters without rules.
    pub rule: Option<String>,
    /// The order of the list.
    pub order: UsageOrder,
    /// Selects the subjects after this one. Pass [`MonthPage::next`] of the previous page.
    pub after: Option<MonthCursor>,
    /// Selects the subjects before this one. Pass [`MonthPage::previous`] of the next page.
    pub before: Option<MonthCursor>,
    /// The maximum number of subjects on a page: 1 to 1 000.
    pub limit: u32,
}

impl MonthQuery {
    /// Returns a query for the first 50 consumers of a month, ordered by id.
    #[must_use]
    pub const fn new(month: Day) -> Self {
        Self {
            month,
            realm: Realm::Consumer,
            search: None,
            subjects: None,
            rule: None,
            order: UsageOrder::Subject,
            after: None,
            before: None,
            limit: 50,
        }
    }
}

/// The calls of a subject in a month, under all rules together or under one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MonthRow {
    /// The id of the subject. `None` for all subjects together that have no row of their own.
    pub subject: Option<String>,
    /// The calls. A call counts under each rule that matches it.
    pub counts: UsageCounts,
}

/// A page of subjects.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MonthPage {
    /// The subjects.
    pub rows: Vec<MonthRow>,
    /// The cursor of the next page, if there is one.
    pub next: Option<MonthCursor>,
    /// The cursor of the previous page, if there is one.
    pub previous: Option<MonthCursor>,
}

/// A position in a list of subjects: the number by which it is ordered, and the id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MonthCursor {
    pub(crate) number: i64,
    pub(crate) subject: String,
}

impl MonthCursor {
    pub(crate) fn of(row: &MonthRow, order: UsageOrder) -> Self {
        let UsageCounts { allowed, denied, units, .. } = row.counts;
        let whole = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let number = match order {
            UsageOrder::Subject => 0,
            UsageOrder::Allowed => whole(allowed),
            UsageOrder::Denied => whole(denied),
            UsageOrder::Units => units,
        };
        Self { number, subject: row.subject.clone().unwrap_or_default() }
    }
}

impl fmt::Display for MonthCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}!{}", self.number, self.subject)
    }
}

impl FromStr for MonthCursor {
    type Err = InvalidUsageCursor;

    fn from_str(text: &str) -> Result<Self, InvalidUsageCursor> {
        let (number, subject) = text.split_once('!').ok_or(InvalidUsageCursor)?;
        let number = number.parse().map_err(|_| InvalidUsageCursor)?;
        if text.contains('\0') {
            return Err(InvalidUsageCursor);
        }
        Ok(Self { number, subject: subject.to_owned() })
    }
}
