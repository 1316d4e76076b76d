use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use maud::{Markup, html};
use rl_records::{ConsumerPage, ConsumerQuery};

use super::failure::Failure;
use super::fields::Fields;
use super::page::{Tab, page};
use super::site::Site;
use super::visitor::Visitor;

/// Shows the list of consumers, with a search field.
pub(super) async fn list(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    request: Request,
) -> Result<Markup, Failure> {
    let query = Fields::of_query(request.uri());
    let search = query.non_empty("search");
    let filter = ConsumerQuery {
        search: search.map(ToOwned::to_owned),
        consumers: visitor.actor.applications().map(ToOwned::to_owned),
        after: query.non_empty("after").map(ToOwned::to_owned),
        ..ConsumerQuery::default()
    };
    let found = site.context.records.consumers(&filter, site.context.now()).await?;
    let path = site.path();
    let main = html! {
        h1 { "Consumers" }
        form.search method="get" action=(path) role="search" {
            label for="search" { "Id, or a part of it" }
            div.inline {
                input #search type="search" name="search" value=(search.unwrap_or_default())
                    maxlength="250" autocapitalize="off" spellcheck="false";
                button.main type="submit" { "Search" }
                @if search.is_some() { a href=(path) { "All" } }
            }
        }
        (table(&site, &found))
        @if let Some(search) = search
            && visitor.actor.sees_consumer(search)
            && found.consumers.iter().all(|consumer| consumer.consumer_id != search)
        {
            p {
                "Not in the list? "
                a href=(site.consumer_link(search)) { "Open " b.id { (search) } }
                " all the same: a consumer without records has counters, too."
            }
        }
        @if let Some(next) = &found.next {
            nav.pages aria-label="Pages" {
                a rel="next" href=(site.link("", &[("search", search.unwrap_or_default()), ("after", next)])) { "Next page" }
            }
        }
    };
    Ok(page(&site, Some(&visitor), "Consumers", Tab::Consumers, main))
}

fn table(site: &Site, found: &ConsumerPage) -> Markup {
    html! {
        @if found.consumers.is_empty() {
            p.empty { "No consumer with records or a tier matches." }
        } @else {
            table.list {
                thead { tr {
                    th scope="col" { "Consumer" }
                    th.number scope="col" { "Active records" }
                    th.number scope="col" { "Records" }
                    th scope="col" { "Tier" }
                } }
                tbody { @for consumer in &found.consumers {
                    @let to = site.consumer_link(&consumer.consumer_id);
                    tr {
                        th scope="row" { a.id href=(to) { (consumer.consumer_id) } }
                        td.number data-label="Active records" { (consumer.active) }
                        td.number data-label="Records" { (consumer.records) }
                        td data-label="Tier" { (consumer.tier.as_deref().unwrap_or("–")) }
                    }
                } }
            }
        }
    }
}
