//! The page with the form for editing an object, such as a record or a tier.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use rl_core::time::Timestamp;
use rl_core::{Limit, ParseLimitError};
use rl_records::{InvalidField, Limits};

use super::fields::Fields;
use super::page::{Tab, form_token, page};
use super::site::Site;
use super::text;
use super::visitor::Visitor;

/// An invalid field of a form, with a message.
pub(super) type FieldProblem = (&'static str, String);

/// The invalid fields of a form.
pub(super) type Problems = Vec<FieldProblem>;

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

    /// Returns the form again, with the effect that saving it would have.
    pub(super) fn preview(effect: &Markup) -> Self {
        let notice = html! {
            div.conflict role="status" tabindex="-1" {
                h2 { "Preview: nothing was saved yet" }
                p { (effect) }
            }
        };
        Self::with_notice(StatusCode::OK, notice)
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
                    button type="submit" name="preview" value="on" { "Preview" }
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

    /// Renders the field of the limits. `hint` explains an empty field and a 0.
    pub(super) fn limits(&self, hint: &str) -> Markup {
        let hint = html! {
            "One on each line: " code { "100/minute" } ", " code { "5000/day:clock" } ", "
            code { "5000/month:clock:offset=14days" } " (from the 15th), "
            code { "5/second:gcra:burst=20" } ", " code { "20/minute:requests" } ", "
            code { "10000/minute:unit=tokens" } ", " code { "20:concurrency" } ". With "
            code { ":shadow" } " at its end, a limit only counts. " (hint)
        };
        self.field("limits", "lines", "Limits", &hint)
    }

    /// Renders a field for several lines of text.
    pub(super) fn lines(&self, name: &'static str, label: &str, hint: &Markup) -> Markup {
        self.field(name, "lines", label, hint)
    }

    /// Renders a text field.
    pub(super) fn text(&self, name: &'static str, label: &str, hint: &str) -> Markup {
        self.field(name, "text", label, &html! { (hint) })
    }

    /// Renders a field for a time.
    pub(super) fn time(&self, name: &'static str, label: &str, hint: &str) -> Markup {
        self.field(name, "datetime-local", label, &html! { (hint) })
    }

    /// Renders a list from which one value can be picked: each with its label.
    pub(super) fn choice(
        &self,
        name: &'static str,
        label: &str,
        values: &[(&str, &str)],
        hint: &str,
    ) -> Markup {
        let typed = self.fields.get(name);
        self.around(name, label, &html! { (hint) }, |is_wrong, described| {
            html! {
                select #(name) name=(name) aria-invalid=[is_wrong] aria-describedby=[described] {
                    @for (value, label) in values { option value=(value) selected[*value == typed] { (label) } }
                }
            }
        })
    }

    fn field(&self, name: &'static str, kind: &str, label: &str, hint: &Markup) -> Markup {
        let step = (kind == "datetime-local").then_some("1");
        let typed = self.fields.raw(name);
        self.around(name, label, hint, |is_wrong, described| {
            html! {
                @if kind == "lines" {
                    textarea #(name) name=(name) rows=(typed.lines().count().max(4))
                        autocomplete="off" autocapitalize="off" spellcheck="false"
                        aria-invalid=[is_wrong] aria-describedby=[described] { (typed) }
                } @else {
                    input #(name) type=(kind) name=(name) value=(typed) step=[step]
                        autocomplete="off" spellcheck="false"
                        aria-invalid=[is_wrong] aria-describedby=[described];
                }
            }
        })
    }

    /// Renders a field around its input, which gets whether its content is invalid, and the ids of
    /// its descriptions.
    fn around(
        &self,
        name: &'static str,
        label: &str,
        hint: &Markup,
        input: impl FnOnce(Option<&'static str>, Option<String>) -> Markup,
    ) -> Markup {
        let problems = self.rejection.iter().flat_map(|rejection| &rejection.problems);
        let problems: Vec<_> = problems.filter(|(field, _)| *field == name).collect();
        let is_wrong = (!problems.is_empty()).then_some("true");
        let has_hint = !hint.0.is_empty();
        let described = [(is_wrong.is_some(), "problem"), (has_hint, "hint")];
        let described = described.into_iter().filter(|(is_shown, _)| *is_shown);
        let described: Vec<_> = described.map(|(_, what)| format!("{name}-{what}")).collect();
        let described = (!described.is_empty()).then(|| described.join(" "));
        html! {
            div.field {
                label for=(name) { (label) }
                (input(is_wrong, described))
                @if is_wrong.is_some() {
                    div.problem #{ (name) "-problem" } { @for (_, problem) in &problems { p { (problem) } } }
                }
                @if has_hint { p.hint #{ (name) "-hint" } { (hint) } }
            }
        }
    }
}

/// Renders the list of problems above a form without a preview, or nothing.
pub(super) fn refusal(problems: &[FieldProblem]) -> Markup {
    html! {
        @if !problems.is_empty() {
            div.problems role="alert" tabindex="-1" {
                h2 { "Nothing was changed" }
                ul { @for (field, problem) in problems { li { a href={ "#" (field) } { (problem) } } } }
            }
        }
    }
}

/// Renders a field of a form without a preview: its label, its input and its problem. `input` gets
/// the values of `aria-describedby` and `aria-invalid`.
pub(super) fn field(
    name: &str,
    label: &str,
    problems: &[FieldProblem],
    input: impl FnOnce(Option<String>, Option<&'static str>) -> Markup,
) -> Markup {
    let problem = problems.iter().find(|(field, _)| *field == name);
    let id = format!("{name}-problem");
    html! {
        div.field {
            label for=(name) { (label) }
            (input(problem.map(|_| id.clone()), problem.map(|_| "true")))
            @if let Some((_, problem)) = problem { p.problem #(id) { (problem) } }
        }
    }
}

/// Describes a change of limits.
pub(super) fn limits_effect(before: &Limits, after: &Limits) -> Markup {
    let [before, after] = [before, after].map(text::limits);
    html! { "The limits change from " strong { (before) } " to " strong { (after) } "." }
}

/// Fills in the field of the limits.
pub(super) fn with_limits(fields: Fields, limits: &Limits) -> Fields {
    let lines: Vec<String> = limits.as_slice().iter().map(Limit::to_string).collect();
    fields.with("limits", lines.join("\n"))
}

/// Parses the limits that were typed. Adds a problem for each invalid one.
pub(super) fn read_limits(form: &Fields, problems: &mut Problems) -> Limits {
    let typed = form.get("limits").split(['\n', ',']).map(str::trim);
    let mut limits = Vec::new();
    for text in typed.filter(|text| !text.is_empty()) {
        match text.parse() {
            Ok(limit) => limits.push(limit),
            Err(error) => problems.push(("limits", wrong_limit(text, &error))),
        }
    }
    Limits::new(limits).unwrap_or_else(|error| {
        problems.push(problem(&error));
        Limits::UNLIMITED
    })
}

fn wrong_limit(text: &str, error: &ParseLimitError) -> String {
    let text: String = text.chars().take(80).collect();
    format!("{text}, column {}: expected {}.", error.column(), error.expected())
}

/// Returns the message for a field that the database layer refuses.
pub(super) fn problem(invalid: &InvalidField) -> (&'static str, String) {
    let message = match invalid.field() {
        "limits" => format!("{}: expected {}.", invalid.value(), invalid.expected()),
        _ => format!("Expected {}.", invalid.expected()),
    };
    (invalid.field(), message)
}

/// Returns the label of a field.
pub(super) fn label_of(field: &str) -> String {
    let label = match field {
        "consumer_id" => "Consumer",
        "tier" => "Tier",
        "status" => "Status",
        "subject" => "Subject",
        "rule" => "Rule",
        "limits" => "Limits",
        "from_date" => "From",
        "to_date" => "To",
        "api_name" => "API name",
        "api_version" => "API version",
        "bank_id" => "Bank",
        "billing_day" => "Billing day",
        "blocks" => "Blocks",
        "grants" => "Grants",
        "name" => "Name",
        "apps" => "Applications",
        "definition" => "Definition",
        other => other,
    };
    label.to_owned()
}
