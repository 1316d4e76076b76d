-- One of several counters, each in a call of its own.
--
-- KEYS[1]  the counter    ARGV  units, seconds that a new counter lives
local count = redis.call('INCRBY', KEYS[1], ARGV[1])
if count == tonumber(ARGV[1]) then redis.call('EXPIRE', KEYS[1], ARGV[2]) end
return count
