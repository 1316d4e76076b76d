-- Times are whole microseconds since 1970-01-01T00:00Z, as in all crates of this project.
-- Collation "C" sorts text by its bytes in every locale, as SQLite does.

CREATE TABLE rl_records (
    rate_limiting_id TEXT COLLATE "C" PRIMARY KEY NOT NULL,
    consumer_id TEXT COLLATE "C" NOT NULL,
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
    created_by TEXT NOT NULL,
    updated_by TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    revision BIGINT NOT NULL,
    CHECK (from_date <= to_date)
);

-- For the pages of the list of records, in the order of the list.
CREATE UNIQUE INDEX rl_records_in_order ON rl_records (consumer_id, from_date, rate_limiting_id);
-- For look-ups, which read the records that are active now or later.
CREATE INDEX rl_records_active ON rl_records (consumer_id, to_date, from_date);

CREATE TABLE rl_resource_limits (
    name TEXT COLLATE "C" PRIMARY KEY NOT NULL,
    -- The names of the applications, one on each line.
    apps TEXT NOT NULL,
    max_permits BIGINT NOT NULL CHECK (max_permits BETWEEN 0 AND 9007199254740991),
    rate BIGINT NOT NULL CHECK (rate BETWEEN 0 AND 9007199254740991),
    created_by TEXT NOT NULL,
    updated_by TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    revision BIGINT NOT NULL
);

-- Every change begins by incrementing this number, which locks the row. So changes happen one after
-- the other, and their numbers have the order of their commits.
CREATE TABLE rl_changes (
    only_row BIGINT PRIMARY KEY NOT NULL CHECK (only_row = 1),
    change BIGINT NOT NULL
);
INSERT INTO rl_changes (only_row, change) VALUES (1, 0);

CREATE TABLE rl_history (
    change BIGINT PRIMARY KEY NOT NULL,
    -- 'record' or 'resource'.
    kind TEXT COLLATE "C" NOT NULL,
    -- The id of the consumer, or the name of the resource.
    owner TEXT COLLATE "C" NOT NULL,
    item TEXT COLLATE "C" NOT NULL,
    changed_at BIGINT NOT NULL,
    changed_by TEXT NOT NULL,
    -- The content as JSON, or NULL if there was none before (or is none after) the change.
    before TEXT,
    after TEXT
);

CREATE INDEX rl_history_of_owner ON rl_history (kind, owner, change);
