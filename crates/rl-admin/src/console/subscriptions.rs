//! The pages of subscriptions: their list, the form of a new one, and the buttons that change their
//! status.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use maud::{Markup, html};
use rl_records::{
    Author, ChangeError, Subscription, SubscriptionContent, SubscriptionId, SubscriptionPage,
    SubscriptionQuery, SubscriptionStatus, Tier,
};

use super::edit_page::{EditPage, Problems, Rejection};
use super::failure::Failure;
use super::fields::Fields;
use super::now::choice;
use super::page::{Tab, confirmation, form_token, page};
use super::site::Site;
use super::visitor::Visitor;
use super::{records, text, tiers};
use crate::access::Role;
use crate::audit;

/// The number of subscriptions on a page.
const PAGE: u32 = 50;

/// The fields of the query by which the list is filtered.
const FILTERS: [&str; 3] = ["consumer", "tier", "status"];

/// The statuses that a new subscription may have.
const FIRST: [SubscriptionStatus; 2] = [SubscriptionStatus::Requested, SubscriptionStatus::Active];

/// Shows the list.
pub(super) async fn list(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    request: Request,
) -> Result<Markup, Failure> {
    let fields = Fields::of_query(request.uri());
    let text_of = |name: &str| fields.non_empty(name).map(ToOwned::to_owned);
    let query = SubscriptionQuery {
        consumer: text_of("consumer"),
        consumers: visitor.actor.applications().map(ToOwned::to_owned),
        tier: text_of("tier"),
        status: SubscriptionStatus::from_name(fields.get("status")),
        after: fields.get("after").parse().ok(),
        before: fields.get("before").parse().ok(),
        limit: PAGE,
    };
    let found = site.context.records.subscriptions().list(&query).await?;
    let tiers = tiers::visible(&site, &visitor).await?;
    let main = html! {
        div.head {
            h1 { "Subscriptions" }
            @if visitor.actor.has(Role::CanCreateRateLimits) && !tiers.is_empty() {
                a.button href=(site.link("/subscription/new", &consumer_of(&fields))) { "Add a subscription" }
            }
        }
        (confirmation(fields.get("done")))
        p.note {
            "A subscription gives a consumer the limits of a tier (the product) while its status is active or past \
             due, and its dates include the present. These limits are added to the consumer's own limits."
        }
        (filter_form(&site, &fields, &tiers))
        (table(&site, &visitor, &fields, &found.subscriptions))
        (pages(&site, &fields, &found))
    };
    Ok(page(&site, Some(&visitor), "Subscriptions", Tab::Subscriptions, main))
}

/// Returns the filters of the list that are set.
fn filters(fields: &Fields) -> Vec<(&str, &str)> {
    let all = FILTERS.map(|name| (name, fields.get(name)));
    all.into_iter().filter(|(_, value)| !value.is_empty()).collect()
}

/// Returns the consumer by which the list is filtered, for the form of a new subscription.
fn consumer_of(fields: &Fields) -> Vec<(&str, &str)> {
    fields.non_empty("consumer").map(|consumer| ("consumer", consumer)).into_iter().collect()
}

fn filter_form(site: &Site, fields: &Fields, tiers: &[Tier]) -> Markup {
    let path = site.link("/subscriptions", &[]);
    let tiers = tiers.iter().map(|tier| tier.content.name.clone()).collect();
    html! {
        form.filter method="get" action=(path) role="search" {
            div {
                label for="consumer" { "Consumer" }
                input #consumer type="search" name="consumer" value=(fields.get("consumer"))
                    maxlength="250" autocapitalize="off" spellcheck="false";
            }
            (choice("tier", "Tier", "All", fields.get("tier"), tiers))
            div {
                label for="status" { "Status" }
                select #status name="status" {
                    option value="" { "All" }
                    @for status in SubscriptionStatus::ALL {
                        option value=(status.as_str()) selected[fields.get("status") == status.as_str()] { (word(status)) }
                    }
                }
            }
            button.main type="submit" { "Show" }
            @if !filters(fields).is_empty() { a href=(path) { "All" } }
        }
    }
}

