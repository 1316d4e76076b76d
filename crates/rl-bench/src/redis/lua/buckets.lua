-- A sliding window of buckets in its usual form: a hash with a counter for each bucket.
--
-- KEYS[1]  the hash    ARGV  max, ms of the window, ms of a bucket
--
-- Returns  1 and the units that are left, or 0 and the ms until the next bucket begins
local max, period, width = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local current = math.floor(now / width)
local counts = redis.call('HGETALL', KEYS[1])
local used = 0
for i = 1, #counts, 2 do
  if current - counts[i] < period / width then
    used = used + counts[i + 1]
  else
    redis.call('HDEL', KEYS[1], counts[i])
  end
end
if used >= max then return { 0, (current + 1) * width - now } end
redis.call('HINCRBY', KEYS[1], current, 1)
redis.call('PEXPIRE', KEYS[1], period)
return { 1, max - used - 1 }
