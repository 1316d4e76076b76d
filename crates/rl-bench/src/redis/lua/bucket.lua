-- A token bucket in its usual form: a hash with its tokens and the time of its last refill.
--
-- KEYS[1]  the bucket    ARGV  max, units of a refill, ms between two refills
--
-- Returns  1 and the tokens that are left, or 0 and the ms until the next refill
local max, units, pause = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local bucket = redis.call('HMGET', KEYS[1], 'tokens', 'time')
local tokens, since = tonumber(bucket[1]) or max, tonumber(bucket[2]) or now
local refills = math.floor((now - since) / pause)
tokens, since = math.min(max, tokens + refills * units), since + refills * pause
if tokens < 1 then return { 0, since + pause - now } end
redis.call('HSET', KEYS[1], 'tokens', tokens - 1, 'time', since)
redis.call('PEXPIRE', KEYS[1], math.ceil((max - tokens + 1) / units) * pause)
return { 1, tokens - 1 }
