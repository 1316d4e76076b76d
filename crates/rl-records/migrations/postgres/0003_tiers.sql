-- The limits of consumers without an active record, and of keys.
CREATE TABLE rl_tiers (
    name TEXT COLLATE "C" PRIMARY KEY NOT NULL,
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
);

CREATE TABLE rl_tier_members (
    -- 'consumer' or 'key'.
    realm TEXT COLLATE "C" NOT NULL,
    -- The id of the consumer, or the keyed hash of the key as 32 hexadecimal digits.
    id TEXT COLLATE "C" NOT NULL,
    tier TEXT COLLATE "C" NOT NULL REFERENCES rl_tiers (name),
    updated_by TEXT NOT NULL,
    updated_at BIGINT NOT NULL,
    revision BIGINT NOT NULL,
    PRIMARY KEY (realm, id)
);

-- For the members of a tier, which are checked before the tier is deleted.
CREATE INDEX rl_tier_members_of ON rl_tier_members (tier, realm, id);
