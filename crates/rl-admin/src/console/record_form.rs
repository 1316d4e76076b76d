//! The form of a record: what people typed stays what they typed, until it can be stored.

use maud::{Markup, html};
use rl_core::time::Timestamp;
use rl_records::{CallLimit, CallLimits, CallPeriod, InvalidField, Record, RecordContent};

use super::fields::Fields;
use super::page::form_token;
use super::session::Visitor;
use super::text;

/// What is wrong with a field, and with which.
pub(super) type Problems = Vec<(&'static str, String)>;

/// What is expected of a limit.
pub(super) const LIMIT: &str =
    "nothing or -1 (no limit), 0 (no call), or a number of calls up to 9007199254740991";

const TIME: &str = "a date and a time, such as 2026-11-21T14:00:00";

/// The fields as they would be typed for this record.
pub(super) fn fields_of(record: &Record) -> Fields {
    let content = &record.content;
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let fields = Fields::default()
        .with("record", record.id.to_string())
        .with("revision", record.revision.to_string())
        .with("consumer_id", &*content.consumer_id)
        .with("api_name", text(&content.api_name))
        .with("api_version", text(&content.api_version))
        .with("bank_id", text(&content.bank_id))
        .with("from_date", text::field(content.from_date))
        .with("to_date", text::field(content.to_date))
        .with("blocks", if content.blocks { "on" } else { "" });
    with_limits(fields, &content.limits)
}

pub(super) fn with_limits(fields: Fields, limits: &CallLimits) -> Fields {
    CallPeriod::ALL.into_iter().fold(fields, |fields, period| {
        let typed = match limits.get(period) {
            CallLimit::AtMost(max) => max.to_string(),
            CallLimit::Unlimited => String::new(),
        };
        fields.with(period.field(), typed)
    })
}

/// The six limits that were typed.
pub(super) fn read_limits(form: &Fields, problems: &mut Problems) -> CallLimits {
    CallPeriod::ALL.into_iter().fold(CallLimits::UNLIMITED, |limits, period| {
        let typed = form.get(period.field());
        let typed = if typed.is_empty() { "-1" } else { typed };
        let number = typed.parse().ok();
        match number.and_then(|number| CallLimit::from_number(period.field(), number).ok()) {
            Some(limit) => limits.with(period, limit),
            None => {
                problems.push((period.field(), format!("Expected {LIMIT}.")));
                limits
            }
        }
    })
}

/// The record that was typed, over the one that is there.
///
/// A time that was not touched stays as it is to the microsecond, which the field does not show. A
/// record ends with the last microsecond of the second that was typed.
pub(super) fn read(
    form: &Fields,
    before: Option<&RecordContent>,
) -> Result<RecordContent, Problems> {
    let mut problems = Problems::new();
    let limits = read_limits(form, &mut problems);
    let mut time = |name: &'static str, before: Option<Timestamp>, after_it: u64| {
        let typed = form.get(name);
        let same = before.filter(|before| text::field(*before) == typed);
        same.or_else(|| Some(text::read_time(typed)?.plus_micros(after_it))).unwrap_or_else(|| {
            problems.push((name, format!("Expected {TIME}.")));
            Timestamp::EPOCH
        })
    };
    let from_date = time("from_date", before.map(|before| before.from_date), 0);
    let to_date = time("to_date", before.map(|before| before.to_date), 999_999);
    let text = |name: &str| form.given(name).map(ToOwned::to_owned);
    let content = RecordContent {
        api_name: text("api_name"),
        api_version: text("api_version"),
        bank_id: text("bank_id"),
        blocks: form.given("blocks").is_some(),
        ..RecordContent::new(form.get("consumer_id"), from_date, to_date, limits)
    };
    // All that is wrong is told at once: what the record itself finds, too, if that is another field.
    if let Err(invalid) = content.clone().checked()
        && !problems.iter().any(|(field, _)| *field == invalid.field() || is_time(invalid.field()))
    {
        problems.push(problem(&invalid));
    }
    if problems.is_empty() { Ok(content) } else { Err(problems) }
}

