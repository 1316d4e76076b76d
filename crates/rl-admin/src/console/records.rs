//! Adding, changing and deleting a record.

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use maud::{Markup, html};
use rl_core::Subject;
use rl_records::{CallLimits, ChangeError, Record, RecordContent, RecordId};

use super::changes::differences;
use super::failure::Failure;
use super::fields::{Fields, link};
use super::page::{Tab, form_token, page};
use super::record_form::{Form, Problems, fields_of, problem, read};
use super::session::Visitor;
use super::{Console, text, timeline};
use crate::Role;

/// An hour in microseconds.
const HOUR: u64 = 3_600_000_000;

/// What a form is answered with if it cannot be stored.
struct Again {
    status: StatusCode,
    problems: Problems,
    notice: Markup,
}

impl Again {
    fn invalid(problems: Problems) -> Self {
        Self { status: StatusCode::UNPROCESSABLE_ENTITY, problems, notice: html! {} }
    }
}

impl Console {
    fn consumer_link(&self, id: &str, done: &str) -> String {
        link(&format!("{}/consumer", self.path()), &[("id", id), ("done", done)])
    }

    fn new_page(&self, visitor: &Visitor, fields: &Fields, again: Option<Again>) -> Response {
        let consumer = fields.get("consumer_id");
        let back = match consumer {
            "" => self.path().to_owned(),
            id => link(&format!("{}/consumer", self.path()), &[("id", id)]),
        };
        let action = format!("{}/record/new", self.path());
        self.form_page(visitor, "Add a record", "Add", action, back, fields, again)
    }

    fn edit_page(&self, visitor: &Visitor, fields: &Fields, again: Option<Again>) -> Response {
        let consumer = fields.get("consumer_id");
        let back = link(&format!("{}/consumer", self.path()), &[("id", consumer)]);
        let action = format!("{}/record/edit", self.path());
        self.form_page(visitor, "Change a record", "Save", action, back, fields, again)
    }

    #[expect(clippy::too_many_arguments, reason = "the two pages above differ in all of them")]
    fn form_page(
        &self,
        visitor: &Visitor,
        title: &str,
        save: &'static str,
        action: String,
        back: String,
        fields: &Fields,
        again: Option<Again>,
    ) -> Response {
        let is_new = save == "Add";
        let Again { status, problems, notice } = again.unwrap_or(Again {
            status: StatusCode::OK,
            problems: Problems::new(),
            notice: html! {},
        });
        let form = Form { action, fields, problems: &problems, notice, save, back };
        let main = html! {
            p.crumb {
                a href=(self.path()) { "Consumers" }
                @if let Some(id) = fields.given("consumer_id") { " / " a.id href=(form.back) { (id) } }
            }
            h1 { (title) }
            (form.of_record(visitor, is_new))
        };
        let title =
            if status == StatusCode::OK { title.to_owned() } else { format!("Not saved: {title}") };
        (status, page(self, Some(visitor), &title, Tab::Consumers, main)).into_response()
    }

    async fn record(&self, fields: &Fields) -> Result<Record, Failure> {
        let id: RecordId = fields.get("record").parse().map_err(|_| Failure::no_record())?;
        self.admin().records().read(id).await?.ok_or_else(Failure::no_record)
    }
}

fn audit(visitor: &Visitor, action: &str, record: &Record) {
    let (owner, item) = (&record.content.consumer_id, record.id.to_string());
    crate::audit::record_changed(&visitor.actor, action, owner, &item, record.revision);
}

fn query(request: &Request) -> Fields {
    Fields::read(request.uri().query().unwrap_or_default().as_bytes())
}

/// An empty form, from the hour that has begun until the end of a year.
pub(super) async fn new(
    State(console): State<Console>,
    Extension(visitor): Extension<Visitor>,
    request: Request,
) -> Result<Response, Failure> {
    visitor.needs(Role::CanCreateRateLimits)?;
    let hour = console.admin().now().as_micros() / HOUR * HOUR;
    let from = rl_core::time::Timestamp::from_micros(hour);
    let fields = Fields::default()
        .with("consumer_id", query(&request).get("consumer"))
        .with("from_date", text::field(from))
        .with("to_date", text::field(from.plus_micros(365 * 24 * HOUR - 1_000_000)));
    Ok(console.new_page(&visitor, &fields, None))
}

