use std::sync::Arc;

use sqlx::any::AnyRow;

use super::handle::Database;
use super::kind::Kind;
use super::row::{number, text};
use super::statement::Bound;
use super::table::{self, METADATA, NamedContent};
use super::transaction::Transaction;
use crate::author::Author;
use crate::error::{ChangeError, DatabaseError, InvalidField};
use crate::revision::{Expected, Revisioned};
use crate::rule::{RuleContent, RuleDefinition};

/// The maximum number of rules in a database.
const MAX_RULES: u32 = 1_000;

/// The maximum length of all definitions together, in bytes. Each change compiles all rules.
const MAX_BYTES: usize = 512 * 1_024;

/// The rules in a database.
#[derive(Clone, Copy, Debug)]
pub struct StoredRules<'a> {
    database: &'a Arc<Database>,
}

impl<'a> StoredRules<'a> {
    pub(super) const fn new(database: &'a Arc<Database>) -> Self {
        Self { database }
    }

    /// Creates a rule.
    ///
    /// # Errors
    ///
    /// Returns [`ChangeError::Conflict`] if a rule has this name. Returns an error if a field cannot
    /// be stored, or if the database fails. There are at most 1 000 rules, of 512 KiB together.
    pub async fn create(
        self,
        content: RuleContent,
        by: impl Into<Author<'_>>,
    ) -> Result<RuleDefinition, ChangeError<RuleDefinition>> {
        table::create_named(self.database, content, by.into()).await
    }

    /// Returns the rule of this name, if there is one.
    ///
    /// # Errors
    ///
    /// Returns an error if the database fails.
    pub async fn read(self, name: &str) -> Result<Option<RuleDefinition>, DatabaseError> {
        table::find(&self.database.reads, name).await
    }

    /// Lists at most `limit` rules by name, starting after the name `after`.
    ///
    /// # Errors
    ///
    /// Returns an error if the database fails.
    pub async fn list(
        self,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<RuleDefinition>, DatabaseError> {
        table::list_named(&self.database.reads, after, limit).await
    }

    /// Returns all rules by their name: at most 1 000.
    ///
    /// # Errors
    ///
    /// Returns an error if the database fails.
    pub async fn all(self) -> Result<Vec<RuleDefinition>, DatabaseError> {
        self.list(None, MAX_RULES).await
    }

    /// Replaces the definition of a rule.
    ///
    /// # Errors
    ///
    /// Returns [`ChangeError::NotFound`] if there is no rule of this name, and
    /// [`ChangeError::Conflict`] if the rule is not as expected. Returns an error if a field cannot
    /// be stored, or if the database fails.
    pub async fn update(
        self,
        content: RuleContent,
        expected: impl Into<Expected>,
        by: impl Into<Author<'_>>,
    ) -> Result<RuleDefinition, ChangeError<RuleDefinition>> {
        table::update_named(self.database, content, expected.into(), by.into()).await
    }

    /// Deletes a rule. Returns the deleted rule.
    ///
    /// # Errors
    ///
    /// Returns [`ChangeError::NotFound`] if there is no rule of this name, and
    /// [`ChangeError::Conflict`] if the rule is not as expected. Returns an error if the database
    /// fails.
    pub async fn delete(
        self,
        name: &str,
        expected: impl Into<Expected>,
        by: impl Into<Author<'_>>,
    ) -> Result<RuleDefinition, ChangeError<RuleDefinition>> {
        table::delete_named(self.database, name, expected.into(), by.into()).await
    }
}

impl NamedContent for RuleContent {
    const KIND: Kind = Kind::Rule;
    const TABLE: &'static str = "rl_rules";
    const COLUMNS: &'static [&'static str] = &[
        "definition",
        "is_shadow",
        METADATA[0],
        METADATA[1],
        METADATA[2],
        METADATA[3],
        METADATA[4],
    ];

    fn name(&self) -> &str {
        &self.name
    }

    fn values(&self) -> Vec<Bound> {
        vec![self.definition.as_str().into(), i64::from(self.is_shadow).into()]
    }

    fn from_row(row: &AnyRow) -> Result<Self, DatabaseError> {
        Ok(Self {
            name: text(row, "name")?,
            definition: text(row, "definition")?,
            is_shadow: number(row, "is_shadow")? != 0,
        })
    }

    fn checked(self) -> Result<Self, InvalidField> {
        self.checked()
    }

    async fn prepare_change(
        transaction: &mut Transaction,
        _: Option<&Self>,
        after: Option<&Self>,
        _: Author<'_>,
    ) -> Result<(), ChangeError<Revisioned<Self>>> {
        let Some(after) = after else { return Ok(()) };
        let rules = table::list_named::<Self>(&mut **transaction, None, MAX_RULES).await?;
        let others = rules.iter().map(|rule| &rule.content).filter(|rule| rule.name != after.name);
        let (mut count, mut bytes) = (1, after.definition.len());
        for rule in others {
            (count, bytes) = (count + 1, bytes + rule.definition.len());
        }
        if count > MAX_RULES {
            return Err(InvalidField::new("name", count, "at most 1000 rules").into());
        }
        if bytes > MAX_BYTES {
            let expected = "at most 512 KiB of all rules together";
            return Err(InvalidField::new("definition", format!("{bytes} bytes"), expected).into());
        }
        Ok(())
    }
}
