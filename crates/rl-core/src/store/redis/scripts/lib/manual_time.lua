-- The time in tests. The caller passes it, so that tests control the time. Keys live longer than in
-- production, because real time passes while the time of a test stands still.
--
-- ARGV[last]  now, in µs since the epoch, and PAGE, separated by a space
-- Sets        now, and linger: the time in ms that a key lives beyond its last window
--             PAGE: the largest number of blocks in a page of a log (see algorithms/sliding_log.lua)
local now, PAGE = string.match(ARGV[#ARGV], '(%d+) (%d+)')
local linger = 600000
now, PAGE = tonumber(now), tonumber(PAGE)
