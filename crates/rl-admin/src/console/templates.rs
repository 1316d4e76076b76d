//! The templates for a new rule, each with a picture of its effect.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use maud::{Markup, html};

use super::failure::Failure;
use super::page::{Tab, page};
use super::site::Site;
use super::visitor::Visitor;
use crate::access::Role;

/// A rule to begin with.
pub(super) struct Template {
    /// The name in the address, and of the new rule.
    pub(super) name: &'static str,
    title: &'static str,
    /// The reason for such a rule.
    purpose: &'static str,
    pub(super) definition: &'static str,
    /// The sentence below the picture.
    caption: &'static str,
    /// The requests of each step of the picture, and how many of them the rule allows.
    steps: [(u32, u32); 12],
}

/// The templates.
const TEMPLATES: [Template; 4] = [
    Template {
        name: "strict-login",
        title: "Strict login",
        purpose: "Passwords cannot be guessed: each address has five attempts in a minute, and twenty in an hour.",
        definition: "match: { method: POST, path: /login }\nper: address\nlimits: [5/minute, 20/hour]\n",
        caption: "An address tries 9 passwords each minute. From the fifth minute on, the hour is used up.",
        steps: [
            (9, 5),
            (9, 5),
            (9, 5),
            (9, 5),
            (9, 0),
            (9, 0),
            (9, 0),
            (9, 0),
            (9, 0),
            (9, 0),
            (9, 0),
            (9, 0),
        ],
    },
    Template {
        name: "api-plan",
        title: "API plan",
        purpose: "A plan for each API key: bursts in a second, and a quota for the day. A tier has more.",
        definition: "per: [key, address]\nlimits: [10/second, 5000/day:clock]\ntiers:\n  pro: [100/second, 100000/day:clock]\n",
        caption: "A client sends up to 14 requests in a second. Each second allows 10.",
        steps: [
            (4, 4),
            (8, 8),
            (14, 10),
            (12, 10),
            (6, 6),
            (3, 3),
            (9, 9),
            (13, 10),
            (14, 10),
            (7, 7),
            (2, 2),
            (5, 5),
        ],
    },
    Template {
        name: "llm-tokens",
        title: "LLM tokens",
        purpose: "A budget of tokens in place of requests. In a service of your own, the cost can come from the response.",
        definition: "match: { method: POST, path: \"/v1/{*rest}\" }\nper: [key, address]\nlimits: [100000/minute:unit=tokens, 2000000/day:clock:unit=tokens]\ncost: 1000\n# In a service of your own, the cost is read from a header of the response:\n# cost: { response_header: x-tokens-used, estimate: 1000 }\n",
        caption: "Prompts in each quarter of a minute, in tens. Once the minute has no tokens left, they are rejected.",
        steps: [
            (3, 3),
            (5, 5),
            (2, 2),
            (9, 0),
            (4, 4),
            (3, 3),
            (6, 3),
            (1, 0),
            (8, 8),
            (2, 2),
            (7, 0),
            (3, 0),
        ],
    },
    Template {
        name: "bulk-import",
        title: "Bulk import",
        purpose: "Expensive requests: two at the same time, and sixty in an hour.",
        definition: "match: { method: POST, path: /import }\nper: address\nlimits: [2:concurrency, 60/hour]\n# In a service of your own, requests can wait in a queue:\n# over: { wait: 30s, queue: 20 }\n",
        caption: "Imports that run at the same time. Two run, the others are rejected.",
        steps: [
            (1, 1),
            (2, 2),
            (4, 2),
            (4, 2),
            (3, 2),
            (2, 2),
            (1, 1),
            (3, 2),
            (5, 2),
            (2, 2),
            (1, 1),
            (0, 0),
        ],
    },
];

/// Returns the template of this name.
pub(super) fn find(name: &str) -> Option<&'static Template> {
    TEMPLATES.iter().find(|template| template.name == name)
}

/// Shows the templates.
pub(super) async fn list(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
) -> Result<Markup, Failure> {
    visitor.require(Role::CanCreateRateLimits)?;
    let main = html! {
        p.crumb { a href=(site.link("/rules", &[])) { "Rules" } }
        h1 { "Add a rule" }
        p { "Begin with a template, and change it as you need." }
        ul.templates { @for template in &TEMPLATES { li { (card(&site, template)) } } }
        p { a.button href=(site.link("/rule/new", &[])) { "Begin with an empty rule" } }
    };
    Ok(page(&site, Some(&visitor), "Add a rule", Tab::Rules, main))
}

fn card(site: &Site, template: &Template) -> Markup {
    html! {
        h2 { a href=(site.link("/rule/new", &[("template", template.name)])) { (template.title) } }
        p { (template.purpose) }
        figure {
            (picture(template))
            figcaption.faint { (template.caption) }
        }
        pre { code { (template.definition) } }
    }
}

/// Draws the requests of each step as a bar. The allowed ones are at its bottom.
fn picture(template: &Template) -> Markup {
    let most = template.steps.iter().map(|(requests, _)| *requests).max().unwrap_or(1).max(1);
    let height = |requests: u32| requests * 48 / most;
    html! {
        svg.template viewBox="0 0 240 50" role="img" aria-label=(template.caption) {
            @for (step, (requests, allowed)) in (0_u32..).zip(template.steps) {
                @let (all, low) = (height(requests), height(allowed));
                rect.denied x=(step * 20 + 3) y=(49 - all) width="14" height=(all - low) {}
                rect.allowed x=(step * 20 + 3) y=(49 - low) width="14" height=(low) {}
            }
            line x1="0" x2="240" y1="49.5" y2="49.5" {}
        }
    }
}

#[cfg(test)]
mod tests {
    use rl_core::rules::{RulesFile, StoredRule};

    use super::*;

    #[test]
    fn the_definitions_are_valid_in_a_service_with_known_keys() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("keys.yaml"), "[]").unwrap();
        let path = folder.path().join("limits.yaml");
        let text =
            "keys: { from: bearer, file: keys.yaml }\nrules: { fleet: { limits: 9/second } }";
        std::fs::write(&path, text).unwrap();
        let file = RulesFile::builder(&path).pause(std::time::Duration::from_millis(10));
        let file = file.watch().unwrap();
        for template in &TEMPLATES {
            let rule = StoredRule::new(template.name, template.definition);
            assert_eq!(file.check_stored_rule(&rule), Ok(()), "{}", template.name);
            let allows_more = template.steps.iter().any(|(requests, allowed)| allowed > requests);
            assert!(!allows_more, "{}", template.name);
        }
    }
}