pub(super) async fn create(
    State(console): State<Console>,
    Extension(visitor): Extension<Visitor>,
    Extension(form): Extension<Fields>,
) -> Result<Response, Failure> {
    visitor.needs(Role::CanCreateRateLimits)?;
    let content = match read(&form, None) {
        Ok(content) => content,
        Err(problems) => {
            return Ok(console.new_page(&visitor, &form, Some(Again::invalid(problems))));
        }
    };
    if let Some(again) = console.ask_unlimited(&form, &content, None).await? {
        return Ok(console.new_page(&visitor, &form.with("asks_unlimited", "on"), Some(again)));
    }
    let by = visitor.actor.author();
    match console.admin().records().create(content, by).await {
        Ok(record) => {
            audit(&visitor, "created", &record);
            let to = console.consumer_link(&record.content.consumer_id, "created");
            Ok(Redirect::to(&to).into_response())
        }
        Err(ChangeError::Invalid(invalid)) => {
            let again = Again::invalid(vec![problem(&invalid)]);
            Ok(console.new_page(&visitor, &form, Some(again)))
        }
        Err(error) => Err(visitor.refused(error)),
    }
}

pub(super) async fn edit(
    State(console): State<Console>,
    Extension(visitor): Extension<Visitor>,
    request: Request,
) -> Result<Response, Failure> {
    visitor.needs(Role::CanUpdateRateLimits)?;
    let record = console.record(&query(&request)).await?;
    Ok(console.edit_page(&visitor, &fields_of(&record), None))
}

pub(super) async fn update(
    State(console): State<Console>,
    Extension(visitor): Extension<Visitor>,
    Extension(form): Extension<Fields>,
) -> Result<Response, Failure> {
    visitor.needs(Role::CanUpdateRateLimits)?;
    let id: RecordId = form.get("record").parse().map_err(|_| Failure::no_record())?;
    let Some(there) = console.admin().records().read(id).await? else {
        return Ok(console.typed_but_deleted(&visitor, &form));
    };
    let content = match read(&form, Some(&there.content)) {
        Ok(content) => content,
        Err(problems) => {
            return Ok(console.edit_page(&visitor, &form, Some(Again::invalid(problems))));
        }
    };
    if let Some(again) = console.ask_unlimited(&form, &content, Some(&there)).await? {
        return Ok(console.edit_page(&visitor, &form.with("asks_unlimited", "on"), Some(again)));
    }
    let (by, revision) =
        (visitor.actor.author(), form.get("revision").parse::<i64>().unwrap_or_default());
    match console.admin().records().update(id, content.clone(), revision, by).await {
        Ok(record) => {
            audit(&visitor, "updated", &record);
            let to = console.consumer_link(&record.content.consumer_id, "updated");
            Ok(Redirect::to(&to).into_response())
        }
        Err(ChangeError::Invalid(invalid)) => {
            let again = Again::invalid(vec![problem(&invalid)]);
            Ok(console.edit_page(&visitor, &form, Some(again)))
        }
        Err(ChangeError::Conflict { current }) => {
            let notice = conflict(&current, &content);
            let again = Again { status: StatusCode::CONFLICT, problems: Problems::new(), notice };
            // Who saves once more has seen it.
            let form = form.with("revision", current.revision.to_string());
            Ok(console.edit_page(&visitor, &form, Some(again)))
        }
        Err(ChangeError::NotFound) => Ok(console.typed_but_deleted(&visitor, &form)),
        Err(error) => Err(visitor.refused(error)),
    }
}

/// Returns whether a record lifts every limit. An empty form does so too.
fn lifts_limits(content: &RecordContent) -> bool {
    content.limits == CallLimits::UNLIMITED && !content.blocks
}

impl Console {
    /// Returns the form with a question if a record without any limit was not confirmed, because a form
    /// that was left empty by mistake looks the same.
    async fn ask_unlimited(
        &self,
        form: &Fields,
        content: &RecordContent,
        before: Option<&Record>,
    ) -> Result<Option<Again>, Failure> {
        let was_so = before.is_some_and(|before| lifts_limits(&before.content));
        if !lifts_limits(content) || was_so || form.given("unlimited").is_some() {
            return Ok(None);
        }
        let (records, consumer) = (self.admin().records(), &content.consumer_id);
        let from = content.from_date.max(self.admin().now());
        let holds = records.active_limits(consumer, from).await?;
        let own = before.map(|before| before.id);
        let has_others = holds.contributions().iter().any(|record| Some(record.id) != own);
        let tier = records.tiers().member(&Subject::consumer(consumer)).await?;
        let notice = html! {
            div.conflict role="alert" tabindex="-1" {
                h2 { "Nothing was saved: this record has no limit in any period" }
                p {
                    @if has_others {
                        "It adds nothing to the other records that are active then. As soon as it is the \
                         only one, calls of " b.id { (consumer) } " pass without a limit."
                    } @else if let Some(tier) = &tier {
                        "While it is active, calls of " b.id { (consumer) } " pass without a limit in any \
                         period: it replaces the tier " strong { (tier.tier) } "."
                    } @else {
                        "While it is active, calls of " b.id { (consumer) } " pass without a limit in any \
                         period: it replaces the configured defaults."
                    }
                }
                p { "Type a limit, or tick that the consumer may call without one." }
            }
        };
        let status = StatusCode::UNPROCESSABLE_ENTITY;
        Ok(Some(Again { status, problems: Problems::new(), notice }))
    }