fn table(
    site: &Site,
    visitor: &Visitor,
    fields: &Fields,
    subscriptions: &[Subscription],
) -> Markup {
    html! {
        @if subscriptions.is_empty() {
            p.empty.quiet-now {
                @if filters(fields).is_empty() { "There is no subscription." }
                @else { "No subscription matches." }
            }
        } @else {
            table.list {
                thead { tr {
                    th scope="col" { "Consumer" } th scope="col" { "Tier" } th scope="col" { "Status" }
                    th scope="col" { "From (UTC)" } th scope="col" { "To (UTC)" }
                    th scope="col" { "Billing day" }
                    th scope="col" { span.unseen { "Actions" } }
                } }
                tbody { @for subscription in subscriptions { (row(site, visitor, fields, subscription)) } }
            }
        }
    }
}

fn row(site: &Site, visitor: &Visitor, fields: &Fields, subscription: &Subscription) -> Markup {
    let SubscriptionContent { consumer_id, tier, status, from_date, to_date, billing_day } =
        &subscription.content;
    html! {
        tr data-state=(state(*status)) {
            th scope="row" { a.id.whole href=(site.consumer_link(consumer_id)) title=(consumer_id) { (consumer_id) } }
            td data-label="Tier" { (tier) }
            td data-label="Status" { span.state { (word(*status)) } }
            td data-label="From" { time { (text::time(*from_date)) } }
            td data-label="To" {
                @match to_date {
                    Some(to) => time { (text::time(*to)) },
                    None => "no end",
                }
            }
            td.number data-label="Billing day" { (billing_day.unwrap_or(1)) }
            td.actions {
                @if visitor.actor.has(Role::CanSetSubscriptionStatus) {
                    @for next in status.next() { (status_form(site, visitor, fields, subscription, *next)) }
                }
            }
        }
    }
}

/// Renders the button that changes the status of a subscription. A cancellation is final, so its
/// button is behind a first click.
fn status_form(
    site: &Site,
    visitor: &Visitor,
    fields: &Fields,
    subscription: &Subscription,
    next: SubscriptionStatus,
) -> Markup {
    let SubscriptionContent { consumer_id, tier, .. } = &subscription.content;
    let verb = verb(next);
    let shown = filters(fields).into_iter().chain(
        ["after", "before"].into_iter().filter_map(|name| Some((name, fields.non_empty(name)?))),
    );
    let shown = serde_urlencoded::to_string(shown.collect::<Vec<_>>()).unwrap_or_default();
    let label = format!("{verb} the subscription of {consumer_id} to {tier}");
    let is_final = next == SubscriptionStatus::Cancelled;
    let form = html! {
        form method="post" action=(site.link("/subscription/status", &[])) {
            (form_token(visitor))
            input type="hidden" name="subscription" value=(subscription.id);
            input type="hidden" name="revision" value=(subscription.revision);
            input type="hidden" name="status" value=(next.as_str());
            input type="hidden" name="shown" value=(shown);
            button.quiet.danger[is_final] type="submit" aria-label=(label) {
                @if is_final { "Cancel it: this is final" } @else { (verb) }
            }
        }
    };
    html! {
        @if is_final { details { summary aria-label=(label) { (verb) } (form) } } @else { (form) }
    }
}

fn pages(site: &Site, fields: &Fields, found: &SubscriptionPage) -> Markup {
    let to = |name: &str, cursor: SubscriptionId| {
        let cursor = cursor.to_string();
        let mut query = filters(fields);
        query.push((name, &cursor));
        site.link("/subscriptions", &query)
    };
    html! {
        @if found.previous.is_some() || found.next.is_some() {
            nav.pages aria-label="Pages" {
                @if let Some(previous) = found.previous {
                    a rel="prev" href=(to("before", previous)) { "Previous page" }
                }
                @if let Some(next) = found.next {
                    a rel="next" href=(to("after", next)) { "Next page" }
                }
            }
        }
    }
}

