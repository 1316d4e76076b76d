use rl_core::Realm;
use rl_records::{Day, MonthRow, UsageCounts, UsageRow};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::openapi::{KnownFormat, ObjectBuilder, RefOr, Schema, SchemaFormat, Type};
use utoipa::{PartialSchema, ToSchema};

/// A day in a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DayText(pub(crate) Day);

impl<'de> Deserialize<'de> for DayText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Self).map_err(serde::de::Error::custom)
    }
}

impl PartialSchema for DayText {
    fn schema() -> RefOr<Schema> {
        let day = ObjectBuilder::new()
            .schema_type(Type::String)
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::Date)))
            .description(Some("A day in UTC, from 1970-01-01 to 9999-12-31."))
            .examples(["2026-11-30"]);
        day.into()
    }
}

impl ToSchema for DayText {}

/// Calls, added up. A call counts under each rule that matches it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CallSums {
    /// The allowed calls.
    allowed: u64,
    /// The calls that the rule denied.
    denied: u64,
    /// The allowed calls that would have been denied by a rule or a limit in shadow.
    would_be_denied: u64,
    /// The charged units without the refunded ones. They are negative on a day on which more units
    /// of the day before were refunded than charged.
    units: i64,
}

impl CallSums {
    const fn of(counts: UsageCounts) -> Self {
        let UsageCounts { allowed, denied, would_be_denied, units, .. } = counts;
        Self { allowed, denied, would_be_denied, units }
    }

    /// Returns the numbers as text.
    fn cells(&self) -> [String; 4] {
        let Self { allowed, denied, would_be_denied, units } = self;
        [allowed.to_string(), denied.to_string(), would_be_denied.to_string(), units.to_string()]
    }
}

/// The calls of a subject under a rule on a day.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct UsageOfDay {
    /// The day in UTC.
    #[schema(value_type = DayText)]
    day: String,
    /// The realm of the subject.
    realm: String,
    /// The id of the subject. `null` for all subjects together that have no row of their own,
    /// because there were too many between two writes, or because of their ids.
    subject: Option<String>,
    /// The name of the rule; `null` in a limiter without rules.
    rule: Option<String>,
    #[serde(flatten)]
    sums: CallSums,
}

impl UsageOfDay {
    pub(crate) fn of(realm: &Realm, row: UsageRow) -> Self {
        let UsageRow { day, subject, rule, counts, .. } = row;
        let (day, realm) = (day.to_string(), realm.as_str().to_owned());
        Self { day, realm, subject, rule, sums: CallSums::of(counts) }
    }
}

/// The calls of a subject in a month, under all rules together or under one.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct UsageOfMonth {
    /// The month in UTC.
    #[schema(example = "2026-11")]
    month: String,
    /// The realm of the subject.
    realm: String,
    /// The id of the subject. `null` for all subjects together that have no row of their own.
    subject: Option<String>,
    /// The name of the rule, if the request names one; otherwise `null`.
    rule: Option<String>,
    #[serde(flatten)]
    sums: CallSums,
}

impl UsageOfMonth {
    pub(crate) fn of(month: Day, realm: &Realm, rule: Option<&str>, row: MonthRow) -> Self {
        Self {
            month: month_text(month),
            realm: realm.as_str().to_owned(),
            subject: row.subject,
            rule: rule.map(ToOwned::to_owned),
            sums: CallSums::of(row.counts),
        }
    }
}

/// Formats the month of a day as `2026-11`.
pub(crate) fn month_text(day: Day) -> String {
    let mut text = day.to_string();
    text.truncate(text.len() - 3);
    text
}

/// Parses a month such as `2026-11`. Returns its first day.
pub(crate) fn parse_month(text: &str) -> Option<Day> {
    format!("{text}-01").parse().ok()
}

/// A page of the calls of each day.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct UsageDays {
    /// The rows, ordered by day, subject and rule.
    pub(crate) days: Vec<UsageOfDay>,
    /// The value of `after` for the next page; `null` on the last page.
    pub(crate) next: Option<String>,
    /// The value of `before` for the previous page; `null` on the first page.
    pub(crate) previous: Option<String>,
}

/// A page of the subjects of a month.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct UsageMonth {
    /// The subjects.
    pub(crate) subjects: Vec<UsageOfMonth>,
    /// The value of `after` for the next page; `null` on the last page.
    pub(crate) next: Option<String>,
    /// The value of `before` for the previous page; `null` on the first page.
    pub(crate) previous: Option<String>,
}

/// A row of an export.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum ExportedRow {
    Day(UsageOfDay),
    Month(UsageOfMonth),
}

impl ExportedRow {
    /// Returns the row as a line of CSV.
    pub(crate) fn csv(&self) -> String {
        let (time, realm, subject, rule, sums) = match self {
            Self::Day(UsageOfDay { day, realm, subject, rule, sums }) => {
                (day, realm, subject, rule, sums)
            }
            Self::Month(UsageOfMonth { month, realm, subject, rule, sums }) => {
                (month, realm, subject, rule, sums)
            }
        };
        let text = |text: &Option<String>| cell(text.as_deref().unwrap_or_default());
        let texts = [time.clone(), cell(realm), text(subject), text(rule)];
        let mut line = texts.into_iter().chain(sums.cells()).collect::<Vec<_>>().join(",");
        line.push_str("\r\n");
        line
    }
}

/// Formats a text as a cell of CSV.
///
/// A spreadsheet takes a cell that begins with `=`, `+`, `-` or `@` for a formula, and skips a tab
/// or a line break before it. Such a cell begins with an apostrophe.
fn cell(text: &str) -> String {
    let is_formula = text.starts_with(['=', '+', '-', '@', '\t', '\r', '\n']);
    let text = if is_formula { format!("'{text}") } else { text.to_owned() };
    if text.contains([',', ';', '"', '\r', '\n', '\t']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_no_formulas_and_end_where_their_text_ends() {
        for (text, written) in [
            ("", ""),
            ("abc", "abc"),
            ("a=1", "a=1"),
            ("=1+2", "'=1+2"),
            ("+1", "'+1"),
            ("-1", "'-1"),
            ("@SUM(A1)", "'@SUM(A1)"),
            ("\t=1", "\"'\t=1\""),
            ("\r=1", "\"'\r=1\""),
            ("\n=1", "\"'\n=1\""),
            ("a,b;c", "\"a,b;c\""),
            ("a\"b\n=c", "\"a\"\"b\n=c\""),
            ("=\"x\",y", "\"'=\"\"x\"\",y\""),
        ] {
            assert_eq!(cell(text), written, "{text:?}");
        }
    }

    #[test]
    fn months_are_parsed_as_they_are_formatted() {
        let month = parse_month("2026-11").unwrap();
        assert_eq!((month.to_string(), month_text(month)), ("2026-11-01".into(), "2026-11".into()));
        for text in ["", "2026-13", "2026-1", "2026-11-30", "1969-12", "2026-11 "] {
            assert_eq!(parse_month(text), None, "{text}");
        }
    }
}
