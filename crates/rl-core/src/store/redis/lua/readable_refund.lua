-- Gives units back in the readable layout, in windows that were open when they were charged.
--
-- KEYS     one counter for each limit (see readable.lua)
-- ARGV[1]  packed, big-endian: units (7 bytes), when they were charged in µs (7 bytes), and for
--          each limit period ms (7 bytes)
--
-- Returns  nothing
local count = #KEYS
local plan = { struct.unpack('>I7I7' .. string.rep('I7', count), ARGV[1]) }
for i = 1, count do
  local value, ttl = redis.call('GET', KEYS[i]), redis.call('PTTL', KEYS[i])
  if value and not string.find(value, '^%d+$') then
    return redis.error_reply('RLCORRUPT a counter holds no number')
  end
  local ends = (math.floor(now / 1000) + ttl) * 1000
  if value and ttl > 0 and ends - plan[i + 2] * 1000 <= plan[2] and plan[2] < ends then
    local back = math.min(plan[1], tonumber(value))
    redis.call('INCRBY', KEYS[i], string.format('%.0f', -back))
  end
end
return false
