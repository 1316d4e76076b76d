//! The form of the limits of a resource.

use maud::{Markup, html};
use rl_records::{DatabaseError, Expected, Records, ResourceLimit, ResourceLimitContent};

use super::edit_page::{EditPage, Problems, limits_effect, read_limits, with_limits};
use super::fields::Fields;
use super::named_form::{Changed, NamedForm, Words};
use super::page::Tab;
use super::text;
use super::visitor::Visitor;
use crate::access::Actor;
use crate::audit;

impl NamedForm for ResourceLimitContent {
    const WORDS: Words = Words {
        noun: "resource",
        tab: Tab::Resources,
        list: ("Resources", "/resources"),
        new: ("Add a resource", "/resource/new"),
        edit: ("Change a resource", "/resource/edit"),
        delete: ("Delete the limits of this resource", "/resource/delete"),
        name_hint: "The name by which the service looks up the limits: 1 to 250 bytes. It cannot be changed later.",
    };

    fn name(&self) -> &str {
        &self.name
    }

    fn fields(&self) -> Fields {
        with_limits(Fields::default().with("apps", self.apps.join("\n")), &self.limits)
    }

    fn render(page: &EditPage<'_>) -> Markup {
        let hint = html! { "One name on each line. They share the limits. Other applications are not limited." };
        html! {
            (page.lines("apps", "Applications", &hint))
            (page.limits("Empty: no limit. A limit of 0 blocks the applications."))
        }
    }

    fn read(form: &Fields) -> Result<Self, Problems> {
        let mut problems = Problems::new();
        let limits = read_limits(form, &mut problems);
        let apps = form.get("apps").lines().map(str::trim).filter(|app| !app.is_empty());
        let mut apps: Vec<_> = apps.map(ToOwned::to_owned).collect();
        apps.sort();
        apps.dedup();
        let content = Self { name: form.get("name").to_owned(), apps, limits };
        if problems.is_empty() { Ok(content) } else { Err(problems) }
    }

    fn effect(&self, before: Option<&Self>) -> Markup {
        let apps = match self.apps.len() {
            1 => "1 application shares".to_owned(),
            count => format!("{} applications share", text::number(count as u64)),
        };
        html! {
            @match before {
                Some(before) => (limits_effect(&before.limits, &self.limits)),
                None => { "The limits are " strong { (text::limits(&self.limits)) } "." },
            }
            " " (apps) " them."
        }
    }

    fn values(&self) -> Vec<(&'static str, String)> {
        vec![("Applications", self.apps.join(", ")), ("Limits", text::limits(&self.limits))]
    }

    fn log(actor: &Actor, action: &str, resource: &ResourceLimit) {
        audit::resource_changed(actor, action, &resource.content.name, resource.revision);
    }

    async fn find(records: &Records, name: &str) -> Result<Option<ResourceLimit>, DatabaseError> {
        records.resources().read(name).await
    }

    async fn create(self, records: &Records, visitor: &Visitor) -> Changed<Self> {
        records.resources().create(self, visitor.actor.author()).await
    }

    async fn update(
        self,
        records: &Records,
        expected: Expected,
        visitor: &Visitor,
    ) -> Changed<Self> {
        records.resources().update(self, expected, visitor.actor.author()).await
    }

    async fn delete(
        records: &Records,
        name: &str,
        expected: Expected,
        visitor: &Visitor,
    ) -> Changed<Self> {
        records.resources().delete(name, expected, visitor.actor.author()).await
    }
}
