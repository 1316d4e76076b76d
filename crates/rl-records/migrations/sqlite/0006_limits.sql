-- Records hold any limits, of any subject, under a rule or under every rule. Limits are text in a
-- list that is separated by commas, ordered by their periods.
ALTER TABLE rl_records ADD COLUMN realm TEXT NOT NULL DEFAULT 'consumer';
-- NULL if the record applies under every rule.
ALTER TABLE rl_records ADD COLUMN rule TEXT;
ALTER TABLE rl_records ADD COLUMN limits TEXT NOT NULL DEFAULT '';
ALTER TABLE rl_tiers ADD COLUMN limits TEXT NOT NULL DEFAULT '';

UPDATE rl_records SET limits = substr(
    CASE WHEN per_second_call_limit < 0 THEN '' ELSE ', ' || per_second_call_limit || '/second' END ||
    CASE WHEN per_minute_call_limit < 0 THEN '' ELSE ', ' || per_minute_call_limit || '/minute' END ||
    CASE WHEN per_hour_call_limit < 0 THEN '' ELSE ', ' || per_hour_call_limit || '/hour' END ||
    CASE WHEN per_day_call_limit < 0 THEN '' ELSE ', ' || per_day_call_limit || '/day' END ||
    CASE WHEN per_week_call_limit < 0 THEN '' ELSE ', ' || per_week_call_limit || '/week' END ||
    CASE WHEN per_month_call_limit < 0 THEN '' ELSE ', ' || per_month_call_limit || '/month' END, 3);
UPDATE rl_tiers SET limits = substr(
    CASE WHEN per_second_call_limit < 0 THEN '' ELSE ', ' || per_second_call_limit || '/second' END ||
    CASE WHEN per_minute_call_limit < 0 THEN '' ELSE ', ' || per_minute_call_limit || '/minute' END ||
    CASE WHEN per_hour_call_limit < 0 THEN '' ELSE ', ' || per_hour_call_limit || '/hour' END ||
    CASE WHEN per_day_call_limit < 0 THEN '' ELSE ', ' || per_day_call_limit || '/day' END ||
    CASE WHEN per_week_call_limit < 0 THEN '' ELSE ', ' || per_week_call_limit || '/week' END ||
    CASE WHEN per_month_call_limit < 0 THEN '' ELSE ', ' || per_month_call_limit || '/month' END, 3);

ALTER TABLE rl_records DROP COLUMN per_second_call_limit;
ALTER TABLE rl_records DROP COLUMN per_minute_call_limit;
ALTER TABLE rl_records DROP COLUMN per_hour_call_limit;
ALTER TABLE rl_records DROP COLUMN per_day_call_limit;
ALTER TABLE rl_records DROP COLUMN per_week_call_limit;
ALTER TABLE rl_records DROP COLUMN per_month_call_limit;
ALTER TABLE rl_tiers DROP COLUMN per_second_call_limit;
ALTER TABLE rl_tiers DROP COLUMN per_minute_call_limit;
ALTER TABLE rl_tiers DROP COLUMN per_hour_call_limit;
ALTER TABLE rl_tiers DROP COLUMN per_day_call_limit;
ALTER TABLE rl_tiers DROP COLUMN per_week_call_limit;
ALTER TABLE rl_tiers DROP COLUMN per_month_call_limit;

ALTER TABLE rl_records RENAME COLUMN consumer_id TO subject_id;
DROP INDEX rl_records_in_order;
DROP INDEX rl_records_active;
-- For the pages of the list of records, in the order of the list.
CREATE UNIQUE INDEX rl_records_in_order ON rl_records (realm, subject_id, from_date, rate_limiting_id);
-- For look-ups, which read the records that are active now or later.
CREATE INDEX rl_records_active ON rl_records (realm, subject_id, to_date, from_date);