/// Two dates are compared only if both were read.
fn is_time(field: &str) -> bool {
    matches!(field, "from_date" | "to_date")
}

/// What the record refused.
pub(super) fn problem(invalid: &InvalidField) -> (&'static str, String) {
    (invalid.field(), format!("Expected {}.", invalid.expected()))
}

/// A form, and what there is to say about it.
pub(super) struct Form<'a> {
    pub(super) action: String,
    pub(super) fields: &'a Fields,
    pub(super) problems: &'a Problems,
    /// Stands above the fields.
    pub(super) notice: Markup,
    pub(super) save: &'static str,
    pub(super) back: String,
}

impl Form<'_> {
    /// The form of a record; the consumer stays if there is a record.
    pub(super) fn of_record(&self, visitor: &Visitor, is_new: bool) -> Markup {
        let content = html! {
            @if is_new {
                (self.text("consumer_id", "Consumer", "Its id: 1 to 250 bytes."))
            } @else {
                input type="hidden" name="record" value=(self.fields.get("record"));
                input type="hidden" name="revision" value=(self.fields.get("revision"));
                input type="hidden" name="consumer_id" value=(self.fields.raw("consumer_id"));
            }
            fieldset {
                legend { "When (UTC)" }
                div.grid.two {
                    (self.field("from_date", "datetime-local", "From", "The first second."))
                    (self.field("to_date", "datetime-local", "To", "The last second, to its end."))
                }
            }
            (self.limits("Empty or -1: no limit from here. 0: no call, unless another record allows some."))
            @if self.fields.given("asks_unlimited").is_some() {
                input type="hidden" name="asks_unlimited" value="on";
                div.check {
                    input #unlimited type="checkbox" name="unlimited"
                        checked[self.fields.given("unlimited").is_some()];
                    label for="unlimited" { "Let this consumer call without a limit in any period" }
                }
            }
            fieldset {
                legend { "For information" }
                p.hint { "They limit nothing by themselves, and may be empty." }
                div.grid {
                    (self.text("api_name", "API name", ""))
                    (self.text("api_version", "API version", ""))
                    (self.text("bank_id", "Bank", ""))
                }
            }
            div.check {
                input #blocks type="checkbox" name="blocks" checked[self.fields.given("blocks").is_some()];
                label for="blocks" { "Block this consumer while the record is active, whatever other records say" }
            }
        };
        self.around(visitor, content)
    }

    /// Returns the fields of the six limits; `hint` explains an empty field and a 0.
    pub(super) fn limits(&self, hint: &str) -> Markup {
        html! {
            fieldset {
                legend { "Calls" }
                p.hint #limits-hint { (hint) }
                div.grid.six { @for period in CallPeriod::ALL {
                    (self.field(period.field(), "text", text::period(period), ""))
                } }
            }
        }
    }

    pub(super) fn text(&self, name: &'static str, label: &str, hint: &str) -> Markup {
        self.field(name, "text", label, hint)
    }

    fn field(&self, name: &'static str, kind: &str, label: &str, hint: &str) -> Markup {
        let problem = self.problems.iter().find(|(field, _)| *field == name);
        let is_limit = name.starts_with("per_");
        let mut described = Vec::new();
        if problem.is_some() {
            described.push(format!("{name}-problem"));
        }
        if !hint.is_empty() {
            described.push(format!("{name}-hint"));
        }
        if is_limit {
            described.push("limits-hint".to_owned());
        }
        let step = (kind == "datetime-local").then_some("1");
        html! {
            div.field {
                label for=(name) { (label) }
                input #(name) type=(kind) name=(name) value=(self.fields.raw(name))
                    step=[step] inputmode=[is_limit.then_some("numeric")] autocomplete="off"
                    spellcheck="false"
                    aria-invalid=[problem.map(|_| "true")]
                    aria-describedby=[(!described.is_empty()).then(|| described.join(" "))];
                @if let Some((_, problem)) = problem { p.problem #{ (name) "-problem" } { (problem) } }
                @if !hint.is_empty() { p.hint #{ (name) "-hint" } { (hint) } }
            }
        }
    }

    /// The form with its buttons, and above it all that is wrong.
    pub(super) fn around(&self, visitor: &Visitor, content: Markup) -> Markup {
        html! {
            @if !self.problems.is_empty() {
                div.problems role="alert" tabindex="-1" {
                    h2 { "Nothing was saved" }
                    ul { @for (field, problem) in self.problems {
                        li { a href={ "#" (field) } { (name_of(field)) } ": " (problem) }
                    } }
                }
            }
            (self.notice)
            form.sheet method="post" action=(self.action) {
                (form_token(visitor))
                (content)
                div.buttons {
                    button.main type="submit" { (self.save) }
                    a.button href=(self.back) { "Cancel" }
                }
            }
        }
    }
}

/// What people call a field.
pub(super) fn name_of(field: &str) -> String {
    let period = CallPeriod::ALL.into_iter().find(|period| period.field() == field);
    match (period, field) {
        (Some(period), _) => format!("Calls {}", text::period(period)),
        (_, "consumer_id") => "Consumer".to_owned(),
        (_, "from_date") => "From".to_owned(),
        (_, "to_date") => "To".to_owned(),
        (_, "api_name") => "API name".to_owned(),
        (_, "api_version") => "API version".to_owned(),
        (_, "bank_id") => "Bank".to_owned(),
        (_, "blocks") => "Blocks".to_owned(),
        (_, "name") => "Name".to_owned(),
        (_, other) => other.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed() -> Fields {
        Fields::default()
            .with("consumer_id", "abc")
            .with("from_date", "2026-02-01T12:00")
            .with("to_date", "2026-02-01T12:59:59")
            .with("per_minute_call_limit", " 100 ")
            .with("per_hour_call_limit", "-1")
            .with("per_day_call_limit", "0")
    }

    #[test]
    fn what_is_typed_becomes_a_record_to_the_end_of_its_last_second() {
        let content = read(&typed(), None).unwrap();
        assert_eq!(content.limits.numbers(), [-1, 100, -1, 0, -1, -1]);
        assert_eq!(content.from_date, Timestamp::from_secs(1_769_947_200));
        assert_eq!(content.to_date, Timestamp::from_micros(1_769_950_799_999_999));
        assert!(!content.blocks && content.api_name.is_none());
    }

    #[test]
    fn a_time_that_was_not_touched_stays_to_the_microsecond() {
        let mut before = read(&typed(), None).unwrap();
        before.from_date = before.from_date.plus_micros(123);
        before.to_date = Timestamp::from_micros(before.to_date.as_micros() - 999_000);
        let same = typed().with("from_date", text::field(before.from_date));
        assert_eq!(read(&same, Some(&before)).unwrap(), before);
        let other = same.with("to_date", "2026-02-01T13:00:00");
        let to_date = read(&other, Some(&before)).unwrap().to_date;
        assert_eq!(to_date, Timestamp::from_micros(1_769_950_800_999_999));
    }

    #[test]
    fn all_that_is_wrong_is_told_at_once() {
        let wrong = typed()
            .with("consumer_id", "")
            .with("from_date", "tomorrow")
            .with("per_minute_call_limit", "many")
            .with("per_week_call_limit", "-2")
            .with("per_month_call_limit", "9007199254740992");
        let fields: Vec<_> =
            read(&wrong, None).unwrap_err().into_iter().map(|(name, _)| name).collect();
        let expected = [
            "per_minute_call_limit",
            "per_week_call_limit",
            "per_month_call_limit",
            "from_date",
            "consumer_id",
        ];
        assert_eq!(fields, expected);
        let backwards = typed().with("to_date", "2026-01-01T12:00");
        assert_eq!(read(&backwards, None).unwrap_err()[0].0, "from_date");
    }
}
