use sqlx::AnyConnection;

/// The kind of a database: what its SQL and its transactions do differently.
///
/// All other statements are the same everywhere. They quote the columns `"change"` and `"before"`,
/// which are keywords of MySQL, and number no placeholders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    Sqlite,
    Postgres,
    /// MySQL or MariaDB.
    MySql,
}

impl Dialect {
    /// Returns the dialect of the database behind a connection.
    pub(super) fn of(connection: &AnyConnection) -> Self {
        match connection.backend_name() {
            "PostgreSQL" => Self::Postgres,
            "MySQL" => Self::MySql,
            _ => Self::Sqlite,
        }
    }

    /// Returns the name of the database, for operators.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "SQLite",
            Self::Postgres => "PostgreSQL",
            Self::MySql => "MySQL or MariaDB",
        }
    }

    /// Returns whether the database is a server, which may be starting or unreachable.
    pub(super) const fn is_server(self) -> bool {
        !matches!(self, Self::Sqlite)
    }

    /// Returns the statements that prepare a new connection.
    pub(super) const fn session(self) -> Option<&'static str> {
        match self {
            Self::Sqlite | Self::Postgres => None,
            // The defaults of a server are settings of its operator. With others than these, it
            // would cut long text, keep a look-up at an old state, or read changes that are rolled
            // back later. A lock is waited for as briefly as on PostgreSQL.
            Self::MySql => Some(
                "SET SESSION sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,NO_ENGINE_SUBSTITUTION,\
                 PIPES_AS_CONCAT,STRICT_ALL_TABLES', autocommit = 1, innodb_lock_wait_timeout = 2; \
                 SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
            ),
        }
    }

    /// Returns the statements that begin a change, and set its time limits. The server enforces
    /// them, even after this process has died, because a change that hangs delays all other
    /// changes.
    pub(super) const fn begin(self) -> &'static str {
        match self {
            // This takes the write lock immediately. If a transaction began with a read and needed
            // the lock later, it would fail instead of waiting.
            Self::Sqlite => "BEGIN IMMEDIATE",
            Self::Postgres => {
                "BEGIN; SET LOCAL lock_timeout = '2s'; \
                 SET LOCAL idle_in_transaction_session_timeout = '10s'"
            }
            // The session has the limit for locks. Both servers have this limit for an idle
            // connection; only MariaDB has one for an idle transaction.
            Self::MySql => "SET SESSION wait_timeout = 10; BEGIN",
        }
    }

    /// Returns the statements that commit a change. PostgreSQL notifies `channel`, provided that
    /// the transaction commits.
    pub(super) fn commit(self, channel: &str) -> String {
        match self {
            // The notification does not contain the owner, because an id may exceed the size limit
            // of a payload.
            Self::Postgres => format!("NOTIFY {channel}; COMMIT"),
            Self::Sqlite | Self::MySql => self.commit_unannounced().to_owned(),
        }
    }

    /// Returns the statements that commit a transaction of which no instance is notified.
    pub(super) const fn commit_unannounced(self) -> &'static str {
        match self {
            Self::Sqlite | Self::Postgres => "COMMIT",
            Self::MySql => "COMMIT; SET SESSION wait_timeout = DEFAULT",
        }
    }

    /// Returns the sums of the columns of usage, as whole numbers.
    pub(super) const fn usage_sums(self) -> &'static str {
        match self {
            Self::Sqlite | Self::Postgres => {
                "CAST(COALESCE(SUM(allowed), 0) AS BIGINT) AS allowed, \
                 CAST(COALESCE(SUM(denied), 0) AS BIGINT) AS denied, \
                 CAST(COALESCE(SUM(would_be_denied), 0) AS BIGINT) AS would_be_denied, \
                 CAST(COALESCE(SUM(units), 0) AS BIGINT) AS units"
            }
            Self::MySql => {
                "CAST(COALESCE(SUM(allowed), 0) AS SIGNED) AS allowed, \
                 CAST(COALESCE(SUM(denied), 0) AS SIGNED) AS denied, \
                 CAST(COALESCE(SUM(would_be_denied), 0) AS SIGNED) AS would_be_denied, \
                 CAST(COALESCE(SUM(units), 0) AS SIGNED) AS units"
            }
        }
    }

    /// Returns the end of a statement that inserts usage into a table called `stored`. It adds the
    /// numbers to those of an existing row. A sum of units is at most 2^53 - 1.
    pub(super) const fn add_usage(self) -> &'static str {
        match self {
            Self::Sqlite | Self::Postgres => {
                " ON CONFLICT (realm, subject_id, day, rule) DO UPDATE SET \
                 allowed = stored.allowed + excluded.allowed, \
                 denied = stored.denied + excluded.denied, \
                 would_be_denied = stored.would_be_denied + excluded.would_be_denied, \
                 units = CASE WHEN stored.units + excluded.units > 9007199254740991 \
                 THEN 9007199254740991 ELSE stored.units + excluded.units END"
            }
            Self::MySql => {
                " ON DUPLICATE KEY UPDATE allowed = allowed + VALUES(allowed), \
                 denied = denied + VALUES(denied), \
                 would_be_denied = would_be_denied + VALUES(would_be_denied), \
                 units = CASE WHEN units + VALUES(units) > 9007199254740991 \
                 THEN 9007199254740991 ELSE units + VALUES(units) END"
            }
        }
    }

    /// Returns the statement that registers a writer of usage, or writes its day. Its first
    /// placeholder is the writer, and its second the day.
    pub(super) const fn register_writer(self) -> &'static str {
        match self {
            Self::Sqlite | Self::Postgres => {
                "INSERT INTO rl_usage_writers (writer, last_write, day) VALUES (?, 0, ?) \
                 ON CONFLICT (writer) DO UPDATE SET day = excluded.day"
            }
            Self::MySql => {
                "INSERT INTO rl_usage_writers (writer, last_write, day) VALUES (?, 0, ?) \
                 ON DUPLICATE KEY UPDATE day = VALUES(day)"
            }
        }
    }

    /// Returns two statements that delete at most 1 000 rows each: days of a realm, and months. The
    /// placeholders are the realm and the first day that stays, or only that day.
    pub(super) const fn delete_usage(self) -> [&'static str; 2] {
        match self {
            Self::Sqlite => [
                "DELETE FROM rl_usage_days WHERE rowid IN \
                 (SELECT rowid FROM rl_usage_days WHERE realm = ? AND day < ? LIMIT 1000)",
                "DELETE FROM rl_usage_months WHERE rowid IN \
                 (SELECT rowid FROM rl_usage_months WHERE day < ? LIMIT 1000)",
            ],
            Self::Postgres => [
                "DELETE FROM rl_usage_days WHERE ctid = ANY (ARRAY \
                 (SELECT ctid FROM rl_usage_days WHERE realm = ? AND day < ? LIMIT 1000))",
                "DELETE FROM rl_usage_months WHERE ctid = ANY (ARRAY \
                 (SELECT ctid FROM rl_usage_months WHERE day < ? LIMIT 1000))",
            ],
            Self::MySql => [
                "DELETE FROM rl_usage_days WHERE realm = ? AND day < ? LIMIT 1000",
                "DELETE FROM rl_usage_months WHERE day < ? LIMIT 1000",
            ],
        }
    }

    /// Adds the placeholder of the value with this number, counted from 1.
    pub(super) fn push_placeholder(self, text: &mut String, number: usize) {
        match self {
            Self::Sqlite | Self::MySql => text.push('?'),
            Self::Postgres => {
                text.push('$');
                text.push_str(&number.to_string());
            }
        }
    }
}
