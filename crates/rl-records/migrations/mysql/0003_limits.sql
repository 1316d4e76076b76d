-- Every statement can be repeated: see the first file. MySQL cannot add or drop a column only if it
-- is missing or exists, so each step is prepared from a text, which is `DO 0` if the step was taken.

-- Records hold any limits, of any subject, under a rule or under every rule. Limits are text in a
-- list that is separated by commas, ordered by their periods. The rule is NULL if the record applies
-- under every rule.
SET @is_new = (SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = DATABASE()
    AND table_name = 'rl_records' AND column_name = 'limits');
SET @step = IF(@is_new, 'DO 0', 'ALTER TABLE rl_records
    CHANGE consumer_id subject_id VARCHAR(250) NOT NULL,
    ADD COLUMN realm VARCHAR(32) NOT NULL DEFAULT ''consumer'',
    ADD COLUMN rule VARCHAR(64),
    ADD COLUMN limits TEXT NOT NULL,
    DROP INDEX rl_records_in_order, DROP INDEX rl_records_active,
    ADD UNIQUE INDEX rl_records_in_order (realm, subject_id, from_date, rate_limiting_id),
    ADD INDEX rl_records_active (realm, subject_id, to_date, from_date)');
PREPARE step FROM @step;
EXECUTE step;
SET @is_new = (SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = DATABASE()
    AND table_name = 'rl_tiers' AND column_name = 'limits');
SET @step = IF(@is_new, 'DO 0', 'ALTER TABLE rl_tiers ADD COLUMN limits TEXT NOT NULL');
PREPARE step FROM @step;
EXECUTE step;

-- The old columns are dropped last, so while they exist, the limits are converted again.
SET @limits = 'substr(
    CASE WHEN per_second_call_limit < 0 THEN '''' ELSE '', '' || per_second_call_limit || ''/second'' END ||
    CASE WHEN per_minute_call_limit < 0 THEN '''' ELSE '', '' || per_minute_call_limit || ''/minute'' END ||
    CASE WHEN per_hour_call_limit < 0 THEN '''' ELSE '', '' || per_hour_call_limit || ''/hour'' END ||
    CASE WHEN per_day_call_limit < 0 THEN '''' ELSE '', '' || per_day_call_limit || ''/day'' END ||
    CASE WHEN per_week_call_limit < 0 THEN '''' ELSE '', '' || per_week_call_limit || ''/week'' END ||
    CASE WHEN per_month_call_limit < 0 THEN '''' ELSE '', '' || per_month_call_limit || ''/month'' END, 3)';
SET @is_old = (SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = DATABASE()
    AND table_name = 'rl_records' AND column_name = 'per_second_call_limit');
SET @step = IF(@is_old, CONCAT('UPDATE rl_records SET limits = ', @limits), 'DO 0');
PREPARE step FROM @step;
EXECUTE step;
SET @step = IF(@is_old, 'ALTER TABLE rl_records
    DROP COLUMN per_second_call_limit, DROP COLUMN per_minute_call_limit, DROP COLUMN per_hour_call_limit,
    DROP COLUMN per_day_call_limit, DROP COLUMN per_week_call_limit, DROP COLUMN per_month_call_limit', 'DO 0');
PREPARE step FROM @step;
EXECUTE step;
SET @is_old = (SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = DATABASE()
    AND table_name = 'rl_tiers' AND column_name = 'per_second_call_limit');
SET @step = IF(@is_old, CONCAT('UPDATE rl_tiers SET limits = ', @limits), 'DO 0');
PREPARE step FROM @step;
EXECUTE step;
SET @step = IF(@is_old, 'ALTER TABLE rl_tiers
    DROP COLUMN per_second_call_limit, DROP COLUMN per_minute_call_limit, DROP COLUMN per_hour_call_limit,
    DROP COLUMN per_day_call_limit, DROP COLUMN per_week_call_limit, DROP COLUMN per_month_call_limit', 'DO 0');
PREPARE step FROM @step;
EXECUTE step;
DEALLOCATE PREPARE step;
