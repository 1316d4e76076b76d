//! The form of a rule in the database.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use maud::{Markup, html};
use rl_records::{DatabaseError, Expected, Records, RuleContent, RuleDefinition};

use super::edit_page::{EditPage, Problems, Rejection};
use super::failure::Failure;
use super::fields::Fields;
use super::named_form::{Changed, NamedForm, Words, find, revision, saved, taken};
use super::page::Tab;
use super::site::Site;
use super::templates;
use super::visitor::Visitor;
use crate::access::{Actor, Role};
use crate::audit;
use crate::stored_rules::{RuleProblem, StoredRules, checked};

impl NamedForm for RuleContent {
    const WORDS: Words = Words {
        noun: "rule",
        tab: Tab::Rules,
        list: ("Rules", "/rules"),
        new: ("Add a rule", "/rule/new"),
        edit: ("Change a rule", "/rule/edit"),
        delete: ("Delete this rule", "/rule/delete"),
        name_hint: "Such as login: letters, digits and _ . -. It cannot be changed later, because the counters belong to it.",
    };

    fn name(&self) -> &str {
        &self.name
    }

    fn fields(&self) -> Fields {
        let fields = Fields::default().with("definition", &*self.definition);
        fields.with("shadow", if self.is_shadow { "on" } else { "" })
    }

    fn new_fields(query: &Fields) -> Fields {
        let fields = Fields::default().with("shadow", "on");
        match templates::find(query.get("template")) {
            Some(template) => {
                fields.with("name", template.name).with("definition", template.definition)
            }
            None => fields,
        }
    }

    fn render(page: &EditPage<'_>) -> Markup {
        let hint = html! {
            "As in a rule file: " code { "match" } " selects requests, " code { "per" } " the subject that is counted, "
            code { "limits" } " its limits. " code { "over" } ", " code { "cost" } ", " code { "tiers" } " and "
            code { "exempt" } " are optional."
        };
        html! {
            (page.lines("definition", "Definition", &hint))
            div.check {
                input #shadow type="checkbox" name="shadow" value="on" checked[page.fields.get("shadow") == "on"]
                    aria-describedby="shadow-hint";
                label for="shadow" { "In shadow" }
                p.hint #shadow-hint { "The rule counts requests and shows those that it would deny, but denies none." }
            }
        }
    }

    fn read(form: &Fields) -> Result<Self, Problems> {
        Ok(Self {
            name: form.get("name").to_owned(),
            // Browsers send the line ends of Windows.
            definition: form.raw("definition").replace("\r\n", "\n"),
            is_shadow: form.get("shadow") == "on",
        })
    }

    fn effect(&self, before: Option<&Self>) -> Markup {
        html! {
            "The rule is valid beside the others. "
            @match (before.map(|before| before.is_shadow), self.is_shadow) {
                (_, true) => "It would count, and deny nothing.",
                (Some(true), false) => "It would deny requests from the next call on.",
                (_, false) => "It would apply to the next call.",
            }
            @if before.is_some_and(|before| before.definition == self.definition) {
                " Its definition stays the same."
            }
        }
    }

    fn values(&self) -> Vec<(&'static str, String)> {
        let shadow = if self.is_shadow { "yes" } else { "no" };
        vec![("Definition", self.definition.clone()), ("In shadow", shadow.to_owned())]
    }

    fn log(actor: &Actor, action: &str, rule: &RuleDefinition) {
        audit::rule_changed(actor, action, rule);
    }

    fn check_service(site: &Site) -> Result<(), Failure> {
        StoredRules::of(&site.context)?;
        Ok(())
    }

    async fn check(self, site: &Site, is_new: bool) -> Result<Result<Self, Rejection>, Failure> {
        let names = site.context.limiter.rule_names().filter(|_| is_new);
        if names.is_some_and(|names| names.contains(&self.name)) {
            return Ok(Err(taken::<Self>(&self.name)));
        }
        let checked = checked(&StoredRules::of(&site.context)?, self).await;
        Ok(checked.map_err(|problem| match problem {
            RuleProblem::Invalid(field) => Rejection::invalid_field(&field),
            RuleProblem::Refused(reason) => Rejection::invalid(vec![("definition", reason)]),
        }))
    }

    async fn find(records: &Records, name: &str) -> Result<Option<RuleDefinition>, DatabaseError> {
        records.rules().read(name).await
    }

    async fn create(self, records: &Records, visitor: &Visitor) -> Changed<Self> {
        records.rules().create(self, visitor.actor.author()).await
    }

    async fn update(
        self,
        records: &Records,
        expected: Expected,
        visitor: &Visitor,
    ) -> Changed<Self> {
        records.rules().update(self, expected, visitor.actor.author()).await
    }

    async fn delete(
        records: &Records,
        name: &str,
        expected: Expected,
        visitor: &Visitor,
    ) -> Changed<Self> {
        records.rules().delete(name, expected, visitor.actor.author()).await
    }
}

/// Puts a rule into shadow, or takes it out.
pub(super) async fn set_shadow(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    Extension(form): Extension<Fields>,
) -> Result<Response, Failure> {
    visitor.require(Role::CanUpdateRateLimits)?;
    RuleContent::check_service(&site)?;
    let before = find::<RuleContent>(&site, form.get("name")).await?.content;
    let content = RuleContent { is_shadow: form.get("shadow") == "on", ..before };
    match content.update(&site.context.records, revision(&form), &visitor).await {
        Ok(rule) => Ok(saved(&site, &visitor, "updated", &rule)),
        Err(error) => Err(visitor.change_failure(error)),
    }
}
