//! The form of a record: renders its fields, and parses what was typed.

use maud::{Markup, html};
use rl_core::time::Timestamp;
use rl_records::{Record, RecordContent};

use super::edit_page::{EditPage, Problems, problem, read_limits, with_limits};
use super::fields::Fields;
use super::text;

const TIME: &str = "a date and a time, such as 2026-11-21T14:00:00";

/// Returns the fields for editing a record.
pub(super) fn fields(record: &Record) -> Fields {
    let content = &record.content;
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let fields = Fields::default()
        .with("record", record.id.to_string())
        .with("revision", record.revision.to_string())
        .with("consumer_id", &*content.subject_id)
        .with("rule", text(&content.rule))
        .with("api_name", text(&content.api_name))
        .with("api_version", text(&content.api_version))
        .with("bank_id", text(&content.bank_id))
        .with("from_date", text::field(content.from_date))
        .with("to_date", text::field(content.to_date))
        .with("grants", if content.grants { "on" } else { "" })
        .with("blocks", if content.blocks { "on" } else { "" });
    with_limits(fields, &content.limits)
}

/// Parses the content that was typed. `before` is the content that it replaces; `None` for a new
/// record.
///
/// The fields do not show microseconds. A time that was not edited keeps its microseconds. An
/// edited `to_date` becomes the last microsecond of the typed second.
pub(super) fn read(
    form: &Fields,
    before: Option<&RecordContent>,
) -> Result<RecordContent, Problems> {
    let mut problems = Problems::new();
    let limits = read_limits(form, &mut problems);
    let mut time = |name: &'static str, before: Option<Timestamp>, after_it: u64| {
        let typed = form.get(name);
        let same = before.filter(|before| text::field(*before) == typed);
        same.or_else(|| Some(text::parse_time(typed)?.plus_micros(after_it))).unwrap_or_else(|| {
            problems.push((name, format!("Expected {TIME}.")));
            Timestamp::EPOCH
        })
    };
    let from_date = time("from_date", before.map(|before| before.from_date), 0);
    let to_date = time("to_date", before.map(|before| before.to_date), 999_999);
    let text = |name: &str| form.non_empty(name).map(ToOwned::to_owned);
    let content = RecordContent {
        api_name: text("api_name"),
        api_version: text("api_version"),
        bank_id: text("bank_id"),
        rule: text("rule"),
        blocks: form.non_empty("blocks").is_some(),
        grants: form.non_empty("grants").is_some(),
        ..RecordContent::new(form.get("consumer_id"), from_date, to_date, limits)
    };
    // The subject and the rule of a record never change.
    let content = match before {
        Some(RecordContent { realm, subject_id, rule, grants, .. }) => RecordContent {
            grants: *grants,
            realm: realm.clone(),
            subject_id: subject_id.clone(),
            rule: rule.clone(),
            ..content
        },
        None => content,
    };
    // All problems are reported together. The check of the whole record may find one more, which is
    // added unless its field already has a problem.
    if let Err(invalid) = content.clone().checked()
        && !problems.iter().any(|(field, _)| {
            *field == invalid.field() || is_time(field) && is_time(invalid.field())
        })
    {
        problems.push(problem(&invalid));
    }
    if problems.is_empty() { Ok(content) } else { Err(problems) }
}

/// Returns whether a field is one of the two dates. While one of them cannot be parsed, an error
/// about the other, or about their order, would be misleading.
fn is_time(field: &str) -> bool {
    matches!(field, "from_date" | "to_date")
}

/// Renders the fields of a record. The consumer can be edited only in a new record.
pub(super) fn draw(page: &EditPage<'_>, is_new: bool) -> Markup {
    let is_grant = page.fields.non_empty("grants").is_some();
    let hint = if is_grant {
        "This is a grant: each limit is added to the limit with the same period and algorithm. At least one is above 0."
    } else {
        "Empty: no limit, unless other own limits apply at the same time. A limit of 0 allows no call, unless other \
         own limits allow some."
    };
    html! {
        @if is_new {
            (page.text("consumer_id", "Consumer", "Its id: 1 to 250 bytes."))
            (page.text("rule", "Rule", "Its name; empty: every rule that takes its limits from the database."))
        } @else {
            input type="hidden" name="record" value=(page.fields.get("record"));
            input type="hidden" name="revision" value=(page.fields.get("revision"));
            input type="hidden" name="consumer_id" value=(page.fields.raw("consumer_id"));
            input type="hidden" name="rule" value=(page.fields.raw("rule"));
            @if let Some(rule) = page.fields.non_empty("rule") { p { "Under the rule " b.id { (rule) } "." } }
        }
        fieldset {
            legend { "When (UTC)" }
            div.grid.two {
                (page.time("from_date", "From", "The first second."))
                (page.time("to_date", "To", "The end of this second."))
            }
        }
        (page.limits(hint))
        @if page.fields.non_empty("asks_unlimited").is_some() {
            input type="hidden" name="asks_unlimited" value="on";
            div.check {
                input #unlimited type="checkbox" name="unlimited"
                    checked[page.fields.non_empty("unlimited").is_some()];
                label for="unlimited" { "Let this consumer call without a limit" }
            }
        }
        fieldset {
            legend { "For information" }
            p.hint { "These fields limit nothing, and may be empty." }
            div.grid {
                (page.text("api_name", "API name", ""))
                (page.text("api_version", "API version", ""))
                (page.text("bank_id", "Bank", ""))
            }
        }
        @if is_grant {
            input type="hidden" name="grants" value="on";
        } @else { div.check {
            input #blocks type="checkbox" name="blocks" checked[page.fields.non_empty("blocks").is_some()];
            label for="blocks" { "Block this consumer from the first to the last second, whatever its other limits are" }
        } }
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
            .with("limits", " 100/minute \r\n\r\n0/day:gcra, 20:concurrency\r\n")
    }

    #[test]
    fn a_record_ends_with_the_last_microsecond_of_the_typed_second() {
        let content = read(&typed(), None).unwrap();
        assert_eq!(content.limits.to_string(), "20:concurrency, 100/minute, 0/day:gcra");
        assert_eq!(content.from_date, Timestamp::from_secs(1_769_947_200));
        assert_eq!(content.to_date, Timestamp::from_micros(1_769_950_799_999_999));
        assert!(!content.blocks && content.api_name.is_none());
    }

    #[test]
    fn a_time_that_was_not_edited_keeps_its_microseconds() {
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
    fn all_problems_are_reported_at_once() {
        let wrong = typed()
            .with("consumer_id", "")
            .with("from_date", "tomorrow")
            .with("limits", "many\n1/hour\n-2/week\n9007199254740992/month");
        let fields: Vec<_> =
            read(&wrong, None).unwrap_err().into_iter().map(|(name, _)| name).collect();
        assert_eq!(fields, ["limits", "limits", "limits", "from_date", "consumer_id"]);
    }

    #[test]
    fn dates_in_the_wrong_order_are_reported_unless_one_cannot_be_read() {
        let fields = |form: &Fields| -> Vec<_> {
            read(form, None).unwrap_err().into_iter().map(|(name, _)| name).collect()
        };
        let backwards = typed().with("to_date", "2026-01-01T12:00");
        assert_eq!(fields(&backwards), ["from_date"]);
        let with_a_wrong_limit = backwards.with("limits", "many");
        assert_eq!(fields(&with_a_wrong_limit), ["limits", "from_date"]);
        assert_eq!(fields(&typed().with("to_date", "tomorrow")), ["to_date"]);
    }
}
