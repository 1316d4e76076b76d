-- One part of a request: its limits are evaluated and charged apart from those of the other parts.
-- This file is the last piece of the function `read_part`, which mod.rs puts together and
-- parts.lua calls.
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

-- Charges the granted units. If the request is denied, each log computes the time at which
-- `required` units will be available. Returns the reply of the part.
function part.charge(granted, required)
  local uncharged = charge_limits(granted, 1, required)
  local states = reply_states()
  local healed = save_or_heal(granted > 0)
  return struct.pack('>BI2I7', healed, uncharged, granted) .. states
end

return part
