//! The page with the form for editing an object: a record or a tier.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use rl_core::time::Timestamp;
use rl_records::{CallLimit, CallLimits, CallPeriod, InvalidField};

use super::fields::Fields;
use super::page::{Tab, form_token, page};
use super::site::Site;
use super::text;
use super::visitor::Visitor;

/// The description of a valid limit.
const LIMIT: &str =
    "nothing or -1 (no limit), 0 (no call), or a number of calls up to 9007199254740991";

/// The invalid fields of a form, each with a message.
pub(super) type Problems = Vec<(&'static str, String)>;

/// The reason why a form was not saved. The page of the form shows it.
pub(super) struct Rejection {
    status: StatusCode,
    problems: Problems,
    notice: Markup,
}

impl Rejection {
    /// Returns a rejection of invalid fields.
    pub(super) fn invalid(problems: Problems) -> Self {
        Self { status: StatusCode::UNPROCESSABLE_ENTITY, problems, notice: html! {} }
    }

    /// Returns a rejection for a field that the database layer refused.
    pub(super) fn invalid_field(field: &InvalidField) -> Self {
        Self::invalid(vec![problem(field)])
    }

    /// Returns a rejection with a notice above the form.
    pub(super) fn with_notice(status: StatusCode, notice: Markup) -> Self {
        Self { status, problems: Problems::new(), notice }
    }

    /// Returns a rejection because another actor has changed the object.
    ///
    /// `differences` lists each field whose saved value differs from the typed one, with both
    /// values.
    pub(super) fn conflict(
        object: &str,
        updated_by: &str,
        updated_at: Timestamp,
        differences: &[(String, String, String)],
    ) -> Self {
        let notice = html! {
            div.conflict role="alert" tabindex="-1" {
                h2 { "Nothing was saved: another change came first" }
                p {
                    strong { (updated_by) } " changed this " (object) " at " (text::time(updated_at))
                    " UTC, after you opened it. Your text is still below. Saving it now replaces \
                    their change."
                }
                table {
                    caption.unseen { "The differences between yours and theirs" }
                    thead { tr { th scope="col" { "Field" } th scope="col" { "Theirs, saved" } th scope="col" { "Yours" } } }
                    tbody { @for (field, theirs, yours) in differences {
                        tr { th scope="row" { (field) } td data-label="Theirs" { (theirs) } td data-label="Yours" { (yours) } }
                    } }
                }
            }
        };
        Self::with_notice(StatusCode::CONFLICT, notice)
    }
}

/// A page with a form.
pub(super) struct EditPage<'a> {
    pub(super) site: &'a Site,
    pub(super) visitor: &'a Visitor,
    pub(super) tab: Tab,
    pub(super) title: &'static str,
    /// The breadcrumb links to the pages above this one.
    pub(super) crumbs: Markup,
    /// The path to which the form is sent.
    pub(super) action: &'static str,
    /// The label of the button.
    pub(super) save: &'static str,
    /// The target of the link "Cancel".
    pub(super) back: String,
    pub(super) fields: &'a Fields,
    pub(super) rejection: Option<Rejection>,
}

impl EditPage<'_> {
    /// Renders the page around the fields in `content`, with `footer` below the form.
    pub(super) fn respond(self, content: &Markup, footer: &Markup) -> Response {
        let rejection = self.rejection.as_ref();
        let status = rejection.map_or(StatusCode::OK, |rejection| rejection.status);
        let main = html! {
            p.crumb { (self.crumbs) }
            h1 { (self.title) }
            @if let Some(Rejection { problems, notice, .. }) = rejection {
                @if !problems.is_empty() {
                    div.problems role="alert" tabindex="-1" {
                        h2 { "Nothing was saved" }
                        ul { @for (field, problem) in problems {
                            li { a href={ "#" (field) } { (label_of(field)) } ": " (problem) }
                        } }
                    }
                }
                (notice)
            }
            form.sheet method="post" action=(self.site.link(self.action, &[])) {
                (form_token(self.visitor))
                (content)
                div.buttons {
                    button.main type="submit" { (self.save) }
                    a.button href=(self.back) { "Cancel" }
                }
            }
            (footer)
        };
        let title = match rejection {
            None => self.title.to_owned(),
            Some(_) => format!("Not saved: {}", self.title),
        };
        (status, page(self.site, Some(self.visitor), &title, self.tab, main)).into_response()
    }

    /// Renders the fields of the six limits. `hint` explains an empty field and a 0.
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

    /// Renders a text field.
    pub(super) fn text(&self, name: &'static str, label: &str, hint: &str) -> Markup {
        self.field(name, "text", label, hint)
    }

    /// Renders a field for a time.
    pub(super) fn time(&self, name: &'static str, label: &str, hint: &str) -> Markup {
        self.field(name, "datetime-local", label, hint)
    }

    fn field(&self, name: &'static str, kind: &str, label: &str, hint: &str) -> Markup {
        let problems = self.rejection.iter().flat_map(|rejection| &rejection.problems);
        let problem = problems.into_iter().find(|(field, _)| *field == name);
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
}

/// Fills in the fields of the six limits.
pub(super) fn with_limits(fields: Fields, limits: &CallLimits) -> Fields {
    CallPeriod::ALL.into_iter().fold(fields, |fields, period| {
        let typed = match limits.get(period) {
            CallLimit::AtMost(max) => max.to_string(),
            CallLimit::Unlimited => String::new(),
        };
        fields.with(period.field(), typed)
    })
}

/// Parses the six limits that were typed. Adds a problem for each invalid one.
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

/// Returns the message for a field that the database layer refuses.
pub(super) fn problem(invalid: &InvalidField) -> (&'static str, String) {
    (invalid.field(), format!("Expected {}.", invalid.expected()))
}

/// Returns the label of a field.
pub(super) fn label_of(field: &str) -> String {
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
