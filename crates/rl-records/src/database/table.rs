//! Tables of objects that have revisions: records, tiers and limits of resources.
//!
//! Every write stores the object, and adds a row to the history. The public operations of all
//! objects with a name are implemented here too.

use std::future::Future;
use std::sync::Arc;

use sqlx::any::AnyRow;

use super::connections::Runner;
use super::handle::Database;
use super::history::{self, HistoryRow};
use super::kind::Kind;
use super::row::{micros, number, text, time};
use super::statement::{Bound, Sql, without_nul};
use super::transaction::Transaction;
use crate::author::Author;
use crate::error::{ChangeError, DatabaseError, InvalidField};
use crate::history::HistoryValue;
use crate::record::check_name;
use crate::revision::{Expected, Revisioned};

/// An object in a table.
pub(super) trait Object: Sized {
    /// The content of the object, as it is stored in the history.
    type Content: HistoryValue;

    const TABLE: &'static str;
    const KEY: &'static str;
    /// All columns except the key.
    const COLUMNS: &'static [&'static str];

    /// Returns the value of the key.
    fn key(&self) -> String;

    /// Returns the kind of a change of this object.
    fn kind(&self) -> Kind;

    /// Returns the id of the subject that a change of this object affects. For an object with a
    /// name, returns the name.
    fn owner(&self) -> String;

    /// Returns the content.
    fn content(&self) -> &Self::Content;

    /// Returns the value of each of the [`COLUMNS`](Self::COLUMNS).
    fn values(&self) -> Vec<Bound>;

    /// Reads the object from its row.
    fn from_row(row: &AnyRow) -> Result<Self, DatabaseError>;
}

/// Reads the object with this key.
pub(super) async fn find<T: Object>(
    runner: impl Runner,
    key: &str,
) -> Result<Option<T>, DatabaseError> {
    if key.contains('\0') {
        // PostgreSQL rejects NUL in text, and no key contains it.
        return Ok(None);
    }
    let mut sql = Sql::new("SELECT * FROM ");
    sql.push(T::TABLE, []);
    sql.push(" WHERE ", []);
    sql.push(T::KEY, []);
    sql.push(" = ?", [key.into()]);
    sql.on(runner).await?.first().map(T::from_row).transpose()
}

/// Inserts an object.
pub(super) async fn insert<T: Object>(
    transaction: &mut Transaction,
    change: i64,
    object: &T,
    by: &str,
) -> Result<(), DatabaseError> {
    let mut sql = Sql::new("INSERT INTO ");
    sql.push(T::TABLE, []);
    sql.push(" (", []);
    sql.push(T::KEY, []);
    for column in T::COLUMNS {
        sql.push(", ", []);
        sql.push(column, []);
    }
    sql.push(") VALUES (?", [object.key().into()]);
    for value in object.values() {
        sql.push(", ?", [value]);
    }
    sql.push(")", []);
    sql.on(&mut **transaction).await?;
    let key = object.key();
    let owner = object.owner();
    let row = HistoryRow { change, kind: object.kind(), owner: &owner, item: &key, by };
    history::write(transaction, row, None, Some(object.content())).await
}

/// Replaces `before` by `after`, which has the same key.
pub(super) async fn update<T: Object>(
    transaction: &mut Transaction,
    change: i64,
    before: &T,
    after: &T,
    by: &str,
) -> Result<(), DatabaseError> {
    let mut sql = Sql::new("UPDATE ");
    sql.push(T::TABLE, []);
    for (index, (column, value)) in T::COLUMNS.iter().zip(after.values()).enumerate() {
        sql.push(if index == 0 { " SET " } else { ", " }, []);
        sql.push(column, []);
        sql.push(" = ?", [value]);
    }
    sql.push(" WHERE ", []);
    sql.push(T::KEY, []);
    sql.push(" = ?", [after.key().into()]);
    sql.on(&mut **transaction).await?;
    let key = after.key();
    let owner = after.owner();
    let row = HistoryRow { change, kind: after.kind(), owner: &owner, item: &key, by };
    history::write(transaction, row, Some(before.content()), Some(after.content())).await
}

/// Deletes an object.
pub(super) async fn delete<T: Object>(
    transaction: &mut Transaction,
    change: i64,
    object: &T,
    by: &str,
) -> Result<(), DatabaseError> {
    let mut sql = Sql::new("DELETE FROM ");
    sql.push(T::TABLE, []);
    sql.push(" WHERE ", []);
    sql.push(T::KEY, []);
    sql.push(" = ?", [object.key().into()]);
    sql.on(&mut **transaction).await?;
    let key = object.key();
    let owner = object.owner();
    let row = HistoryRow { change, kind: object.kind(), owner: &owner, item: &key, by };
    history::write(transaction, row, Some(object.content()), None).await
}

