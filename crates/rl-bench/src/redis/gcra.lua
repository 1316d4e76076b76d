-- One limit by the generic cell rate algorithm the usual way: a time in a string.
--
-- KEYS[1]  the time    ARGV  µs between two units, µs of burst
--
-- Returns  1 or 0, and µs until one would pass
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local arrival = math.max(now, tonumber(redis.call('GET', KEYS[1]) or 0)) + ARGV[1]
local wait = arrival - ARGV[2] - now
if wait > 0 then return { 0, wait } end
redis.call('SET', KEYS[1], string.format('%.0f', arrival), 'PX', math.ceil((arrival - now) / 1000))
return { 1, 0 }
