-- For MariaDB and MySQL. Times are whole microseconds since 1970-01-01T00:00Z, as in all crates of
-- this project.
--
-- These servers commit every statement that creates a table. If a start is interrupted, the next
-- start runs the file again. So every statement can be repeated.
--
-- The collation compares and sorts text by its bytes, and trailing spaces count. MySQL and MariaDB
-- have different names for it. Each of them reads only its own comment.

CREATE TABLE IF NOT EXISTS rl_records (
    rate_limiting_id VARCHAR(36) NOT NULL PRIMARY KEY,
    consumer_id VARCHAR(250) NOT NULL,
    api_name TEXT,
    api_version TEXT,
    bank_id TEXT,
    per_second_call_limit BIGINT NOT NULL CHECK (per_second_call_limit BETWEEN -1 AND 9007199254740991),
    per_minute_call_limit BIGINT NOT NULL CHECK (per_minute_call_limit BETWEEN -1 AND 9007199254740991),
    per_hour_call_limit BIGINT NOT NULL CHECK (per_hour_call_limit BETWEEN -1 AND 9007199254740991),
    per_day_call_limit BIGINT NOT NULL CHECK (per_day_call_limit BETWEEN -1 AND 9007199254740991),
    per_week_call_limit BIGINT NOT NULL CHECK (per_week_call_limit BETWEEN -1 AND 9007199254740991),
    per_month_call_limit BIGINT NOT NULL CHECK (per_month_call_limit BETWEEN -1 AND 9007199254740991),
    from_date BIGINT NOT NULL CHECK (from_date >= 0),
    to_date BIGINT NOT NULL,
    -- Whether the record blocks its consumer while it is active, whatever the other records allow.
    blocks BIGINT NOT NULL DEFAULT 0 CHECK (blocks IN (0, 1)),
    created_by TEXT NOT NULL,
    updated_by TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    revision BIGINT NOT NULL,
    CHECK (from_date <= to_date),
    -- For the pages of the list of records, in the order of the list.
    UNIQUE INDEX rl_records_in_order (consumer_id, from_date, rate_limiting_id),
    -- For look-ups, which read the records that are active now or later.
    INDEX rl_records_active (consumer_id, to_date, from_date)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4
    /*!80017 COLLATE utf8mb4_0900_bin */ /*M!100203 COLLATE utf8mb4_nopad_bin */;

CREATE TABLE IF NOT EXISTS rl_resource_limits (
    name VARCHAR(250) NOT NULL PRIMARY KEY,
    -- The names of the applications, one on each line. TEXT is too short for 1 000 of them.
    apps MEDIUMTEXT NOT NULL,
    max_permits BIGINT NOT NULL CHECK (max_permits BETWEEN 0 AND 9007199254740991),
    rate BIGINT NOT NULL CHECK (rate BETWEEN 0 AND 9007199254740991),
    created_by TEXT NOT NULL,
    updated_by TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    revision BIGINT NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4
    /*!80017 COLLATE utf8mb4_0900_bin */ /*M!100203 COLLATE utf8mb4_nopad_bin */;

-- The limits of consumers without an active record, and of keys.
CREATE TABLE IF NOT EXISTS rl_tiers (
    name VARCHAR(250) NOT NULL PRIMARY KEY,
    per_second_call_limit BIGINT NOT NULL CHECK (per_second_call_limit BETWEEN -1 AND 9007199254740991),
    per_minute_call_limit BIGINT NOT NULL CHECK (per_minute_call_limit BETWEEN -1 AND 9007199254740991),
    per_hour_call_limit BIGINT NOT NULL CHECK (per_hour_call_limit BETWEEN -1 AND 9007199254740991),
    per_day_call_limit BIGINT NOT NULL CHECK (per_day_call_limit BETWEEN -1 AND 9007199254740991),
    per_week_call_limit BIGINT NOT NULL CHECK (per_week_call_limit BETWEEN -1 AND 9007199254740991),
    per_month_call_limit BIGINT NOT NULL CHECK (per_month_call_limit BETWEEN -1 AND 9007199254740991),
    created_by TEXT NOT NULL,
    updated_by TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    -- The number of the change that wrote the row.
    revision BIGINT NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4
    /*!80017 COLLATE utf8mb4_0900_bin */ /*M!100203 COLLATE utf8mb4_nopad_bin */;

CREATE TABLE IF NOT EXISTS rl_tier_members (
    -- 'consumer' or 'key'.
    realm VARCHAR(16) NOT NULL,
    -- The id of the consumer, or the keyed hash of the key as 32 hexadecimal digits.
    id VARCHAR(250) NOT NULL,
    tier VARCHAR(250) NOT NULL,
    updated_by TEXT NOT NULL,
    updated_at BIGINT NOT NULL,
    revision BIGINT NOT NULL,
    PRIMARY KEY (realm, id),
    -- For the members of a tier, which are checked before the tier is deleted.
    INDEX rl_tier_members_of (tier, realm, id),
    FOREIGN KEY (tier) REFERENCES rl_tiers (name)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4
    /*!80017 COLLATE utf8mb4_0900_bin */ /*M!100203 COLLATE utf8mb4_nopad_bin */;

-- Every change begins by incrementing this number, which locks the row. So changes happen one after
-- the other, and their numbers have the order of their commits.
CREATE TABLE IF NOT EXISTS rl_changes (
    only_row BIGINT NOT NULL PRIMARY KEY CHECK (only_row = 1),
    "change" BIGINT NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;
INSERT IGNORE INTO rl_changes (only_row, "change") VALUES (1, 0);

CREATE TABLE IF NOT EXISTS rl_history (
    "change" BIGINT NOT NULL PRIMARY KEY,
    -- 'record', 'resource', 'tier', 'consumer' or 'key'; or 'reset', 'subject_reset' or 'refusal',
    -- which are no changes of limits.
    kind VARCHAR(16) NOT NULL,
    -- The id of the consumer, or the name of the resource or of the tier.
    owner VARCHAR(500) NOT NULL,
    item VARCHAR(500) NOT NULL,
    changed_at BIGINT NOT NULL,
    changed_by TEXT NOT NULL,
    -- The content as JSON, or NULL if there was none before (or is none after) the change.
    "before" MEDIUMTEXT,
    "after" MEDIUMTEXT,
    INDEX rl_history_of_owner (kind, owner, "change"),
    -- For all entries about one consumer, newest first.
    INDEX rl_history_by_owner (owner, "change")
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4
    /*!80017 COLLATE utf8mb4_0900_bin */ /*M!100203 COLLATE utf8mb4_nopad_bin */;
