-- The script of six_keys.lua, which also returns the server's time. Without the time, a client does
-- not know when the windows end.
--
-- KEYS  one counter for each limit
-- ARGV  the max of each limit, then the period of each limit in ms
--
-- Returns  1 if the request is allowed or 0, for each limit its count and the ms until its window ends, and
--          the time in µs
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
local time = redis.call('TIME')
reply[2 * count + 2] = time[1] * 1000000 + time[2]
return reply
