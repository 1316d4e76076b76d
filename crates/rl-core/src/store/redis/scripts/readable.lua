-- Decides a cost for all limits of one subject in the readable layout: charges all or none.
--
-- KEYS, ARGV[1]  see readable_counters.lua
-- ARGV[2]        packed, big-endian: mode (1 byte: 0 check, 1 check up to, 2 peek, 3 charge), cost
--                (7 bytes), a bit for each limit in shadow, that of the first is 1 (2 bytes), the same
--                for limits that count requests (2 bytes), and the max of each limit (7 bytes each)
--
-- Sets           taken, healed, uncharged, and used and ttl as they are afterwards
local plan = { struct.unpack('>BI7I2I2' .. string.rep('I7', count), ARGV[2]) }
local mode, cost, shadow, requests = plan[1], plan[2], plan[3], plan[4]
local function has(set, place) return math.floor(set / 2 ^ (place - 1)) % 2 == 1 end

local left, in_shadow, is_one, available = {}, {}, {}, MAX_UNITS + 1
for i = 1, count do
  left[i] = plan[i + 4] - used[i]
  in_shadow[i], is_one[i] = has(shadow, i), has(requests, i)
  -- A request is one unit, whatever it costs.
  if is_one[i] and left[i] > 0 then left[i] = MAX_UNITS + 1 end
  if not in_shadow[i] then available = math.min(available, left[i]) end
end
available = math.max(available, 0)

local taken = 0
if mode == 3 or mode < 2 and cost <= available then
  taken = cost
elseif mode == 1 then
  taken = available
end

local healed, uncharged = 0, 0
for i = 1, count do
  if in_shadow[i] and mode ~= 3 and left[i] < taken then
    uncharged = uncharged + 2 ^ (i - 1)
  elseif taken > 0 then
    local units = math.min(is_one[i] and 1 or taken, MAX_UNITS - used[i])
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
