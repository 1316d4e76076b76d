-- Decides for all limits of one subject in the readable layout: charges all of them or none.
--
-- KEYS, ARGV[1]  see lib/readable_counters.lua
-- ARGV[2]        packed, big-endian:
--                  1 byte   mode: 0 check, 1 check up to, 2 peek, 3 charge
--                  2 bytes  the set of limits in shadow: the first limit is the lowest bit
--                  2 bytes  the set of limits that count requests
--                  7 bytes  the cost
--                  7 bytes  for each limit, its max
--
-- Sets           granted: the granted units
--                healed: the number of counters whose wrong expiry was replaced
--                uncharged: the set of limits in shadow that were not charged, because they would
--                  have denied the request
--                used, ttl: for each counter, its value and its remaining time after the decision
local plan = { struct.unpack('>BI2I2I7' .. string.rep('I7', count), ARGV[2]) }
local mode, shadow, requests, cost = plan[1], plan[2], plan[3], plan[4]
local function has(set, place) return math.floor(set / 2 ^ (place - 1)) % 2 == 1 end

local available_of, in_shadow, counts_requests, available = {}, {}, {}, MAX_UNITS + 1
for i = 1, count do
  available_of[i] = plan[i + 4] - used[i]
  in_shadow[i], counts_requests[i] = has(shadow, i), has(requests, i)
  -- For a limit that counts requests, a request of any cost is one unit.
  if counts_requests[i] and available_of[i] > 0 then available_of[i] = MAX_UNITS + 1 end
  if not in_shadow[i] then available = math.min(available, available_of[i]) end
end
available = math.max(available, 0)

local granted = 0
if mode == 3 or mode < 2 and cost <= available then
  granted = cost
elseif mode == 1 then
  granted = available
end

local healed, uncharged = 0, 0
for i = 1, count do
  if in_shadow[i] and mode ~= 3 and available_of[i] < granted then
    uncharged = uncharged + 2 ^ (i - 1)
  elseif granted > 0 then
    local units = math.min(counts_requests[i] and 1 or granted, MAX_UNITS - used[i])
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
