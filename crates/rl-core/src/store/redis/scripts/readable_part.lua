-- One part of a request in the readable layout (see part.lua).
--
-- ARGV      periods, plan, shape and format of the part (see lib/readable_limits.lua)
--
-- Returns   the part, with the functions that evaluate and charge it
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
