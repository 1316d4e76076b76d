-- The sessions of the console, which all of its instances share. The rows contain no ids of
-- sessions, only their digests.
CREATE TABLE rl_console_sessions (
    digest TEXT PRIMARY KEY NOT NULL,
    -- The actor, in JSON.
    actor TEXT NOT NULL,
    began_at BIGINT NOT NULL,
    used_at BIGINT NOT NULL
);

-- For the session that has been idle the longest.
CREATE INDEX rl_console_sessions_by_use ON rl_console_sessions (used_at, digest);
