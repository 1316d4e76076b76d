use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use rl_core::FailureKind;
use rl_core::time::Timestamp;
use sqlx::{AnyConnection, Executor};

use super::connections::{Lease, within};
use super::driver_error::database_error;
use super::handle::{CHANNEL, Database};
use super::kind::Kind;
use super::row::number;
use super::statement::Sql;
use crate::active::Aggregation;
use crate::error::DatabaseError;

/// The maximum time that a change waits, after its commit, until the caches of this process contain
/// the new values.
const REFRESH: Duration = Duration::from_secs(1);

/// The time limit for beginning a change, and again for committing it.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// A change in progress. When it is dropped without a [commit](Self::commit), it is rolled back.
pub(super) struct Transaction {
    database: Arc<Database>,
    lease: Lease,
    // The number of a change, drawn but not used yet. `begin` draws the first one, because drawing
    // locks the row of `rl_changes`.
    next_change: Option<i64>,
}

impl Transaction {
    /// Begins a change.
    ///
    /// The first statement locks a row that every change locks. So changes run one after the other,
    /// and what a change has read stays unchanged until its commit. On MySQL, the first read fixes
    /// the state that a transaction sees, and it comes after the lock.
    pub(super) async fn begin(database: &Arc<Database>) -> Result<Self, DatabaseError> {
        let mut lease = database.edits.take().await?;
        let begin = database.dialect.begin();
        within(TIME_LIMIT, async { lease.execute(begin).await.map_err(database_error) }).await?;
        let mut transaction = Self { database: database.clone(), lease, next_change: None };
        let first = transaction.draw_number().await?;
        transaction.next_change = Some(first);
        Ok(transaction)
    }

    /// Takes the number of the next change. The caller must write one history row with this number.
    pub(super) async fn next_change(&mut self) -> Result<i64, DatabaseError> {
        match self.next_change.take() {
            Some(number) => Ok(number),
            None => self.draw_number().await,
        }
    }

    async fn draw_number(&mut self) -> Result<i64, DatabaseError> {
        // Only some databases can return the number from the update.
        let update =
            Sql::new("UPDATE rl_changes SET \"change\" = \"change\" + 1 WHERE only_row = 1");
        update.on(&mut **self).await?;
        let rows = Sql::new("SELECT \"change\" FROM rl_changes").on(&mut **self).await?;
        let row = rows.first().ok_or_else(|| DatabaseError::new(FailureKind::Corrupt))?;
        number(row, "change")
    }

    pub(super) fn now(&self) -> Timestamp {
        self.database.now()
    }

    pub(super) fn aggregation(&self) -> &Aggregation {
        self.database.aggregation()
    }

    /// Commits the change, and announces it to all caches that contain limits of `owner`.
    ///
    /// The commit continues if the caller is cancelled. The change is announced even if the result
    /// of the commit is unknown.
    pub(super) async fn commit(self, kind: Kind, owner: &str) -> Result<(), DatabaseError> {
        let owner = owner.to_owned();
        let committing = tokio::spawn(async move {
            let Self { database, mut lease, .. } = self;
            let commit = database.dialect.commit(CHANNEL);
            let commit =
                async { lease.execute(sqlx::AssertSqlSafe(commit)).await.map_err(database_error) };
            let committed = within(TIME_LIMIT, commit).await;
            let listeners = database.announce(kind, &owner);
            committed?;
            lease.put_back();
            // A change by this process must take effect in this process, even if the database is
            // lost right afterwards. So the caches are refreshed now.
            let refreshing = listeners.iter().filter_map(|caches| caches.refresh(kind, &owner));
            let _ = tokio::time::timeout(REFRESH, join_all(refreshing)).await;
            Ok(())
        });
        committing.await.unwrap_or_else(|_| Err(DatabaseError::new(FailureKind::Unavailable)))
    }
}

impl Deref for Transaction {
    type Target = AnyConnection;

    fn deref(&self) -> &AnyConnection {
        &self.lease
    }
}

impl DerefMut for Transaction {
    fn deref_mut(&mut self) -> &mut AnyConnection {
        &mut self.lease
    }
}
