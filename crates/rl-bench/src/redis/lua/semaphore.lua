-- A semaphore in its usual form: a sorted set with a member for each holder, scored by the time in
-- ms at which its lease ends. A holder removes its member when it releases its permit.
--
-- KEYS[1]  the holders    ARGV  max, ms of a lease, the id of the holder
--
-- Returns  1 and the permits that are left, or 0
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, now)
local used = redis.call('ZCARD', KEYS[1])
if used >= tonumber(ARGV[1]) then return { 0 } end
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return { 1, ARGV[1] - used - 1 }
