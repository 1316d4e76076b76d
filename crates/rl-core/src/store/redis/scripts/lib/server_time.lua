-- The time in production: the server's clock, in µs since the epoch. It is read once for all
-- limits.
--
-- Sets  now, and linger: the time in ms that a key lives beyond its last window
--       PAGE: the largest number of blocks in a page of a log (see algorithms/sliding_log.lua)
local time = redis.call('TIME')
local now, linger, PAGE = time[1] * 1000000 + time[2], 0, 64
