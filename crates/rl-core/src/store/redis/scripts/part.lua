-- One part of a request: its limits are evaluated and charged apart from those of the other parts.
-- This file is the end of the body of the function that reads a part (see parts.lua).
--
-- ARGV      shape, plan and format of the part. The plan is that of decide.lua, for one call
--
-- Returns   the part, with the functions that evaluate and charge it

-- Keys expire by the time of the server, even if the decision is made for a later time.
clock = server_time
local part = {
  cost = cost,
  mode = mode,
  now = now,
  is_full = #foreign > 16,
  available = available_units,
}

-- Charges the granted units. The time at which a log has the units that a denied call lacks is
-- computed for `required` units. Returns the reply of the part.
function part.charge(granted, required)
  local uncharged = charge_limits(granted, 1, required)
  local states = reply_states()
  local healed = save_or_heal(granted > 0)
  return struct.pack('>BI2I7', healed, uncharged, granted) .. states
end

return part
