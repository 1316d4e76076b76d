-- For the list of active blocks, which would read all records otherwise.
CREATE INDEX rl_records_blocking ON rl_records (to_date, rate_limiting_id) WHERE blocks = 1;
