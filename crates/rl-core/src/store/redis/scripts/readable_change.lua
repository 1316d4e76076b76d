-- Settles the charge of one subject in the readable layout (see change.lua). A window gets units
-- back only if it was already open when they were charged.
--
-- KEYS, ARGV[1]  see lib/readable_counters.lua
-- ARGV[2]        the plan, packed, big-endian, 7 bytes each: the time of the charge in µs, and for
--                each limit the units to refund, and the further units to charge
--
-- Sets           change: the function that settles the charge
local plan = { struct.unpack('>I7' .. string.rep('I7I7', count), ARGV[2]) }
local charged = plan[1]

local function change()
  for i = 1, count do
    local refunded, added = math.min(plan[2 * i], used[i]), plan[2 * i + 1]
    local ends = (math.floor(now / 1000) + ttl[i]) * 1000
    if refunded > 0 and ttl[i] > 0 and ends - periods[i] * 1000 <= charged and charged < ends then
      redis.call('INCRBY', KEYS[i], string.format('%.0f', -refunded))
    end
    if added > 0 then
      local units = string.format('%.0f', math.min(added, MAX_UNITS - used[i]))
      if ttl[i] > 0 then
        redis.call('INCRBY', KEYS[i], units)
        if unbounded[i] then end_window_in(i, periods[i]) end
      else
        open_window(i, units, periods[i])
      end
    end
  end
end
