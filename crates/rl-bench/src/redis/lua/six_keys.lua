-- Six fixed windows in the usual form: a counter with an expiry for each period.
--
-- KEYS  one counter for each limit
-- ARGV  the max of each limit, then the period of each limit in ms
--
-- Its callers add a line that returns `reply`: 1 if the request is allowed or 0, and for each limit
-- its count and the ms until its window ends
local count = #KEYS
local reply = { 1 }
local counts = redis.call('MGET', unpack(KEYS))
for i = 1, count do
  counts[i] = tonumber(counts[i] or 0)
  if counts[i] + 1 > tonumber(ARGV[i]) then reply[1] = 0 end
end
if reply[1] == 1 then
  for i = 1, count do
    counts[i] = redis.call('INCR', KEYS[i])
    if counts[i] == 1 then redis.call('PEXPIRE', KEYS[i], ARGV[count + i]) end
  end
end
for i = 1, count do
  reply[2 * i] = counts[i]
  reply[2 * i + 1] = redis.call('PTTL', KEYS[i])
end
