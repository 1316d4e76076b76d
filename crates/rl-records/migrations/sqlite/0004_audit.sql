-- The history also keeps resets of counters and refused requests: kinds 'reset', 'subject_reset' and
-- 'refusal'. This is the list of everything about one consumer, newest first.
CREATE INDEX rl_history_by_owner ON rl_history (owner, change);
