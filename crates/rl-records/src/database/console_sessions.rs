use std::sync::Arc;

use rl_core::time::Timestamp;

use super::handle::Database;
use super::row::{micros, text, time};
use super::statement::Sql;
use crate::error::DatabaseError;

/// The sessions of a console, by the digests of their ids. All instances of the console share them.
#[derive(Clone, Copy, Debug)]
pub struct ConsoleSessions<'a> {
    database: &'a Arc<Database>,
}

/// A stored session.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConsoleSession {
    /// The actor, in the form that the console chose.
    pub actor: String,
    /// The time of the login.
    pub began: Timestamp,
    /// The time of the last click that was stored.
    pub used: Timestamp,
}

impl ConsoleSession {
    /// Creates the session of an actor.
    #[must_use]
    pub const fn new(actor: String, began: Timestamp, used: Timestamp) -> Self {
        Self { actor, began, used }
    }
}

impl<'a> ConsoleSessions<'a> {
    pub(super) const fn new(database: &'a Arc<Database>) -> Self {
        Self { database }
    }

    /// Returns the session with this digest.
    ///
    /// # Errors
    ///
    /// Returns an error if the database fails.
    pub async fn find(self, digest: &str) -> Result<Option<ConsoleSession>, DatabaseError> {
        let find = "SELECT actor, began_at, used_at FROM rl_console_sessions WHERE digest = ?";
        let rows = Sql::with(find, [digest.into()]).on(&self.database.reads).await?;
        let session = |row| {
            let actor = text(row, "actor")?;
            Ok(ConsoleSession::new(actor, time(row, "began_at")?, time(row, "used_at")?))
        };
        rows.first().map(session).transpose()
    }

    /// Stores a session. Then removes the sessions that have been idle the longest until there are
    /// at most `max`, and all that were used before `idle_since` or began before `oldest`.
    ///
    /// # Errors
    ///
    /// Returns an error if the database fails. The session may have been stored.
    pub async fn begin(
        self,
        digest: &str,
        session: &ConsoleSession,
        max: u32,
        idle_since: Timestamp,
        oldest: Timestamp,
    ) -> Result<(), DatabaseError> {
        let insert = "INSERT INTO rl_console_sessions (digest, actor, began_at, used_at) VALUES (?, ?, ?, ?)";
        let times = [session.began, session.used].map(|time| micros(time).into());
        let [began, used] = times;
        let edits = &self.database.edits;
        Sql::with(insert, [digest.into(), (&*session.actor).into(), began, used]).on(edits).await?;
        let ended = "DELETE FROM rl_console_sessions WHERE used_at < ? OR began_at < ?";
        let times = [idle_since, oldest].map(|time| micros(time).into());
        Sql::with(ended, times).on(edits).await?;
        // The inner query has a name, because MySQL otherwise neither reads the table that the
        // statement changes, nor accepts LIMIT within IN.
        let idlest = "DELETE FROM rl_console_sessions WHERE digest IN (SELECT digest FROM \
                      (SELECT digest FROM rl_console_sessions ORDER BY used_at DESC, digest \
                      LIMIT 1000 OFFSET ?) AS idlest)";
        Sql::with(idlest, [i64::from(max).into()]).on(edits).await?;
        Ok(())
    }

    /// Stores the time of a click, unless a later one is stored.
    ///
    /// # Errors
    ///
    /// Returns an error if the database fails.
    pub async fn note_use(self, digest: &str, used: Timestamp) -> Result<(), DatabaseError> {
        let update = "UPDATE rl_console_sessions SET used_at = ? WHERE digest = ? AND used_at < ?";
        let used = micros(used);
        let values = [used.into(), digest.into(), used.into()];
        Sql::with(update, values).on(&self.database.edits).await?;
        Ok(())
    }

    /// Removes the session with this digest.
    ///
    /// # Errors
    ///
    /// Returns an error if the database fails.
    pub async fn end(self, digest: &str) -> Result<(), DatabaseError> {
        let delete = "DELETE FROM rl_console_sessions WHERE digest = ?";
        Sql::with(delete, [digest.into()]).on(&self.database.edits).await?;
        Ok(())
    }
}
