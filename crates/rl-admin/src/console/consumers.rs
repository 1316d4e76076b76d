use axum::Extension;
use axum::extract::{Request, State};
use maud::{Markup, html};
use rl_records::{ConsumerPage, ConsumerQuery};

use super::Console;
use super::failure::Failure;
use super::fields::{Fields, link};
use super::page::{Tab, page};
use super::session::Visitor;

/// The consumers, and the way to find one.
pub(super) async fn list(
    State(console): State<Console>,
    Extension(visitor): Extension<Visitor>,
    request: Request,
) -> Result<Markup, Failure> {
    let query = Fields::read(request.uri().query().unwrap_or_default().as_bytes());
    let search = query.given("search");
    let asked = ConsumerQuery {
        search: search.map(ToOwned::to_owned),
        after: query.given("after").map(ToOwned::to_owned),
        ..ConsumerQuery::default()
    };
    let found = console.admin().records().consumers(&asked, console.admin().now()).await?;
    let path = console.path();
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
        (table(&console, &found))
        @if let Some(search) = search
            && found.consumers.iter().all(|consumer| consumer.consumer_id != search)
        {
            p {
                "Not in the list? "
                a href=(link(&format!("{path}/consumer"), &[("id", search)])) { "Open " b.id { (search) } }
                " all the same: a consumer without records has counters, too."
            }
        }
        @if let Some(next) = &found.next {
            nav.pages aria-label="Pages" {
                a rel="next" href=(link(path, &[("search", search.unwrap_or_default()), ("after", next)])) { "Next page" }
            }
        }
    };
    Ok(page(&console, Some(&visitor), "Consumers", Tab::Consumers, main))
}

fn table(console: &Console, found: &ConsumerPage) -> Markup {
    html! {
        @if found.consumers.is_empty() {
            p.empty { "No consumer with records or a tier is like that." }
        } @else {
            table.list {
                thead { tr {
                    th scope="col" { "Consumer" }
                    th.number scope="col" { "Active records" }
                    th.number scope="col" { "Records" }
                    th scope="col" { "Tier" }
                } }
                tbody { @for consumer in &found.consumers {
                    @let to = link(&format!("{}/consumer", console.path()), &[("id", &consumer.consumer_id)]);
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