/// Returns a status as people write it.
pub(super) const fn word(status: SubscriptionStatus) -> &'static str {
    match status {
        SubscriptionStatus::PastDue => "past due",
        status => status.as_str(),
    }
}

/// Returns the word by which the style sheet knows a status.
const fn state(status: SubscriptionStatus) -> &'static str {
    match status {
        SubscriptionStatus::Requested => "open",
        SubscriptionStatus::Active => "active",
        SubscriptionStatus::PastDue => "near",
        SubscriptionStatus::Suspended => "full",
        SubscriptionStatus::Cancelled => "none",
    }
}

/// Returns the label of the button that leads to a status.
const fn verb(next: SubscriptionStatus) -> &'static str {
    match next {
        SubscriptionStatus::Requested => "Request",
        SubscriptionStatus::Active => "Activate",
        SubscriptionStatus::PastDue => "Mark as past due",
        SubscriptionStatus::Suspended => "Suspend",
        SubscriptionStatus::Cancelled => "Cancel the subscription",
    }
}

/// Changes the status of a subscription.
pub(super) async fn set_status(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    Extension(form): Extension<Fields>,
) -> Result<Response, Failure> {
    visitor.require(Role::CanSetSubscriptionStatus)?;
    let id = form.get("subscription").parse().map_err(|_| Failure::no_subscription())?;
    let status = SubscriptionStatus::from_name(form.get("status")).ok_or_else(Failure::no_page)?;
    let revision: i64 = form.get("revision").parse().unwrap_or_default();
    // As in the API, CanSetSubscriptionStatus suffices, even if the change blocks or unblocks the
    // consumer.
    let author = Author::new(visitor.actor.name());
    let subscriptions = site.context.records.subscriptions();
    let changed = match subscriptions.set_status(id, status, revision, author).await {
        Ok(changed) => changed,
        Err(ChangeError::NotFound) => return Err(Failure::no_subscription()),
        Err(ChangeError::Conflict { .. }) => return Err(changed_meanwhile()),
        Err(ChangeError::Invalid(invalid)) if invalid.field() == "status" => {
            return Err(changed_meanwhile());
        }
        Err(error) => return Err(visitor.change_failure(error)),
    };
    audit::subscription_changed(&visitor.actor, "updated", &changed);
    let shown = Fields::parse(form.raw("shown").as_bytes());
    let mut query = filters(&shown);
    let cursors = ["after", "before"].map(|name| (name, shown.get(name)));
    query.extend(cursors.into_iter().filter(|(_, cursor)| !cursor.is_empty()));
    query.push(("done", "subscription-updated"));
    Ok(Redirect::to(&site.link("/subscriptions", &query)).into_response())
}

fn changed_meanwhile() -> Failure {
    let message = "The subscription was changed meanwhile, and nothing was saved. Go back and load the \
                   page again.";
    Failure::new(StatusCode::CONFLICT, "Another change came first", message)
}

/// Shows the form of a new subscription.
pub(super) async fn new(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    request: Request,
) -> Result<Response, Failure> {
    visitor.require(Role::CanCreateRateLimits)?;
    let fields = Fields::default()
        .with("consumer_id", Fields::of_query(request.uri()).get("consumer"))
        .with("status", SubscriptionStatus::Requested.as_str())
        .with("from_date", text::field(site.context.now()));
    form_page(&site, &visitor, &fields, None).await
}

/// Creates a subscription from a form.
pub(super) async fn create(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    Extension(form): Extension<Fields>,
) -> Result<Response, Failure> {
    visitor.require(Role::CanCreateRateLimits)?;
    let content = match read(&form) {
        Ok(content) => content,
        Err(problems) => {
            return form_page(&site, &visitor, &form, Some(Rejection::invalid(problems))).await;
        }
    };
    if form.non_empty("preview").is_some() {
        let preview = preview(&site, &content).await?;
        return form_page(&site, &visitor, &form, Some(preview)).await;
    }
    let subscriptions = site.context.records.subscriptions();
    match subscriptions.create(content, visitor.actor.author()).await {
        Ok(created) => {
            audit::subscription_changed(&visitor.actor, "created", &created);
            let consumer = ("consumer", &*created.content.consumer_id);
            let to = site.link("/subscriptions", &[consumer, ("done", "subscription-created")]);
            Ok(Redirect::to(&to).into_response())
        }
        Err(ChangeError::Invalid(field)) => {
            form_page(&site, &visitor, &form, Some(Rejection::invalid_field(&field))).await
        }
        Err(error) => Err(visitor.change_failure(error)),
    }
}

