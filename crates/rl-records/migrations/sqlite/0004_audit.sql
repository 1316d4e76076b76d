-- The history also contains resets of counters and refused requests, of the kinds 'reset',
-- 'subject_reset' and 'refusal'. This index lists all entries about one consumer, newest first.
CREATE INDEX rl_history_by_owner ON rl_history (owner, change);
