//! The records of a consumer on a time scale.

use maud::{Markup, html};
use rl_core::time::Timestamp;
use rl_records::{Record, RecordContent};

use super::HOUR;
use super::active::SelectedTime;
use super::site::Site;
use super::text;
use super::visitor::Visitor;
use crate::access::Role;

const DAY: u64 = 24 * HOUR;

/// The timeline shows at most `BACK` before now, and `AHEAD` after now, because some records end in
/// a thousand years.
const BACK: u64 = 90 * DAY;
const AHEAD: u64 = 180 * DAY;

/// The first and the last instant of the picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Scale {
    start: u64,
    end: u64,
}

impl Scale {
    /// Returns a scale that covers now, the selected time, and the parts of the records within
    /// `BACK` and `AHEAD`.
    fn of(records: &[Record], now: Timestamp, selected: Timestamp) -> Self {
        let now = now.as_micros();
        let selected = selected.as_micros();
        let starts = records.iter().map(|record| record.content.from_date.as_micros());
        let ends = records.iter().map(|record| record.content.to_date.as_micros());
        let start =
            starts.min().unwrap_or(now).max(now.saturating_sub(BACK)).min(now).min(selected);
        let end = ends.max().unwrap_or(now).min(now + AHEAD).max(now).max(selected);
        let margin = ((end - start) / 30).max(HOUR / 2);
        Self { start: start.saturating_sub(margin), end: end + margin }
    }

    /// Returns the position of a time, in thousandths of a percent.
    fn position(self, time: u64) -> u64 {
        let time = time.clamp(self.start, self.end);
        let place = u128::from(time - self.start) * 100_000 / u128::from(self.end - self.start);
        u64::try_from(place).unwrap_or(100_000)
    }

    fn ticks(self) -> impl Iterator<Item = (u64, String)> {
        let is_short = self.end - self.start < 4 * DAY;
        (0..=3).map(move |tick| {
            let micros = self.start + (self.end - self.start) / 3 * tick;
            let time = Timestamp::from_micros(micros);
            let words =
                if is_short { text::time(time)[5..16].to_owned() } else { text::date(time) };
            (tick * 100_000 / 3, words)
        })
    }
}

/// Formats thousandths of a percent as `12.345%`.
fn percent(thousandths: u64) -> String {
    format!("{}.{:03}%", thousandths / 1_000, thousandths % 1_000)
}

/// Renders the records of a consumer, each with its links.
pub(super) fn list(
    site: &Site,
    visitor: &Visitor,
    records: &[Record],
    now: Timestamp,
    selected: SelectedTime,
) -> Markup {
    let scale = Scale::of(records, now, selected.time);
    html! {
        ol.timeline {
            li.axis aria-hidden="true" {
                div {}
                svg width="100%" height="20" focusable="false" {
                    @for (place, words) in scale.ticks() {
                        @let anchor = match place { 0 => "start", 100_000 => "end", _ => "middle" };
                        text.(anchor) x=(percent(place)) y="14" text-anchor=(anchor) { (words) }
                    }
                }
            }
            @for record in records { (line(site, visitor, record, scale, now, selected)) }
        }
    }
}

fn line(
    site: &Site,
    visitor: &Visitor,
    record: &Record,
    scale: Scale,
    now: Timestamp,
    selected: SelectedTime,
) -> Markup {
    let content = &record.content;
    let (from, to) = (
        scale.position(content.from_date.as_micros()),
        scale.position(content.to_date.as_micros()),
    );
    let (state, word) = match () {
        () if content.to_date < now => ("over", "ended"),
        () if content.from_date > now => ("ahead", "scheduled"),
        () => ("active", "active"),
    };
    let id = record.id.to_string();
    let to_record = |what: &str| site.link(&format!("/record/{what}"), &[("record", &id)]);
    let dates = format!("{} to {}", text::time(content.from_date), text::time(content.to_date));
    html! {
        li #{ "record-" (id) } data-state=(state) {
            div.what {
                p.dates {
                    @if visitor.actor.has(Role::CanUpdateRateLimits) {
                        a href=(to_record("edit")) { (dates) }
                    } @else { (dates) }
                    " " span.state { (effect(content)) (word) }
                }
                p.limits { @if content.grants { "+ " } (text::limits(&content.limits)) }
                @if let Some(scope) = scope(record) { p.hint { (scope) } }
            }
            div.when {
                svg width="100%" height="24" aria-hidden="true" focusable="false" {
                    rect.track x="0" y="9" width="100%" height="6" rx="3" {}
                    rect.span x=(percent(from)) y="5" width=(percent((to - from).max(400))) height="14" rx="4" {}
                    line.now x1=(percent(scale.position(now.as_micros()))) x2=(percent(scale.position(now.as_micros()))) y1="0" y2="24" {}
                    @if !selected.is_now {
                        @let place = percent(scale.position(selected.time.as_micros()));
                        line.asked x1=(place) x2=(place) y1="0" y2="24" {}
                    }
                }
                p.hint {
                    "by " (record.updated_by) ", " (text::time(record.updated_at))
                    @if visitor.actor.has(Role::CanDeleteRateLimits) {
                        " · " a.danger href=(to_record("delete")) aria-label={ "Delete the limits from " (dates) } { "Delete" }
                    }
                }
            }
        }
    }
}

/// Returns the words for the effect of a record that does more than to limit.
const fn effect(content: &RecordContent) -> &'static str {
    match (content.blocks, content.grants) {
        (true, _) => "blocks, ",
        (_, true) => "grants more, ",
        _ => "",
    }
}

/// Returns the rule, the API name, the version and the bank of a record, if it has any.
fn scope(record: &Record) -> Option<String> {
    let content = &record.content;
    let rule = content.rule.as_ref().map(|rule| format!("rule {rule}"));
    let parts = [&rule, &content.api_name, &content.api_version, &content.bank_id];
    let parts: Vec<&str> = parts.into_iter().filter_map(Option::as_deref).collect();
    (!parts.is_empty()).then(|| parts.join(" · "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_within_the_picture_whatever_the_dates() {
        let scale = Scale { start: 1_000, end: 2_000 };
        for (time, place) in
            [(0, 0), (1_000, 0), (1_500, 50_000), (2_000, 100_000), (u64::MAX, 100_000)]
        {
            assert_eq!(scale.position(time), place, "{time}");
        }
        assert_eq!(
            (percent(0), percent(12_345), percent(100_000)),
            ("0.000%".into(), "12.345%".into(), "100.000%".into())
        );
    }

    #[test]
    fn without_records_the_scale_covers_the_time_around_now() {
        let now = Timestamp::from_micros(1_000 * DAY);
        let scale = Scale::of(&[], now, now);
        assert_eq!(scale, Scale { start: 1_000 * DAY - HOUR / 2, end: 1_000 * DAY + HOUR / 2 });
        let selected = Timestamp::from_micros(1_010 * DAY);
        assert!(Scale::of(&[], now, selected).end > selected.as_micros());
    }
}
