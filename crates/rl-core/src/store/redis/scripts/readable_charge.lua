-- The charge of one subject in the readable layout (see charge.lua).
--
-- ARGV      periods and plan. The plan:
--             7 bytes  the time of the charge
--             for each limit, 7 bytes each: the units to refund, and the further units to charge
--
-- Returns   the charge, with the function that settles it
local plan = { struct.unpack('>I7' .. string.rep('I7I7', count), ARGV[2]) }
local charged, charge = plan[1], {}

function charge.settle()
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

return charge
