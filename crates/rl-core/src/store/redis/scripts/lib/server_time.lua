-- The time in production: the server's clock, in µs since the epoch. It is read once for all
-- limits.
--
-- Sets  now, and linger: the time in ms that a key lives beyond its last window
--       PAGE: the largest number of blocks in a page of a log (see algorithms/sliding_log.lua)
local time = redis.call('TIME')
local now, linger, PAGE = time[1] * 1000000 + time[2], 0, 64

--@ windows
-- The windows of the readable layout in production: the server ends them together with their keys.
--
-- Local variables are faster to read than global ones.
local KEYS, call = KEYS, redis.call
local function ttl_of(i) return call('PTTL', KEYS[i]) end
local function open_window(i, units, period, ...) return call('SET', KEYS[i], units, 'PX', period, ...) end
local function end_window_in(i, period) call('PEXPIRE', KEYS[i], period) end
