-- Gives units back in the readable layout, in windows that were open when they were charged.
--
-- KEYS, ARGV[1]  see readable_counters.lua
-- ARGV[2]        packed, big-endian: units, and when they were charged in µs (7 bytes each)
--
-- Returns        nothing
local units, charged = struct.unpack('>I7I7', ARGV[2])
for i = 1, count do
  local ends = (math.floor(now / 1000) + ttl[i]) * 1000
  if ttl[i] > 0 and ends - periods[i] * 1000 <= charged and charged < ends then
    redis.call('INCRBY', KEYS[i], string.format('%.0f', -math.min(units, used[i])))
  end
end
return false
