-- Resets all limits of several subjects.
--
-- KEYS      for each subject, its keys (see lib/slots.lua)
-- ARGV[1]   a byte for each subject: the number of its keys
-- ARGV[2…]  for each subject, the three arguments of lib/forget.lua
--
-- Returns   nothing
--
-- `forget` runs lib/forget.lua for one subject.
local counts, first = ARGV[1], 1
for p = 1, #counts do
  local last_key = first + string.byte(counts, p) - 1
  forget({ unpack(KEYS, first, last_key) }, { unpack(ARGV, 3 * p - 1, 3 * p + 1) })
  first = last_key + 1
end
return false