/// Parses the content that was typed. A subscription ends with the last microsecond of the typed
/// second.
fn read(form: &Fields) -> Result<SubscriptionContent, Problems> {
    let mut problems = Problems::new();
    let expected = || "Expected a date and a time.".to_owned();
    let from = text::parse_time(form.get("from_date"));
    if from.is_none() {
        problems.push(("from_date", expected()));
    }
    let to = text::parse_time(form.get("to_date")).map(|to| to.plus_micros(999_999));
    if to.is_none() && form.non_empty("to_date").is_some() {
        problems.push(("to_date", expected()));
    }
    let billing_day = form.non_empty("billing_day").map(str::parse).transpose();
    if billing_day.is_err() {
        problems.push(("billing_day", "Expected a day of the month from 1 to 28.".to_owned()));
    }
    let status = SubscriptionStatus::from_name(form.get("status"));
    let Some(status) = status.filter(|status| FIRST.contains(status)) else {
        problems.push(("status", "Expected requested or active.".to_owned()));
        return Err(problems);
    };
    match from {
        Some(from) if problems.is_empty() => Ok(SubscriptionContent {
            status,
            to_date: to,
            billing_day: billing_day.unwrap_or_default(),
            ..SubscriptionContent::new(form.get("consumer_id"), form.get("tier"), from)
        }),
        _ => Err(problems),
    }
}

/// Returns the effect that a new subscription would have.
async fn preview(site: &Site, content: &SubscriptionContent) -> Result<Rejection, Failure> {
    if content.status == SubscriptionStatus::Requested {
        let effect =
            "The subscription would be requested. It would change no limit until it is activated.";
        return Ok(Rejection::preview(&html! { (effect) }));
    }
    let Some(tier) = site.context.records.tiers().read(&content.tier).await? else {
        return Ok(Rejection::invalid(vec![("tier", "Expected a tier that exists.".to_owned())]));
    };
    records::preview(site, &content.active_record(&tier.content.limits), None).await
}

async fn form_page(
    site: &Site,
    visitor: &Visitor,
    fields: &Fields,
    rejection: Option<Rejection>,
) -> Result<Response, Failure> {
    let tiers = tiers::visible(site, visitor).await?;
    let back = site.link("/subscriptions", &[]);
    let page = EditPage {
        site,
        visitor,
        tab: Tab::Subscriptions,
        title: "Add a subscription",
        crumbs: html! { a href=(back) { "Subscriptions" } },
        action: "/subscription/new",
        save: "Add",
        back,
        fields,
        rejection,
    };
    let names: Vec<_> =
        tiers.iter().map(|tier| (&*tier.content.name, &*tier.content.name)).collect();
    let first = FIRST.map(|status| (status.as_str(), word(status)));
    let content = html! {
        (page.text("consumer_id", "Consumer", "Its id: 1 to 250 bytes."))
        (page.choice("tier", "Tier", &names, "The tier whose limits the consumer gets."))
        (page.choice("status", "Status", &first, "A requested subscription gives no limits until it is activated."))
        fieldset {
            legend { "When (UTC)" }
            div.grid.two {
                (page.time("from_date", "From", "The first second."))
                (page.time("to_date", "To", "The end of this second. Empty: no end."))
            }
        }
        (page.text("billing_day", "Billing day", "The day of the month, 1 to 28, on which the calendar-month limits of the \
            tier start, such as 5000/month:clock. Empty: the 1st."))
    };
    Ok(page.respond(&content, &html! {}))
}
