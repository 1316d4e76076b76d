-- The calls of subjects under each rule, added up for each day and for each month in UTC. `day` is
-- the number of days since 1970-01-01; in months, it is that of the first day. `subject_id` is
-- empty in the row of all subjects that have no row of their own, and `rule` under a limiter
-- without rules.
CREATE TABLE rl_usage_days (
    realm TEXT NOT NULL,
    subject_id TEXT NOT NULL,
    day BIGINT NOT NULL,
    rule TEXT NOT NULL,
    allowed BIGINT NOT NULL,
    denied BIGINT NOT NULL,
    -- The allowed calls that a rule or a limit in shadow would have denied.
    would_be_denied BIGINT NOT NULL,
    -- The charged units without the refunded ones. Negative if units of the day before were
    -- refunded.
    units BIGINT NOT NULL,
    -- For the days of a subject. The realm is not the first column: SQLite would then read all rows
    -- of the realm for a range of days.
    PRIMARY KEY (subject_id, realm, day, rule)
);

-- For the days of all subjects, and to delete old days.
CREATE INDEX rl_usage_days_in_order ON rl_usage_days (realm, day, subject_id, rule);

-- Months have one row for each subject and rule, so that a list of all subjects reads few rows.
CREATE TABLE rl_usage_months (
    day BIGINT NOT NULL,
    realm TEXT NOT NULL,
    subject_id TEXT NOT NULL,
    rule TEXT NOT NULL,
    allowed BIGINT NOT NULL,
    denied BIGINT NOT NULL,
    would_be_denied BIGINT NOT NULL,
    units BIGINT NOT NULL,
    PRIMARY KEY (day, realm, subject_id, rule)
);

-- The last write of each process. A write whose result is unknown is repeated with its number, and
-- so added once.
CREATE TABLE rl_usage_writers (
    writer TEXT PRIMARY KEY NOT NULL,
    last_write BIGINT NOT NULL,
    day BIGINT NOT NULL
);
