-- Times are whole microseconds since 1970-01-01T00:00Z, as everywhere in this family of crates.
-- Text sorts by its bytes, whatever the locale of the database: as on SQLite.

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

-- Pages of the list, in their order.
CREATE UNIQUE INDEX rl_records_in_order ON rl_records (consumer_id, from_date, rate_limiting_id);
-- What is active, or will be: the question of every look-up.
CREATE INDEX rl_records_active ON rl_records (consumer_id, to_date, from_date);

CREATE TABLE rl_resource_limits (
    name TEXT COLLATE "C" PRIMARY KEY NOT NULL,
    -- One application on each line.
    apps TEXT NOT NULL,
    max_permits BIGINT NOT NULL CHECK (max_permits BETWEEN 0 AND 9007199254740991),
    rate BIGINT NOT NULL CHECK (rate BETWEEN 0 AND 9007199254740991),
    created_by TEXT NOT NULL,
    updated_by TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    revision BIGINT NOT NULL
);

-- Every change begins by counting here: changes happen one after the other, and their numbers
-- appear in the order in which they are committed.
CREATE TABLE rl_changes (
    only_row BIGINT PRIMARY KEY NOT NULL CHECK (only_row = 1),
    change BIGINT NOT NULL
);
INSERT INTO rl_changes (only_row, change) VALUES (1, 0);

CREATE TABLE rl_history (
    change BIGINT PRIMARY KEY NOT NULL,
    -- 'record' or 'resource'.
    kind TEXT COLLATE "C" NOT NULL,
    -- The consumer, or the name of the resource.
    owner TEXT COLLATE "C" NOT NULL,
    item TEXT COLLATE "C" NOT NULL,
    changed_at BIGINT NOT NULL,
    changed_by TEXT NOT NULL,
    -- As JSON; NULL is "there was none" and "there is none".
    before TEXT,
    after TEXT
);

CREATE INDEX rl_history_of_owner ON rl_history (kind, owner, change);
