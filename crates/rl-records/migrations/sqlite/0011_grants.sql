-- Whether the limits of the record are added to those that apply without it.
ALTER TABLE rl_records ADD COLUMN grants BIGINT NOT NULL DEFAULT 0 CHECK (grants IN (0, 1));
