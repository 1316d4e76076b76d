-- Rules in the form of a rule file.
CREATE TABLE IF NOT EXISTS rl_rules (
    name VARCHAR(64) PRIMARY KEY NOT NULL,
    definition TEXT NOT NULL,
    is_shadow BIGINT NOT NULL CHECK (is_shadow IN (0, 1)),
    created_by TEXT NOT NULL,
    updated_by TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    revision BIGINT NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4
    /*!80017 COLLATE utf8mb4_0900_bin */ /*M!100203 COLLATE utf8mb4_nopad_bin */;
