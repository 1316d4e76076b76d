-- Rules in the form of a rule file.
CREATE TABLE rl_rules (
    name TEXT PRIMARY KEY NOT NULL,
    definition TEXT NOT NULL,
    is_shadow BIGINT NOT NULL CHECK (is_shadow IN (0, 1)),
    created_by TEXT NOT NULL,
    updated_by TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    revision BIGINT NOT NULL
);
