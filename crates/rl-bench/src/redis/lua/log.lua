-- A sliding log in its usual form: a sorted set with a member for each request, scored by its time
-- in µs.
--
-- KEYS[1]  the log    ARGV  max, ms of the window
--
-- Returns  1 and the units that are left, or 0
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, string.format('%.0f', now - ARGV[2] * 1000))
local used = redis.call('ZCARD', KEYS[1])
if used >= tonumber(ARGV[1]) then return { 0 } end
now = string.format('%.0f', now)
redis.call('ZADD', KEYS[1], now, now)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return { 1, ARGV[1] - used - 1 }
