-- The time in tests. The caller passes it, so that tests control the time. Keys live longer than in
-- production, because real time passes while the time of a test stands still.
--
-- ARGV[last]  now, in µs since the epoch
-- Sets        now, and linger: the time in ms that a key lives beyond its last window
--             PAGE: 16, so that logs of a few hundred entries have several pages. `rl-bench scripts`
--             sets the clock, so its scripts read four times as many pages as in production
local now, linger, PAGE = tonumber(ARGV[#ARGV]), 600000, 16
