-- The time in tests: the caller passes it, so that tests can invent timelines. Keys live longer,
-- because real time passes while the invented time stands still.
--
-- ARGV[last]  now, in µs since the epoch
-- Sets        now, and linger: the time in ms that a key lives beyond its last window
local now, linger = tonumber(ARGV[#ARGV]), 600000
