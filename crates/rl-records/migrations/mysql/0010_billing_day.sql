-- The day of the month, 1 to 28, on which calendar-month limits start. NULL means the 1st. The
-- statement can be repeated: see the first file.
SET @is_there = (SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = DATABASE()
    AND table_name = 'rl_subscriptions' AND column_name = 'billing_day');
SET @step = IF(@is_there, 'DO 0', 'ALTER TABLE rl_subscriptions ADD COLUMN billing_day BIGINT');
PREPARE step FROM @step;
EXECUTE step;
DEALLOCATE PREPARE step;
