-- Decides for all limits of one subject in the readable layout: charges all of them or none.
--
-- KEYS, ARGV  see lib/readable_counters.lua and lib/readable_limits.lua
--
-- Sets        granted: the granted units
local available, granted = available_units(), 0
if mode == 3 or mode < 2 and cost <= available then
  granted = cost
elseif mode == 1 then
  granted = available
end
charge_limits(granted)
