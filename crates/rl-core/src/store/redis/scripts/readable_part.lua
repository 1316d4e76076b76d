-- One part of a request in the readable layout (see part.lua): evaluates and charges the counters
-- of its subject.
--
-- ARGV[1]  periods (see lib/readable_counters.lua)
-- ARGV[2]  the plan, packed, big-endian:
--            1 byte   mode: 0 check, 1 check up to, 2 peek, 3 charge
--            2 bytes  the set of limits in shadow: the first limit is the lowest bit
--            2 bytes  the set of limits that count requests
--            7 bytes  the cost
--            7 bytes  for each limit, its max
-- ARGV[3]  shape
-- ARGV[4]  format, the form of the reply (see lib/arguments.lua)
--
-- Sets     mode, cost
--          healed: the number of counters whose wrong expiry was replaced
--          uncharged: the set of limits in shadow that were not charged, because they would have
--            denied the request
--
-- Returns  the part, with the functions that evaluate and charge it
local plan = { struct.unpack('>BI2I2I7' .. string.rep('I7', count), ARGV[2]) }
local mode, shadow, requests, cost = plan[1], plan[2], plan[3], plan[4]
local function has(set, place) return math.floor(set / 2 ^ (place - 1)) % 2 == 1 end
local available_of, healed, uncharged = {}, 0, 0

-- Returns how many units every enforced limit can grant.
local function available_units()
  local available = MAX_UNITS + 1
  for i = 1, count do
    available_of[i] = plan[i + 4] - used[i]
    -- For a limit that counts requests, a request of any cost is one unit.
    if has(requests, i) and available_of[i] > 0 then available_of[i] = MAX_UNITS + 1 end
    if not has(shadow, i) then available = math.min(available, available_of[i]) end
  end
  return math.max(available, 0)
end

-- Charges the granted units, and replaces wrong expiries.
local function charge_limits(granted)
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

-- Returns the states in the form of the packed layout. `now` must be read after all charges.
-- Otherwise a charge could seem older than the window that it opened.
local function reply_states(now)
  local cells = {}
  for i = 1, count do
    cells[2 * i - 1] = ttl[i] > 0 and ttl[i] * 1000 - now % 1000 or 0
    cells[2 * i] = ttl[i] > 0 and used[i] or 0
  end
  return struct.pack(ARGV[4], ARGV[3], now, (table.unpack or unpack)(cells))
end

local part = { cost = cost, mode = mode, available = available_units }
local charged = 0

-- Charges the granted units.
function part.charge(granted)
  charged = granted
  charge_limits(granted)
end

-- Returns the reply of the part.
function part.reply(now)
  return struct.pack('>BI2I7', healed, uncharged, charged) .. reply_states(now)
end

return part
