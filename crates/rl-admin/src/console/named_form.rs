//! The form of an object that has a name: a tier, a rule, or the limits of a resource.

use std::future::Future;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use maud::{Markup, html};
use rl_records::{ChangeError, DatabaseError, Expected, Records, Revisioned};

use super::edit_page::{EditPage, Problems, Rejection};
use super::failure::Failure;
use super::fields::Fields;
use super::page::{Tab, form_token};
use super::site::Site;
use super::visitor::Visitor;
use crate::access::{Actor, Role};

/// The words and the paths of a form.
pub(super) struct Words {
    /// The object in a sentence, such as "tier".
    pub(super) noun: &'static str,
    pub(super) tab: Tab,
    /// The title of the page with all objects, and its path.
    pub(super) list: (&'static str, &'static str),
    /// The title of the form of a new object, and its path.
    pub(super) new: (&'static str, &'static str),
    /// The title of the form of an existing object, and its path.
    pub(super) edit: (&'static str, &'static str),
    /// The label of the button that deletes the object, and its path.
    pub(super) delete: (&'static str, &'static str),
    /// Explains the field of the name.
    pub(super) name_hint: &'static str,
}

/// The result of a change.
pub(super) type Changed<T> = Result<Revisioned<T>, ChangeError<Revisioned<T>>>;

