use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::future::join_all;
use rl_core::FailureKind;
use sqlx::{AnyConnection, Executor, Row};

use super::connections::{Lease, within};
use super::failure::failed;
use super::sql::Statement;
use super::{CHANNEL, Kind, Listener, Records};
use crate::DatabaseError;

/// The longest time that a change waits for the caches of this process.
const REFRESH: Duration = Duration::from_secs(1);

/// How long it may take to begin a change, and to commit it.
const LONGEST: Duration = Duration::from_secs(10);

/// Who is busy with something else for so long holds up all other changes: on the server itself, so
/// that it ends also when this process does not.
const BEGIN_ON_POSTGRES: &str = "BEGIN; SET LOCAL lock_timeout = '2s'; \
                                 SET LOCAL idle_in_transaction_session_timeout = '10s'";

/// So that it waits for other changes here, and not where it could not any more.
const BEGIN_ON_SQLITE: &str = "BEGIN IMMEDIATE";

/// A change that was begun: undone unless it is [committed](Self::commit).
#[derive(Debug)]
pub(super) struct Edit {
    records: Records,
    lease: Lease,
}

impl Records {
    /// Begins a change and gives it its number.
    ///
    /// The first statement takes the row that all changes take, so that they happen one after the
    /// other: what the change reads afterwards is what it changes.
    pub(super) async fn begin(&self) -> Result<(Edit, i64), DatabaseError> {
        let mut lease = self.inner.edits.take().await?;
        let begin = if self.inner.is_postgres { BEGIN_ON_POSTGRES } else { BEGIN_ON_SQLITE };
        within(LONGEST, async { lease.execute(begin).await.map_err(failed) }).await?;
        let mut edit = Edit { records: self.clone(), lease };
        let change = edit.next_change().await?;
        Ok((edit, change))
    }
}

impl Edit {
    /// Returns the number of the next change, under which one line of the history must be written.
    pub(super) async fn next_change(&mut self) -> Result<i64, DatabaseError> {
        let rows = sqlx::query("UPDATE rl_changes SET change = change + 1 RETURNING change")
            .on(&mut **self)
            .await?;
        let row = rows.first().ok_or_else(|| DatabaseError::new(FailureKind::Corrupt))?;
        row.try_get(0).map_err(failed)
    }

    /// Commits the change, and announces it to whoever keeps limits of `owner`.
    ///
    /// Also if the caller goes away meanwhile, and if it does not become known whether the change was
    /// made.
    pub(super) async fn commit(self, kind: Kind, owner: &str) -> Result<(), DatabaseError> {
        let owner = owner.to_owned();
        let committing = tokio::spawn(async move {
            let Self { records, mut lease } = self;
            // Delivered when the transaction is committed, and not if it is not. It says that there
            // is something to read, not what: an id may be longer than a payload.
            let notify = format!("NOTIFY {CHANNEL}; COMMIT");
            let commit = if records.inner.is_postgres { notify } else { "COMMIT".to_owned() };
            let commit = async { lease.execute(sqlx::AssertSqlSafe(commit)).await.map_err(failed) };
            let committed = within(LONGEST, commit).await;
            let listeners = records.announce(kind, &owner);
            committed?;
            lease.put_back();
            // A block made here must hold here, even if the database is lost right afterwards.
            let refreshing = listeners.iter().filter_map(|caches| caches.refresh(kind, &owner));
            let _ = tokio::time::timeout(REFRESH, join_all(refreshing)).await;
            Ok(())
        });
        committing.await.unwrap_or_else(|_| Err(DatabaseError::new(FailureKind::Unavailable)))
    }
}

impl Records {
    /// Announces a change to the caches of this process and on Redis. Returns those caches.
    fn announce(&self, kind: Kind, owner: &str) -> Vec<Arc<dyn Listener>> {
        let listeners: Vec<_> = self.listeners().iter().filter_map(Weak::upgrade).collect();
        for listener in &listeners {
            listener.changed(kind, owner);
        }
        #[cfg(feature = "redis")]
        self.publish();
        listeners
    }

    /// Announces on Redis. Nobody waits for it: who does not hear it looks for changes anyway.
    #[cfg(feature = "redis")]
    fn publish(&self) {
        let Some(client) = self.inner.redis.clone() else { return };
        tokio::spawn(async move {
            let announced = async {
                let mut connection = client.get_multiplexed_async_connection().await?;
                redis::cmd("PUBLISH").arg(CHANNEL).arg("").query_async::<()>(&mut connection).await
            };
            if let Err(why) = announced.await {
                tracing::debug!(target: "rl_records", kind = ?why.kind(), "a change is not announced on Redis");
            }
        });
    }
}

impl Deref for Edit {
    type Target = AnyConnection;

    fn deref(&self) -> &AnyConnection {
        &self.lease
    }
}

impl DerefMut for Edit {
    fn deref_mut(&mut self) -> &mut AnyConnection {
        &mut self.lease
    }
}
