//! The fields of links and forms that name a subject, and the pages to which they lead.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use maud::{Markup, html};
use rl_core::time::Timestamp;
use rl_core::{Realm, Subject};
use rl_records::{Limits, RecordContent};

use super::consumer_id::check_consumer_id;
use super::failure::Failure;
use super::fields::Fields;
use super::site::Site;
use super::visitor::Visitor;
use crate::access::Role;

/// Reads the subject that the fields `realm`, `id` and `digest` name. Without a realm, it is a
/// consumer.
pub(super) fn read(fields: &Fields) -> Result<Subject, Failure> {
    let id = fields.raw("id");
    let wrong =
        |message: &str| Err(Failure::new(StatusCode::BAD_REQUEST, "No such subject", message));
    if id.len() > Subject::MAX_ID_LEN || id.chars().any(char::is_control) {
        return wrong("Expected an id of at most 256 bytes of text without control characters.");
    }
    let realm = match fields.get("realm") {
        "" | "consumer" if id.is_empty() => return wrong("Expected the id of a consumer."),
        "" | "consumer" => Realm::Consumer,
        "ip" => Realm::Ip,
        "key" => Realm::Key,
        "user" => Realm::User,
        "global" => Realm::Global,
        "unknown" => Realm::Unknown,
        custom => match Realm::custom(custom) {
            Ok(realm) => realm,
            Err(error) => {
                return wrong(&format!("Expected the name of a kind of subjects: {error}."));
            }
        },
    };
    if fields.non_empty("digest").is_none() {
        return Ok(if realm == Realm::Key {
            Subject::displayed_key(id)
        } else {
            Subject::new(realm, id)
        });
    }
    match u128::from_str_radix(id, 16) {
        Ok(digest) if id.len() == 32 => Ok(Subject::digest(realm, digest.to_be_bytes())),
        _ => wrong("Expected a digest of 32 hexadecimal digits."),
    }
}

/// Reads a subject that can have records. Converts an address to the form in which the limiter counts
/// it, because people type addresses in any notation.
pub(super) fn read_with_records(
    site: &Site,
    visitor: &Visitor,
    fields: &Fields,
) -> Result<Subject, Failure> {
    let named = read(fields)?;
    let subject = match (named.realm(), named.id().as_text()) {
        (Realm::Consumer, _) => {
            check_consumer_id(fields.raw("id"))?;
            return Ok(named);
        }
        (Realm::Ip | Realm::Custom(_), Some(id)) => {
            crate::read::subject(&site.context, named.realm().clone(), id)
                .map_err(|error| error.renamed("SUBJECT_ID", "id").renamed("REALM", "realm"))?
        }
        _ => named,
    };
    visitor.require(Role::CanSeeSubjectIds)?;
    if can_have_records(&subject) {
        return Ok(subject);
    }
    let message =
        "This subject is known only by a hash of its id, so it cannot have own limits or blocks.";
    Err(Failure::new(StatusCode::BAD_REQUEST, "No such subject", message))
}

/// Returns the fields that name a subject.
fn named(subject: &Subject) -> [(&'static str, String); 3] {
    let is_digest = subject.id().as_text().is_none();
    [
        ("realm", subject.realm().as_str().to_owned()),
        ("id", subject.id().to_string()),
        ("digest", if is_digest { "on" } else { "" }.to_owned()),
    ]
}

/// Returns a link to a page about a subject, with further fields.
pub(super) fn link(site: &Site, page: &str, subject: &Subject, more: &[(&str, &str)]) -> String {
    let named = named(subject);
    let is_consumer = *subject.realm() == Realm::Consumer && subject.id().as_text().is_some();
    let (page, named) = match page {
        "/subject" if is_consumer => ("/consumer", &named[1..2]),
        _ => (page, &named[..]),
    };
    let fields = named.iter().map(|(name, value)| (*name, &**value)).chain(more.iter().copied());
    let fields: Vec<_> =
        fields.filter(|(name, value)| *name == "id" || !value.is_empty()).collect();
    site.link(page, &fields)
}

/// Renders the hidden fields of a form about a subject.
pub(super) fn fields(subject: &Subject) -> Markup {
    html! { @for (name, value) in named(subject) { input type="hidden" name=(name) value=(value); } }
}

/// Returns the kind and the id of a subject, as pages name it.
pub(super) fn title(subject: &Subject) -> String {
    match subject.realm() {
        Realm::Global => "all requests together".to_owned(),
        Realm::Unknown => "requests without an address".to_owned(),
        realm => format!("{} {}", realm.as_str(), subject.id()),
    }
}

/// Returns whether a subject can have records, and so grants and blocks.
pub(super) fn can_have_records(subject: &Subject) -> bool {
    let limits = Limits::UNLIMITED;
    RecordContent::of_subject(subject, Timestamp::EPOCH, Timestamp::EPOCH, limits).is_ok()
}

/// Redirects to the page from which an action was started: the start page, the page of all blocks,
/// or that of the subject.
pub(super) fn done(site: &Site, form: &Fields, subject: &Subject, word: &str) -> Response {
    let to = match form.get("back") {
        "now" => site.link("", &[("done", word)]),
        "blocks" => site.link("/blocks", &[("done", word)]),
        _ => link(site, "/subject", subject, &[("done", word)]),
    };
    Redirect::to(&to).into_response()
}

/// Returns the page to which an action returns.
pub(super) fn back(site: &Site, fields: &Fields, subject: &Subject) -> String {
    match fields.get("back") {
        "now" => site.path().to_owned(),
        "blocks" => site.link("/blocks", &[]),
        _ => link(site, "/subject", subject, &[]),
    }
}
