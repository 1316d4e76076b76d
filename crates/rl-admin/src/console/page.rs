use maud::{DOCTYPE, Markup, html};

use super::scope::is_open;
use super::site::Site;
use super::visitor::Visitor;

/// The name of the form field that contains the form token of the session.
pub(super) const FORM_TOKEN: &str = "form_token";

/// The part of the console to which a page belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tab {
    None,
    Now,
    Consumers,
    Rules,
    Tiers,
    Subscriptions,
    Resources,
    Blocks,
    Changes,
    Store,
    LastHour,
    Usage,
}

/// The tabs: the path below that of the console, the name, and the page.
const TABS: [(&str, &str, Tab); 11] = [
    ("", "Now", Tab::Now),
    ("/consumers", "Consumers", Tab::Consumers),
    ("/rules", "Rules", Tab::Rules),
    ("/tiers", "Tiers", Tab::Tiers),
    ("/subscriptions", "Subscriptions", Tab::Subscriptions),
    ("/resources", "Resources", Tab::Resources),
    ("/blocks", "Blocks", Tab::Blocks),
    ("/changes", "Changes", Tab::Changes),
    ("/store", "Store", Tab::Store),
    ("/last-hour", "Last hour", Tab::LastHour),
    ("/months", "Usage", Tab::Usage),
];

/// Renders a page around `main`, whose first element is the heading.
pub(super) fn page(
    site: &Site,
    visitor: Option<&Visitor>,
    title: &str,
    tab: Tab,
    main: Markup,
) -> Markup {
    let path = site.path();
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " · Rate limits" }
                link rel="icon" type="image/svg+xml" href={ (path) "/icon.svg" };
                link rel="stylesheet" href={ (path) "/console.css" };
                script src={ (path) "/console.js" } defer {}
            }
            body {
                a.skip href="#main" { "Skip to content" }
                header.top { div.width {
                    a.brand href=(path) { (logo()) "Rate limits" }
                    @if let Some(visitor) = visitor {
                        nav aria-label="Console" { ul {
                            @for (rest, name, of) in TABS {
                                @if is_open(visitor, rest) {
                                    li { a href={ (path) (rest) } aria-current=[(tab == of).then_some("page")] { (name) } }
                                }
                            }
                        } }
                        form.who method="post" action={ (path) "/logout" } {
                            (form_token(visitor))
                            span.name title=(visitor.actor.name()) { (visitor.actor.name()) }
                            button.quiet type="submit" { "Log out" }
                        }
                    }
                } }
                main #main.width tabindex="-1" { (main) }
            }
        }
    }
}

/// Renders the logo: three bars below a line.
fn logo() -> Markup {
    html! {
        svg.mark viewBox="0 0 24 24" width="24" height="24" aria-hidden="true" {
            path d="M3 5h18" {}
            rect x="4" y="9" width="4" height="11" rx="1" {}
            rect x="10" y="13" width="4" height="7" rx="1" {}
            rect x="16" y="8" width="4" height="12" rx="1" {}
        }
    }
}

/// Renders the field that every form must contain.
pub(super) fn form_token(visitor: &Visitor) -> Markup {
    html! { input type="hidden" name=(FORM_TOKEN) value=(visitor.form_token); }
}

/// Renders the sentence that confirms a change. `word` names the change, and is in the query of the
/// address to which the browser was redirected.
pub(super) fn confirmation(word: &str) -> Markup {
    let sentence = match word {
        "created" => "The limits were created. They apply to the next call.",
        "updated" => "The change was saved. It applies to the next call.",
        "deleted" => "The limits were deleted.",
        "reset" => "The counters were reset.",
        "raised" => "The grant was created. It applies to the next call.",
        "blocked" => "The block was set. It applies to the next call.",
        "unblocked" => "The block was lifted. This applies to the next call.",
        "reset-partly" => {
            "The counters were reset, except those of the rules that the note below leaves out."
        }
        "tier-created" => {
            "The tier was created. It applies to the consumers and keys that are put into it."
        }
        "tier-updated" => "The tier was changed. It applies to the next call.",
        "moved" => "The tier of this consumer was changed. It applies to the next call.",
        "tier-deleted" => "The tier was deleted.",
        "subscription-created" => "The subscription was added.",
        "subscription-updated" => {
            "The status of the subscription was changed. This applies to the next call."
        }
        "rule-created" => "The rule was added. It applies to the next call.",
        "rule-updated" => "The rule was changed. This applies to the next call.",
        "resource-created" => "The resource was added. Its limits apply to the next call.",
        "resource-updated" => "The resource was changed. This applies to the next call.",
        "resource-deleted" => "The limits of the resource were deleted.",
        "rule-deleted" => "The rule was deleted. It limits no call any more.",
        _ => return html! {},
    };
    html! { p.done role="status" { (sentence) } }
}
