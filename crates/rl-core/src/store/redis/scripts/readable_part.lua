-- One part of a request in the readable layout (see part.lua).
--
-- ARGV      periods, plan, shape and format of the part, as those of readable.lua
--
-- Returns   the part, with the functions that judge and charge it
local plan = { struct.unpack('>BI2I2I7' .. string.rep('I7', count), ARGV[2]) }
local mode, shadow, requests, cost = plan[1], plan[2], plan[3], plan[4]
local function has(set, place) return math.floor(set / 2 ^ (place - 1)) % 2 == 1 end
local available_of, healed, uncharged, charged = {}, 0, 0, 0
local part = { cost = cost, mode = mode }

-- Returns the units that all enforced limits grant.
function part.available()
  local available = MAX_UNITS + 1
  for i = 1, count do
    available_of[i] = plan[i + 4] - used[i]
    -- For a limit that counts requests, a request of any cost is one unit.
    if has(requests, i) and available_of[i] > 0 then available_of[i] = MAX_UNITS + 1 end
    if not has(shadow, i) then available = math.min(available, available_of[i]) end
  end
  return math.max(available, 0)
end

-- Charges the granted units.
function part.charge(granted)
  charged = granted
  for i = 1, count do
    if has(shadow, i) and mode ~= 3 and available_of[i] < granted then
      uncharged = uncharged + 2 ^ (i - 1)
    elseif granted > 0 then
      local units = math.min(has(requests, i) and 1 or granted, MAX_UNITS - used[i])
      if ttl[i] > 0 then
        redis.call('INCRBY', KEYS[i], string.format('%.0f', units))
      else
        open_window(i, string.format('%.0f', units), periods[i])
        ttl[i] = periods[i]
      end
      used[i] = used[i] + units
    end
    if unbounded[i] and mode ~= 2 and cost > 0 then
      end_window_in(i, periods[i])
      healed = healed + 1
    end
  end
end

-- Returns the reply of the part. The time is read after all charges, otherwise a charge could seem
-- older than the window that it opened.
function part.reply(now)
  local cells = {}
  for i = 1, count do
    cells[2 * i - 1] = ttl[i] > 0 and ttl[i] * 1000 - now % 1000 or 0
    cells[2 * i] = ttl[i] > 0 and used[i] or 0
  end
  return struct.pack('>BI2I7', healed, uncharged, charged)
    .. struct.pack(ARGV[4], ARGV[3], now, unpack(cells))
end

return part
