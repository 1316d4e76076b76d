-- Every statement can be repeated: see the first file.

-- The subscriptions of consumers to tiers. They are never deleted. A subscription that is active,
-- past due or suspended owns one row of rl_records. The tier of a cancelled one may be gone.
CREATE TABLE IF NOT EXISTS rl_subscriptions (
    subscription_id VARCHAR(36) NOT NULL PRIMARY KEY,
    consumer_id VARCHAR(250) NOT NULL,
    tier VARCHAR(250) NOT NULL,
    -- 'requested', 'active', 'past_due', 'suspended' or 'cancelled'.
    status VARCHAR(16) NOT NULL,
    from_date BIGINT NOT NULL CHECK (from_date >= 0),
    -- NULL if the subscription has no end.
    to_date BIGINT,
    record_id VARCHAR(36),
    created_by TEXT NOT NULL,
    updated_by TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    revision BIGINT NOT NULL,
    CHECK (to_date IS NULL OR from_date <= to_date),
    UNIQUE INDEX rl_subscriptions_record (record_id),
    -- For the lists by consumer, by tier and by status, each in the order of the list.
    INDEX rl_subscriptions_of_consumer (consumer_id, subscription_id),
    INDEX rl_subscriptions_of_tier (tier, subscription_id),
    INDEX rl_subscriptions_by_status (status, subscription_id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4
    /*!80017 COLLATE utf8mb4_0900_bin */ /*M!100203 COLLATE utf8mb4_nopad_bin */;
