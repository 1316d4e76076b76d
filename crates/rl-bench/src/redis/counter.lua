-- One of several counters, each of which is incremented in a call of its own.
--
-- KEYS[1]  the counter    ARGV  the units, and the lifetime of a new counter in seconds
local count = redis.call('INCRBY', KEYS[1], ARGV[1])
if count == tonumber(ARGV[1]) then redis.call('EXPIRE', KEYS[1], ARGV[2]) end
return count
