-- A fixed window in its usual form: a counter with an expiry. For a clock-aligned window, the
-- client puts the time at which the window begins into the name of the key.
--
-- KEYS[1]  the counter    ARGV  max, ms of the window
--
-- Returns  1 and the units that are left, or 0 and the ms until the window ends
local count = redis.call('INCR', KEYS[1])
if count == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
if count > tonumber(ARGV[1]) then return { 0, redis.call('PTTL', KEYS[1]) } end
return { 1, ARGV[1] - count }
