-- A counter. A limiter with several counters calls this script once for each of them.
--
-- KEYS[1]  the counter    ARGV  the units, the lifetime of a new counter in seconds
local count = redis.call('INCRBY', KEYS[1], ARGV[1])
if count == tonumber(ARGV[1]) then redis.call('EXPIRE', KEYS[1], ARGV[2]) end
return count
