-- Resources have any limits, like records and tiers, in place of the two numbers of a token bucket.
-- A bucket without a capacity blocks like any limit of 0.
ALTER TABLE rl_resource_limits ADD COLUMN limits TEXT NOT NULL DEFAULT '';
UPDATE rl_resource_limits SET limits = CASE WHEN max_permits = 0 THEN '0/second'
    ELSE rate || '/second:token-bucket:capacity=' || max_permits END;
ALTER TABLE rl_resource_limits DROP COLUMN max_permits;
ALTER TABLE rl_resource_limits DROP COLUMN rate;
