-- The subscriptions of consumers to tiers. They are never deleted. A subscription that is active,
-- past due or suspended owns one row of rl_records. The tier of a cancelled one may be gone.
CREATE TABLE rl_subscriptions (
    subscription_id TEXT COLLATE "C" PRIMARY KEY NOT NULL,
    consumer_id TEXT COLLATE "C" NOT NULL,
    tier TEXT COLLATE "C" NOT NULL,
    -- 'requested', 'active', 'past_due', 'suspended' or 'cancelled'.
    status TEXT COLLATE "C" NOT NULL,
    from_date BIGINT NOT NULL CHECK (from_date >= 0),
    -- NULL if the subscription has no end.
    to_date BIGINT,
    record_id TEXT COLLATE "C" UNIQUE,
    created_by TEXT NOT NULL,
    updated_by TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    revision BIGINT NOT NULL,
    CHECK (to_date IS NULL OR from_date <= to_date)
);

-- For the lists by consumer, by tier and by status, each in the order of the list.
CREATE INDEX rl_subscriptions_of_consumer ON rl_subscriptions (consumer_id, subscription_id);
CREATE INDEX rl_subscriptions_of_tier ON rl_subscriptions (tier, subscription_id);
CREATE INDEX rl_subscriptions_by_status ON rl_subscriptions (status, subscription_id);
