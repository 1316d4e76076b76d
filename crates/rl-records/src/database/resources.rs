use std::sync::Arc;

use sqlx::any::AnyRow;

use super::handle::Database;
use super::history;
use super::kind::Kind;
use super::row::{limits, text};
use super::statement::{Bound, Sql};
use super::table::{self, METADATA, NamedContent, Object};
use super::transaction::Transaction;
use crate::author::Author;
use crate::error::{ChangeError, DatabaseError, InvalidField};
use crate::history::{Change, HistoryQuery};
use crate::resource::{ResourceLimit, ResourceLimitContent};
use crate::revision::{Expected, Revisioned};

/// The limits of resources in a database.
#[derive(Clone, Copy, Debug)]
pub struct Resources<'a> {
    database: &'a Arc<Database>,
}

impl<'a> Resources<'a> {
    pub(super) const fn new(database: &'a Arc<Database>) -> Self {
        Self { database }
    }

    /// Creates the limits of a resource.
    ///
    /// # Errors
    ///
    /// Returns [`ChangeError::Conflict`] if the resource already has limits. Returns an error if a
    /// field cannot be stored, if the limits block applications and the author lacks that right, or
    /// if the database fails.
    pub async fn create(
        self,
        content: ResourceLimitContent,
        by: impl Into<Author<'_>>,
    ) -> Result<ResourceLimit, ChangeError<ResourceLimit>> {
        table::create_named(self.database, content, by.into()).await
    }

    /// Returns the limits of the resource of this name, if it has any.
    ///
    /// # Errors
    ///
    /// Returns an error if the database fails.
    pub async fn read(self, name: &str) -> Result<Option<ResourceLimit>, DatabaseError> {
        table::find(&self.database.reads, name).await
    }

    /// Lists at most `limit` limits by the name of the resource, starting after the name `after`.
    ///
    /// # Errors
    ///
    /// Returns an error if the database fails.
    pub async fn list(
        self,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<ResourceLimit>, DatabaseError> {
        table::list_named(&self.database.reads, after, limit).await
    }

    /// Lists limits like [`list`](Self::list), but only the limits whose `apps` contain one of
    /// these.
    ///
    /// # Errors
    ///
    /// Returns an error if the database fails.
    pub async fn list_for_applications(
        self,
        apps: &[String],
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<ResourceLimit>, DatabaseError> {
        let mut sql = Sql::new("SELECT * FROM rl_resource_limits WHERE (1 = 0");
        for app in apps {
            // PostgreSQL rejects NUL in text, and a line feed would match across the lines of
            // `apps`. A name with one of them is replaced by a name that no resource lists, because
            // stored names contain no control character.
            let app = app.replace(['\0', '\n'], "\u{1}");
            // `apps` contains one name on each line. If removing the line of `app` changes the
            // text, the resource lists `app`. Unlike LIKE, this comparison is exact on all
            // databases.
            sql.push(
                " OR replace('\n' || apps || '\n', ?, '') <> '\n' || apps || '\n'",
                [format!("\n{app}\n").into()],
            );
        }
        sql.push(") AND", []);
        table::push_page(&mut sql, after, limit);
        sql.on(&self.database.reads).await?.iter().map(ResourceLimit::from_row).collect()
    }

    /// Replaces the limits of a resource.
    ///
    /// # Errors
    ///
    /// Returns [`ChangeError::NotFound`] if the resource has no limit, and
    /// [`ChangeError::Conflict`] if the limit is not as expected. Returns an error if a field
    /// cannot be stored, if the change blocks or unblocks applications and the author lacks that
    /// right, or if the database fails.
    pub async fn update(
        self,
        content: ResourceLimitContent,
        expected: impl Into<Expected>,
        by: impl Into<Author<'_>>,
    ) -> Result<ResourceLimit, ChangeError<ResourceLimit>> {
        table::update_named(self.database, content, expected.into(), by.into()).await
    }

    /// Deletes the limits of a resource. Returns the deleted limits.
    ///
    /// # Errors
    ///
    /// Returns [`ChangeError::NotFound`] if the resource has no limit, and
    /// [`ChangeError::Conflict`] if the limit is not as expected. Returns an error if the deletion
    /// unblocks applications and the author lacks that right, or if the database fails.
    pub async fn delete(
        self,
        name: &str,
        expected: impl Into<Expected>,
        by: impl Into<Author<'_>>,
    ) -> Result<ResourceLimit, ChangeError<ResourceLimit>> {
        table::delete_named(self.database, name, expected.into(), by.into()).await
    }

    /// Lists changes of limits of resources, the newest first.
    ///
    /// # Errors
    ///
    /// Returns an error if the database fails.
    pub async fn history(
        self,
        query: &HistoryQuery,
    ) -> Result<Vec<Change<ResourceLimitContent>>, DatabaseError> {
        history::list(&self.database.reads, &[Kind::Resource], query).await
    }
}

impl NamedContent for ResourceLimitContent {
    const KIND: Kind = Kind::Resource;
    const TABLE: &'static str = "rl_resource_limits";
    const COLUMNS: &'static [&'static str] =
        &["apps", "limits", METADATA[0], METADATA[1], METADATA[2], METADATA[3], METADATA[4]];

    fn name(&self) -> &str {
        &self.name
    }

    fn values(&self) -> Vec<Bound> {
        vec![self.apps.join("\n").into(), self.limits.to_string().into()]
    }

    fn from_row(row: &AnyRow) -> Result<Self, DatabaseError> {
        Ok(Self {
            name: text(row, "name")?,
            apps: text(row, "apps")?.lines().map(ToOwned::to_owned).collect(),
            limits: limits(row)?,
        })
    }

    fn checked(self) -> Result<Self, InvalidField> {
        self.checked()
    }

    async fn prepare_change(
        _: &mut Transaction,
        before: Option<&Self>,
        after: Option<&Self>,
        author: Author<'_>,
    ) -> Result<(), ChangeError<Revisioned<Self>>> {
        author.check(Self::effect(before, after))
    }
}