/// The content of an object whose key is its name: a tier, or the limit of a resource.
pub(super) trait NamedContent: HistoryValue + Clone {
    const KIND: Kind;
    const TABLE: &'static str;
    /// The columns of the content, followed by [`METADATA`].
    const COLUMNS: &'static [&'static str];

    fn name(&self) -> &str;

    /// Returns the values of the content's columns.
    fn values(&self) -> Vec<Bound>;

    /// Reads the content from its row.
    fn from_row(row: &AnyRow) -> Result<Self, DatabaseError>;

    /// Checks every field.
    fn checked(self) -> Result<Self, InvalidField>;

    /// Checks that the author may make a change, and that no other table forbids it. For example, a
    /// tier with members cannot be deleted. Then changes the rows that depend on the content, such
    /// as the records of subscriptions to a tier.
    ///
    /// Runs before the change, in the same transaction.
    fn prepare_change(
        transaction: &mut Transaction,
        before: Option<&Self>,
        after: Option<&Self>,
        author: Author<'_>,
    ) -> impl Future<Output = Result<(), ChangeError<Revisioned<Self>>>> + Send;
}

/// The columns that every object with a name has, besides its content.
pub(super) const METADATA: [&str; 5] =
    ["created_by", "updated_by", "created_at", "updated_at", "revision"];

impl<T: NamedContent> Object for Revisioned<T> {
    type Content = T;

    const TABLE: &'static str = T::TABLE;
    const KEY: &'static str = "name";
    const COLUMNS: &'static [&'static str] = T::COLUMNS;

    fn key(&self) -> String {
        self.content.name().to_owned()
    }

    fn kind(&self) -> Kind {
        T::KIND
    }

    fn owner(&self) -> String {
        self.key()
    }

    fn content(&self) -> &T {
        &self.content
    }

    fn values(&self) -> Vec<Bound> {
        let mut values = self.content.values();
        values.extend([
            self.created_by.as_str().into(),
            self.updated_by.as_str().into(),
            micros(self.created_at).into(),
            micros(self.updated_at).into(),
            self.revision.into(),
        ]);
        values
    }

    fn from_row(row: &AnyRow) -> Result<Self, DatabaseError> {
        Ok(Self {
            content: T::from_row(row)?,
            created_by: text(row, "created_by")?,
            updated_by: text(row, "updated_by")?,
            created_at: time(row, "created_at")?,
            updated_at: time(row, "updated_at")?,
            revision: number(row, "revision")?,
        })
    }
}

/// Lists objects by name, starting after the name `after`.
pub(super) async fn list_named<T: NamedContent>(
    runner: impl Runner,
    after: Option<&str>,
    limit: u32,
) -> Result<Vec<Revisioned<T>>, DatabaseError> {
    let mut sql = Sql::new("SELECT * FROM ");
    sql.push(T::TABLE, []);
    sql.push(" WHERE", []);
    push_page(&mut sql, after, limit);
    sql.on(runner).await?.iter().map(Revisioned::from_row).collect()
}

/// Adds the condition, the order and the limit of a page of names.
pub(super) fn push_page(sql: &mut Sql, after: Option<&str>, limit: u32) {
    let after = without_nul(after.unwrap_or_default());
    let limit = i64::from(limit.clamp(1, 1_000));
    sql.push(" name > ? ORDER BY name LIMIT ?", [after.into(), limit.into()]);
}

/// Creates an object, unless its name is taken.
pub(super) async fn create_named<T: NamedContent>(
    database: &Arc<Database>,
    content: T,
    author: Author<'_>,
) -> Result<Revisioned<T>, ChangeError<Revisioned<T>>> {
    let content = content.checked()?;
    check_name("created_by", author.name())?;
    let mut transaction = Transaction::begin(database).await?;
    let current = find(&mut *transaction, content.name()).await?;
    Expected::Nothing.check(current)?;
    T::prepare_change(&mut transaction, None, Some(&content), author).await?;
    let change = transaction.next_change().await?;
    let created = Revisioned::new(content, author.name(), transaction.now(), change);
    insert(&mut transaction, change, &created, author.name()).await?;
    transaction.commit(T::KIND, created.content.name()).await?;
    Ok(created)
}

/// Replaces the content of the object with this name, provided that it is as expected.
pub(super) async fn update_named<T: NamedContent>(
    database: &Arc<Database>,
    content: T,
    expected: Expected,
    author: Author<'_>,
) -> Result<Revisioned<T>, ChangeError<Revisioned<T>>> {
    let content = content.checked()?;
    check_name("updated_by", author.name())?;
    let mut transaction = Transaction::begin(database).await?;
    let current = find(&mut *transaction, content.name()).await?;
    let before: Revisioned<T> = expected.check_existing(current)?;
    T::prepare_change(&mut transaction, Some(&before.content), Some(&content), author).await?;
    let change = transaction.next_change().await?;
    let after = before.with_content(content, author.name(), transaction.now(), change);
    update(&mut transaction, change, &before, &after, author.name()).await?;
    transaction.commit(T::KIND, after.content.name()).await?;
    Ok(after)
}

/// Deletes the object with this name, provided that it is as expected. Returns the deleted object.
pub(super) async fn delete_named<T: NamedContent>(
    database: &Arc<Database>,
    name: &str,
    expected: Expected,
    author: Author<'_>,
) -> Result<Revisioned<T>, ChangeError<Revisioned<T>>> {
    check_name("updated_by", author.name())?;
    let mut transaction = Transaction::begin(database).await?;
    let current = find(&mut *transaction, name).await?;
    let before: Revisioned<T> = expected.check_existing(current)?;
    T::prepare_change(&mut transaction, Some(&before.content), None, author).await?;
    let change = transaction.next_change().await?;
    delete(&mut transaction, change, &before, author.name()).await?;
    transaction.commit(T::KIND, name).await?;
    Ok(before)
}
