-- Evaluates and charges the limits of one subject, for decide.lua and part.lua.
--
-- ARGV  see lib/arguments.lua. The plan is that of decide.lua
--
-- Sets  mode, cost, times, least: the numbers of the plan
--       in each slot: max, in_shadow, counts_requests
local mode, shadow, requests, times, least, cost, next_number = struct.unpack('>BI2I2I2I2I7', plan)
-- The two bytes at `next_number` are the length of a stored state. The constants come after them.
read_constants(next_number + 2)
local function has(set, place) return floor(set / 2 ^ (place - 1)) % 2 == 1 end
for i, slot in ipairs(slots) do
  slot.in_shadow, slot.counts_requests = has(shadow, i), has(requests, i)
end

-- Returns two numbers: how many units every enforced limit can grant, and how many calls of this
-- cost every limit can grant, including those in shadow.
local function available_units()
  local available, calls = MAX_UNITS + 1, times
  for _, slot in ipairs(slots) do
    slot.available = max_of(0, algorithms[slot.kind]('available', slot))
    calls = min(calls, floor(slot.available / (slot.counts_requests and 1 or max_of(cost, 1))))
    -- For a limit that counts requests, a request of any cost is one unit.
    if slot.counts_requests and slot.available > 0 then slot.available = MAX_UNITS + 1 end
    if not slot.in_shadow then available = min(available, slot.available) end
  end
  return available, calls
end

-- Charges the granted units of `calls` calls. For a denied call, each log computes the time at
-- which `required` units will be available. Returns the set of limits in shadow that were not
-- charged.
local function charge_limits(granted, calls, required)
  local uncharged = 0
  for i, slot in ipairs(slots) do
    slot.required = slot.counts_requests and min(required, 1) or required
    if slot.in_shadow and mode ~= 3 and slot.available < granted then
      slot.required, uncharged = slot.counts_requests and 1 or granted, uncharged + 2 ^ (i - 1)
    elseif granted > 0 then
      slot.is_charged = true
      algorithms[slot.kind]('charge', slot, slot.counts_requests and calls or granted)
    end
  end
  return uncharged
end

-- Stores the states if a call was granted. Gives a new expiry to keys that are not written and have
-- lost theirs. Returns the number of these keys.
local function save_or_heal(any_granted)
  local healed = 0
  if any_granted then
    save()
  elseif stored and mode ~= 2 and cost > 0 and redis.call('PTTL', KEYS[1]) == -1 then
    -- Another client removed the expiry. Without one the key would stay for ever.
    redis.call('PEXPIRE', KEYS[1], lifetime())
    healed = 1
  end
  for _, slot in ipairs(slots) do
    if slot.kind > 6 and not slot.is_charged and mode ~= 2 and cost > 0 and sliding_log.heal(slot) then
      healed = healed + 1
    end
  end
  return healed
end
