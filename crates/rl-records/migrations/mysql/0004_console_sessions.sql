-- Every statement can be repeated: see the first file.

-- The sessions of the console, which all of its instances share. The rows contain no ids of
-- sessions, only their digests.
CREATE TABLE IF NOT EXISTS rl_console_sessions (
    digest VARCHAR(64) NOT NULL PRIMARY KEY,
    -- The actor, in JSON, with up to a thousand names of applications.
    actor MEDIUMTEXT NOT NULL,
    began_at BIGINT NOT NULL,
    used_at BIGINT NOT NULL,
    -- For the session that has been idle the longest.
    INDEX rl_console_sessions_by_use (used_at, digest)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4
    /*!80017 COLLATE utf8mb4_0900_bin */ /*M!100203 COLLATE utf8mb4_nopad_bin */;
