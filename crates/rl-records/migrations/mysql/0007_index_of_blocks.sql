-- For the list of active blocks, which would read all records otherwise. The statement can be
-- repeated: see the first file.
SET @is_there = (SELECT COUNT(*) FROM information_schema.statistics WHERE table_schema = DATABASE()
    AND table_name = 'rl_records' AND index_name = 'rl_records_blocking');
SET @step = IF(@is_there, 'DO 0',
    'CREATE INDEX rl_records_blocking ON rl_records (blocks, to_date, rate_limiting_id)');
PREPARE step FROM @step;
EXECUTE step;
DEALLOCATE PREPARE step;
