-- Settles the charges of several subjects in one step.
--
-- KEYS      for each subject, its keys (see lib/slots.lua or lib/readable_counters.lua)
-- ARGV[1]   a byte for each subject: the number of its keys
-- ARGV[2…]  for each subject, the three arguments of lib/arguments.lua in the packed layout, or
--           periods and plan in the readable layout (two)
--
-- Returns   nothing
--
-- `read_charge` reads and checks one subject. All subjects are read before the first one is
-- written, because a script is not rolled back.
local counts, charges, first = ARGV[1], {}, 1
for p = 1, #counts do
  local last_key = first + string.byte(counts, p) - 1
  local before = 1 + (p - 1) * ARGUMENTS_OF_CHARGE
  local arguments = { unpack(ARGV, before + 1, before + ARGUMENTS_OF_CHARGE) }
  -- In tests, the last argument is the time (see lib/manual_time.lua).
  arguments[#arguments + 1] = ARGV[#ARGV]
  local charge = read_charge({ unpack(KEYS, first, last_key) }, arguments, server_time)
  if charge.err then return charge end
  charges[p], first = charge, last_key + 1
end
for _, charge in ipairs(charges) do charge.settle() end
return false
