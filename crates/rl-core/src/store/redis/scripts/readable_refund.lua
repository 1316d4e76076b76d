-- Refunds units in the readable layout. A window gets units back only if it was already open when
-- they were charged.
--
-- KEYS, ARGV[1]  see lib/readable_counters.lua
-- ARGV[2]        packed, big-endian: the time of the charge in µs, and the units of each limit
--                (7 bytes each)
--
-- Returns        nothing
local plan = { struct.unpack('>I7' .. string.rep('I7', count), ARGV[2]) }
local charged = plan[1]
for i = 1, count do
  local units = math.min(plan[i + 1], used[i])
  local ends = (math.floor(now / 1000) + ttl[i]) * 1000
  if units > 0 and ttl[i] > 0 and ends - periods[i] * 1000 <= charged and charged < ends then
    redis.call('INCRBY', KEYS[i], string.format('%.0f', -units))
  end
end
return false
