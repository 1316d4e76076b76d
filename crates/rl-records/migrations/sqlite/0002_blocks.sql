-- Whether the record blocks its consumer while it is active, whatever the other records allow.
ALTER TABLE rl_records ADD COLUMN blocks BIGINT NOT NULL DEFAULT 0 CHECK (blocks IN (0, 1));