/// The content of an object that has a name and a form.
pub(super) trait NamedForm: Clone + Send + Sync + 'static {
    const WORDS: Words;

    fn name(&self) -> &str;

    /// Returns the fields of the form, without the name and the revision.
    fn fields(&self) -> Fields;

    /// Returns the fields of a new object. The query may name a template.
    fn new_fields(_query: &Fields) -> Fields {
        Fields::default()
    }

    /// Renders the fields of the form, without the name.
    fn render(page: &EditPage<'_>) -> Markup;

    /// Parses the content that was typed.
    fn read(form: &Fields) -> Result<Self, Problems>;

    /// Describes what saving this content would do.
    fn effect(&self, before: Option<&Self>) -> Markup;

    /// Returns the label and the text of each value, for a comparison with another content.
    fn values(&self) -> Vec<(&'static str, String)>;

    /// Logs a change.
    fn log(actor: &Actor, action: &str, object: &Revisioned<Self>);

    /// Returns a sentence about the uses of the object, for the form.
    fn uses(
        _site: &Site,
        _name: &str,
    ) -> impl Future<Output = Result<Option<String>, Failure>> + Send {
        async { Ok(None) }
    }

    /// Checks that this service has such objects.
    ///
    /// # Errors
    ///
    /// Returns the page that explains why it has none.
    fn check_service(_site: &Site) -> Result<(), Failure> {
        Ok(())
    }

    /// Checks the content beside the other objects of the service.
    fn check(
        self,
        _site: &Site,
        _is_new: bool,
    ) -> impl Future<Output = Result<Result<Self, Rejection>, Failure>> + Send {
        async { Ok(Ok(self)) }
    }

    /// Returns the page that explains why the database refuses to delete the object.
    fn in_use() -> Failure {
        let message = format!("This {} is in use, so nothing was deleted.", Self::WORDS.noun);
        Failure::new(StatusCode::CONFLICT, "Not deleted", message)
    }

    fn find(
        records: &Records,
        name: &str,
    ) -> impl Future<Output = Result<Option<Revisioned<Self>>, DatabaseError>> + Send;

    fn create(
        self,
        records: &Records,
        visitor: &Visitor,
    ) -> impl Future<Output = Changed<Self>> + Send;

    fn update(
        self,
        records: &Records,
        expected: Expected,
        visitor: &Visitor,
    ) -> impl Future<Output = Changed<Self>> + Send;

    fn delete(
        records: &Records,
        name: &str,
        expected: Expected,
        visitor: &Visitor,
    ) -> impl Future<Output = Changed<Self>> + Send;
}

/// Returns the routes of the forms. `path` returns the whole path of a page.
pub(super) fn routes<T: NamedForm>(path: &impl Fn(&str) -> String) -> Router<Arc<Site>> {
    let words = T::WORDS;
    Router::new()
        .route(&path(words.new.1), get(new::<T>).post(create::<T>))
        .route(&path(words.edit.1), get(edit::<T>).post(update::<T>))
        .route(&path(words.delete.1), post(delete::<T>))
}

/// Returns the rejection of a name that another object has.
pub(super) fn taken<T: NamedForm>(name: &str) -> Rejection {
    let noun = T::WORDS.noun;
    Rejection::invalid(vec![("name", format!("The {noun} {name:?} exists already."))])
}

fn not_found<T: NamedForm>() -> Failure {
    let noun = T::WORDS.noun;
    let message = format!("There is no {noun} of this name in the database.");
    Failure::new(StatusCode::NOT_FOUND, "Not found", message)
}

/// Reads the object of this name.
pub(super) async fn find<T: NamedForm>(site: &Site, name: &str) -> Result<Revisioned<T>, Failure> {
    T::find(&site.context.records, name).await?.ok_or_else(not_found::<T>)
}

pub(super) fn revision(form: &Fields) -> Expected {
    form.get("revision").parse::<i64>().unwrap_or_default().into()
}

/// Shows the form of a new object.
async fn new<T: NamedForm>(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    request: Request,
) -> Result<Response, Failure> {
    visitor.require(Role::CanCreateRateLimits)?;
    T::check_service(&site)?;
    let fields = T::new_fields(&Fields::of_query(request.uri()));
    form_page::<T>(&site, &visitor, true, &fields, None).await
}

/// Creates an object from a form.
async fn create<T: NamedForm>(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    Extension(form): Extension<Fields>,
) -> Result<Response, Failure> {
    visitor.require(Role::CanCreateRateLimits)?;
    T::check_service(&site)?;
    let rejected =
        async |rejection| form_page::<T>(&site, &visitor, true, &form, Some(rejection)).await;
    let content = match typed::<T>(&site, true, &form).await? {
        Ok(content) => content,
        Err(rejection) => return rejected(rejection).await,
    };
    if form.non_empty("preview").is_some() {
        return rejected(Rejection::preview(&content.effect(None))).await;
    }
    let name = content.name().to_owned();
    match content.create(&site.context.records, &visitor).await {
        Ok(object) => Ok(saved(&site, &visitor, "created", &object)),
        Err(ChangeError::Invalid(field)) => rejected(Rejection::invalid_field(&field)).await,
        Err(ChangeError::Conflict { .. }) => rejected(taken::<T>(&name)).await,
        Err(error) => Err(visitor.change_failure(error)),
    }
}

/// Shows the form of an object.
async fn edit<T: NamedForm>(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    request: Request,
) -> Result<Response, Failure> {
    visitor.require(Role::CanUpdateRateLimits)?;
    T::check_service(&site)?;
    let object = find::<T>(&site, Fields::of_query(request.uri()).get("name")).await?;
    let fields = object.content.fields().with("name", object.content.name());
    let fields = fields.with("revision", object.revision.to_string());
    form_page::<T>(&site, &visitor, false, &fields, None).await
}

/// Saves the form of an object.
async fn update<T: NamedForm>(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    Extension(form): Extension<Fields>,
) -> Result<Response, Failure> {
    visitor.require(Role::CanUpdateRateLimits)?;
    T::check_service(&site)?;
    let rejected = async |form: &Fields, rejection| {
        form_page::<T>(&site, &visitor, false, form, Some(rejection)).await
    };
    let content = match typed::<T>(&site, false, &form).await? {
        Ok(content) => content,
        Err(rejection) => return rejected(&form, rejection).await,
    };
    if form.non_empty("preview").is_some() {
        let before = find::<T>(&site, content.name()).await?;
        return rejected(&form, Rejection::preview(&content.effect(Some(&before.content)))).await;
    }
    match content.clone().update(&site.context.records, revision(&form), &visitor).await {
        Ok(object) => Ok(saved(&site, &visitor, "updated", &object)),
        Err(ChangeError::Invalid(field)) => rejected(&form, Rejection::invalid_field(&field)).await,
        Err(ChangeError::Conflict { current }) => {
            let Revisioned { updated_by, updated_at, .. } = &*current;
            let differences = differences(&current.content, &content);
            let noun = T::WORDS.noun;
            let rejection = Rejection::conflict(noun, updated_by, *updated_at, &differences);
            // The form gets the current revision, so saving it once more replaces that revision.
            let form = form.clone().with("revision", current.revision.to_string());
            rejected(&form, rejection).await
        }
        Err(ChangeError::NotFound) => Err(not_found::<T>()),
        Err(error) => Err(visitor.change_failure(error)),
    }
}

/// Deletes an object.
async fn delete<T: NamedForm>(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    Extension(form): Extension<Fields>,
) -> Result<Response, Failure> {
    visitor.require(Role::CanDeleteRateLimits)?;
    T::check_service(&site)?;
    let records = &site.context.records;
    match T::delete(records, form.get("name"), revision(&form), &visitor).await {
        Ok(object) => Ok(saved(&site, &visitor, "deleted", &object)),
        Err(ChangeError::Invalid(_)) => Err(T::in_use()),
        Err(ChangeError::NotFound) => Err(not_found::<T>()),
        Err(error) => Err(visitor.change_failure(error)),
    }
}

/// Parses and checks the content that was typed.
async fn typed<T: NamedForm>(
    site: &Site,
    is_new: bool,
    form: &Fields,
) -> Result<Result<T, Rejection>, Failure> {
    match T::read(form) {
        Ok(content) => content.check(site, is_new).await,
        Err(problems) => Ok(Err(Rejection::invalid(problems))),
    }
}

/// Returns the saved values and the typed ones, where they differ.
fn differences<T: NamedForm>(saved: &T, typed: &T) -> Vec<(String, String, String)> {
    let both = saved.values().into_iter().zip(typed.values());
    let different = both.filter(|((_, saved), (_, typed))| saved != typed);
    different.map(|((label, saved), (_, typed))| (label.to_owned(), saved, typed)).collect()
}

/// Logs a change, and redirects to the list.
pub(super) fn saved<T: NamedForm>(
    site: &Site,
    visitor: &Visitor,
    action: &str,
    object: &Revisioned<T>,
) -> Response {
    T::log(&visitor.actor, action, object);
    let done = format!("{}-{action}", T::WORDS.noun);
    Redirect::to(&site.link(T::WORDS.list.1, &[("done", &done)])).into_response()
}

/// Renders the form.
async fn form_page<T: NamedForm>(
    site: &Site,
    visitor: &Visitor,
    is_new: bool,
    fields: &Fields,
    rejection: Option<Rejection>,
) -> Result<Response, Failure> {
    let Words { tab, list, new, edit, delete, name_hint, .. } = T::WORDS;
    let (save, (title, action)) = if is_new { ("Add", new) } else { ("Save", edit) };
    let back = site.link(list.1, &[]);
    let crumbs = html! {
        a href=(back) { (list.0) }
        @if !is_new { " / " span.id { (fields.get("name")) } }
    };
    let uses = if is_new { None } else { T::uses(site, fields.get("name")).await? };
    let page =
        EditPage { site, visitor, tab, title, crumbs, action, save, back, fields, rejection };
    let identity = html! {
        input type="hidden" name="name" value=(fields.raw("name"));
        input type="hidden" name="revision" value=(fields.get("revision"));
    };
    let content = html! {
        @if is_new { (page.text("name", "Name", name_hint)) } @else { (identity) }
        (T::render(&page))
        @if let Some(uses) = uses { p { (uses) } }
    };
    let footer = html! {
        @if !is_new && visitor.actor.has(Role::CanDeleteRateLimits) {
            form method="post" action=(site.link(delete.1, &[])) {
                (form_token(visitor))
                (identity)
                button.danger type="submit" { (delete.0) }
            }
        }
    };
    Ok(page.respond(&content, &footer))
}
