//! The form of a tier.

use axum::http::StatusCode;
use maud::{Markup, html};
use rl_records::{DatabaseError, Expected, Records, Tier, TierContent};

use super::edit_page::{EditPage, Problems, limits_effect, read_limits, with_limits};
use super::failure::Failure;
use super::fields::Fields;
use super::named_form::{Changed, NamedForm, Words};
use super::page::Tab;
use super::site::Site;
use super::text;
use super::visitor::Visitor;
use crate::access::Actor;
use crate::audit;

impl NamedForm for TierContent {
    const WORDS: Words = Words {
        noun: "tier",
        tab: Tab::Tiers,
        list: ("Tiers", "/tiers"),
        new: ("Add a tier", "/tier/new"),
        edit: ("Change a tier", "/tier/edit"),
        delete: ("Delete this tier", "/tier/delete"),
        name_hint: "Such as gold: 1 to 250 bytes. It cannot be changed later.",
    };

    fn name(&self) -> &str {
        &self.name
    }

    fn fields(&self) -> Fields {
        with_limits(Fields::default(), &self.limits)
    }

    fn render(page: &EditPage<'_>) -> Markup {
        page.limits("Empty: no limit. A limit of 0 allows no call.")
    }

    fn read(form: &Fields) -> Result<Self, Problems> {
        let mut problems = Problems::new();
        let limits = read_limits(form, &mut problems);
        let content = Self { name: form.get("name").to_owned(), limits };
        if problems.is_empty() { Ok(content) } else { Err(problems) }
    }

    fn effect(&self, before: Option<&Self>) -> Markup {
        match before {
            None => {
                html! { "The tier has the limits " strong { (text::limits(&self.limits)) } "." }
            }
            Some(before) => limits_effect(&before.limits, &self.limits),
        }
    }

    fn values(&self) -> Vec<(&'static str, String)> {
        vec![("Limits", text::limits(&self.limits))]
    }

    fn log(actor: &Actor, action: &str, tier: &Tier) {
        audit::tier_changed(actor, action, &tier.content.name, tier.revision);
    }

    async fn uses(site: &Site, name: &str) -> Result<Option<String>, Failure> {
        let uses = site.context.records.tiers().uses(name).await?;
        let counted = |count: u64, noun: &str| {
            let end = if count == 1 { "" } else { "s" };
            format!("{} {noun}{end}", text::number(count))
        };
        let members = counted(uses.members, "member");
        let subscriptions = counted(uses.subscriptions, "subscription");
        Ok(Some(format!("A change applies to {members} and {subscriptions}.")))
    }

    fn in_use() -> Failure {
        let message = "The members of this tier would fall back to the defaults, so nothing was \
                       deleted. Put its consumers and keys into another tier first.";
        Failure::new(StatusCode::CONFLICT, "The tier has members", message)
    }

    async fn find(records: &Records, name: &str) -> Result<Option<Tier>, DatabaseError> {
        records.tiers().read(name).await
    }

    async fn create(self, records: &Records, visitor: &Visitor) -> Changed<Self> {
        records.tiers().create(self, visitor.actor.author()).await
    }

    async fn update(
        self,
        records: &Records,
        expected: Expected,
        visitor: &Visitor,
    ) -> Changed<Self> {
        records.tiers().update(self, expected, visitor.actor.author()).await
    }

    async fn delete(
        records: &Records,
        name: &str,
        expected: Expected,
        visitor: &Visitor,
    ) -> Changed<Self> {
        records.tiers().delete(name, expected, visitor.actor.author()).await
    }
}
