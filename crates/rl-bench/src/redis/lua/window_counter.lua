-- A sliding window counter in its usual form: a counter for each of two windows on the client's
-- clock.
--
-- KEYS  the counters of this window and of the one before
-- ARGV  max, ms of the window, the client's time in ms
--
-- Returns  1 and the units that are left, or 0 and the ms until this window ends
local max, period = tonumber(ARGV[1]), tonumber(ARGV[2])
local since = ARGV[3] % period
local counts = redis.call('MGET', KEYS[1], KEYS[2])
local count, before = tonumber(counts[1] or 0), tonumber(counts[2] or 0)
local used = count + math.floor(before * (period - since) / period)
if used >= max then return { 0, period - since } end
if redis.call('INCR', KEYS[1]) == 1 then redis.call('PEXPIRE', KEYS[1], 2 * period) end
return { 1, max - used - 1 }
