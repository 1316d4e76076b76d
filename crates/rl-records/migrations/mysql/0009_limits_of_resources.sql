-- Resources have any limits, like records and tiers, in place of the two numbers of a token bucket.
-- A bucket without a capacity blocks like any limit of 0. Every statement can be repeated: see the
-- first file. The old columns are dropped last, so while they exist, the limits are converted again.
SET @is_new = (SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = DATABASE()
    AND table_name = 'rl_resource_limits' AND column_name = 'limits');
SET @step = IF(@is_new, 'DO 0', 'ALTER TABLE rl_resource_limits ADD COLUMN limits TEXT NOT NULL');
PREPARE step FROM @step;
EXECUTE step;
SET @is_old = (SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = DATABASE()
    AND table_name = 'rl_resource_limits' AND column_name = 'max_permits');
SET @step = IF(@is_old, 'UPDATE rl_resource_limits SET limits = CASE WHEN max_permits = 0 THEN ''0/second''
    ELSE rate || ''/second:token-bucket:capacity='' || max_permits END', 'DO 0');
PREPARE step FROM @step;
EXECUTE step;
SET @step = IF(@is_old, 'ALTER TABLE rl_resource_limits DROP COLUMN max_permits, DROP COLUMN rate', 'DO 0');
PREPARE step FROM @step;
EXECUTE step;
DEALLOCATE PREPARE step;
