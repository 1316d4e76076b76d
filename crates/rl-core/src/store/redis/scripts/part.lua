-- One part of a request: its limits, judged and charged apart from the other parts. This file is
-- the end of the body of the function that reads a part (see parts.lua).
--
-- ARGV      shape, plan and format of the part. The plan is that of decide.lua, for one call
--
-- Returns   the part, with the functions that judge and charge it
local mode, shadow, requests, cost, _, _, next_number = struct.unpack('>BI2I2I7I2I2', plan)
read_constants(next_number + 2)
for i, slot in ipairs(slots) do
  slot.in_shadow = floor(shadow / 2 ^ (i - 1)) % 2 == 1
  slot.counts_requests = floor(requests / 2 ^ (i - 1)) % 2 == 1
end
-- Keys expire by the time of the server, even if the decision is made for a later time.
clock = server_time
local part = { cost = cost, mode = mode, now = now, is_full = #foreign > 16 }

-- Returns the units that all enforced limits grant.
function part.available()
  local available = MAX_UNITS + 1
  for _, slot in ipairs(slots) do
    slot.available = max_of(0, algorithms[slot.kind]('available', slot))
    -- For a limit that counts requests, a request of any cost is one unit.
    if slot.counts_requests and slot.available > 0 then slot.available = MAX_UNITS + 1 end
    if not slot.in_shadow then available = min(available, slot.available) end
  end
  return available
end

-- Charges the granted units. The units that a denied limit lacks are computed for `required` units.
-- Returns the reply of the part.
function part.charge(granted, required)
  local uncharged, healed = 0, 0
  for i, slot in ipairs(slots) do
    slot.required = slot.counts_requests and min(required, 1) or required
    if slot.in_shadow and mode ~= 3 and slot.available < granted then
      slot.required, uncharged = slot.counts_requests and 1 or granted, uncharged + 2 ^ (i - 1)
    elseif granted > 0 then
      slot.is_charged = true
      algorithms[slot.kind]('charge', slot, slot.counts_requests and 1 or granted)
    end
  end
  local states = reply_states()
  if granted > 0 then
    save()
  elseif stored and mode ~= 2 and cost > 0 and redis.call('PTTL', KEYS[1]) == -1 then
    -- Another client removed the expiry. Without one the key would stay for ever.
    redis.call('PEXPIRE', KEYS[1], lifetime())
    healed = 1
  end
  for _, slot in ipairs(slots) do
    if slot.kind > 7 and not slot.is_charged and mode ~= 2 and cost > 0 and sliding_log.heal(slot) then
      healed = healed + 1
    end
  end
  return struct.pack('>BI2I7', healed, uncharged, granted) .. states
end

return part
