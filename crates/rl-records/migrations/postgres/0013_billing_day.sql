-- The day on which the months of the bill begin, 1 to 28. NULL for the first.
ALTER TABLE rl_subscriptions ADD COLUMN billing_day BIGINT;