    /// What was typed, as a new record.
    fn typed_but_deleted(&self, visitor: &Visitor, form: &Fields) -> Response {
        let notice = html! {
            div.conflict role="alert" tabindex="-1" {
                h2 { "Nothing was saved: the record is gone" }
                p { "Somebody deleted it meanwhile. What you typed is below: it can be added as a new record." }
            }
        };
        let again = Again { status: StatusCode::CONFLICT, problems: Problems::new(), notice };
        self.new_page(visitor, form, Some(again))
    }
}

/// What somebody else saved, beside what is in the form.
fn conflict(current: &Record, typed: &RecordContent) -> Markup {
    html! {
        div.conflict role="alert" tabindex="-1" {
            h2 { "Nothing was saved: somebody was first" }
            p {
                strong { (current.updated_by) } " changed this record at "
                (text::time(current.updated_at)) " UTC, after you opened it. What you typed is still \
                below. Saving it now puts it in the place of theirs."
            }
            table {
                caption.unseen { "Where yours differs from theirs" }
                thead { tr { th scope="col" { "Field" } th scope="col" { "Theirs, saved" } th scope="col" { "Yours" } } }
                tbody { @for (field, theirs, yours) in differences(&current.content, typed) {
                    tr { th scope="row" { (field) } td data-label="Theirs" { (theirs) } td data-label="Yours" { (yours) } }
                } }
            }
        }
    }
}

/// Asks whether the record is to be deleted.
pub(super) async fn ask(
    State(console): State<Console>,
    Extension(visitor): Extension<Visitor>,
    request: Request,
) -> Result<Response, Failure> {
    visitor.needs(Role::CanDeleteRateLimits)?;
    let record = console.record(&query(&request)).await?;
    Ok(console.ask_page(&visitor, &record, None))
}

impl Console {
    fn ask_page(&self, visitor: &Visitor, record: &Record, changed: Option<&str>) -> Response {
        let content = &record.content;
        let back = link(&format!("{}/consumer", self.path()), &[("id", &content.consumer_id)]);
        let main = html! {
            p.crumb { a href=(self.path()) { "Consumers" } " / " a.id href=(back) { (content.consumer_id) } }
            h1 { "Delete this record?" }
            @if let Some(by) = changed {
                div.conflict role="alert" { p { strong { (by) } " changed it meanwhile. This is how it is now; nothing was deleted." } }
            }
            dl {
                dt { "Consumer" } dd.id { (content.consumer_id) }
                dt { "From" } dd { (text::time(content.from_date)) " UTC" }
                dt { "To" } dd { (text::time(content.to_date)) " UTC" }
                dt { "Calls" } dd { (timeline::summary(record)) }
                @if content.blocks { dt { "Blocks" } dd { "the consumer, while it is active" } }
            }
            @if content.limits == CallLimits::UNLIMITED { p.hint { "It has no limits of its own." } }
            p { "The history keeps it. Other records and the tier of the consumer stay." }
            form method="post" action={ (self.path()) "/record/delete" } {
                (form_token(visitor))
                input type="hidden" name="record" value=(record.id);
                input type="hidden" name="revision" value=(record.revision);
                div.buttons {
                    button.danger type="submit" { "Delete" }
                    a.button href=(back) { "Cancel" }
                }
            }
        };
        let status = if changed.is_some() { StatusCode::CONFLICT } else { StatusCode::OK };
        (status, page(self, Some(visitor), "Delete a record", Tab::Consumers, main)).into_response()
    }
}

pub(super) async fn delete(
    State(console): State<Console>,
    Extension(visitor): Extension<Visitor>,
    Extension(form): Extension<Fields>,
) -> Result<Response, Failure> {
    visitor.needs(Role::CanDeleteRateLimits)?;
    let id: RecordId = form.get("record").parse().map_err(|_| Failure::no_record())?;
    let (by, revision) =
        (visitor.actor.author(), form.get("revision").parse::<i64>().unwrap_or_default());
    match console.admin().records().delete(id, revision, by).await {
        Ok(record) => {
            audit(&visitor, "deleted", &record);
            let to = console.consumer_link(&record.content.consumer_id, "deleted");
            Ok(Redirect::to(&to).into_response())
        }
        Err(ChangeError::Conflict { current }) => {
            Ok(console.ask_page(&visitor, &current, Some(&current.updated_by)))
        }
        Err(ChangeError::NotFound) => Err(Failure::no_record()),
        Err(error) => Err(visitor.refused(error)),
    }
}
