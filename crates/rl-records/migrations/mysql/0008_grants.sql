-- Whether the limits of the record are added to those that apply without it. The statement can be
-- repeated: see the first file.
SET @is_there = (SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = DATABASE()
    AND table_name = 'rl_records' AND column_name = 'grants');
SET @step = IF(@is_there, 'DO 0', 'ALTER TABLE rl_records
    ADD COLUMN grants BIGINT NOT NULL DEFAULT 0 CHECK (grants IN (0, 1))');
PREPARE step FROM @step;
EXECUTE step;
DEALLOCATE PREPARE step;
