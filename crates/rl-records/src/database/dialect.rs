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
            Self::Sqlite => "COMMIT".to_owned(),
            // The notification does not contain the owner, because an id may exceed the size limit
            // of a payload.
            Self::Postgres => format!("NOTIFY {channel}; COMMIT"),
            Self::MySql => "COMMIT; SET SESSION wait_timeout = DEFAULT".to_owned(),
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

    /// Returns the condition that the id of the subject contains a text, regardless of the case of
    /// ASCII letters, and the value of its placeholder.
    pub(super) fn search(self, text: &str) -> (&'static str, String) {
        match self {
            // On SQLite, LIKE ignores the case of ASCII letters, and takes half the time of
            // `lower`.
            Self::Sqlite => (" AND subject_id LIKE ? ESCAPE '!'", like(text)),
            Self::Postgres => (" AND lower(subject_id) LIKE ? ESCAPE '!'", like(text)),
            // Here `lower` changes all letters, and a collation that ignores the case ignores more
            // than that of ASCII letters.
            Self::MySql => (" AND subject_id REGEXP ?", regular_expression(text)),
        }
    }
}

/// Returns the pattern of LIKE that matches what contains `text`, in lower case.
fn like(text: &str) -> String {
    let pattern = ['!', '%', '_'].iter().fold(text.to_ascii_lowercase(), |text, special| {
        text.replace(*special, &format!("!{special}"))
    });
    format!("%{pattern}%")
}

/// Returns the regular expression that matches what contains `text`. MariaDB (PCRE) and MySQL (ICU)
/// read it in the same way.
fn regular_expression(text: &str) -> String {
    let mut pattern = String::with_capacity(4 * text.len());
    for char in text.chars() {
        if char.is_ascii_alphabetic() {
            pattern.extend(['[', char.to_ascii_lowercase(), char.to_ascii_uppercase(), ']']);
            continue;
        }
        if r"\^$.|?*+()[]{}".contains(char) {
            pattern.push('\\');
        }
        pattern.push(char);
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_characters_of_a_search_match_themselves() {
        assert_eq!(like("aB!%_c"), "%ab!!!%!_c%");
        assert_eq!(regular_expression(r"aB.*[é]\"), r"[aA][bB]\.\*\[é\]\\");
    }
}
