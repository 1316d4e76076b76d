-- A limit under the generic cell rate algorithm in its usual form: a time stored as a string.
--
-- KEYS[1]  the stored time    ARGV  the µs between two units, and the burst in µs
--
-- Returns  1 if the request is allowed or 0, and the µs until it would be allowed
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local arrival = math.max(now, tonumber(redis.call('GET', KEYS[1]) or 0)) + ARGV[1]
local wait = arrival - ARGV[2] - now
if wait > 0 then return { 0, wait } end
redis.call('SET', KEYS[1], string.format('%.0f', arrival), 'PX', math.ceil((arrival - now) / 1000))
return { 1, 0 }
