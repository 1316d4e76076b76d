-- Makes changes of several subjects in one step.
--
-- KEYS      for each subject, its keys (see lib/slots.lua or lib/readable_counters.lua)
-- ARGV[1]   a byte for each subject: the number of its keys
-- ARGV[2…]  for each subject, the three arguments of lib/arguments.lua in the packed layout, or
--           periods and plan in the readable layout (two)
--
-- Returns   the result of the first change (see change.lua)
--
-- `read_change` reads and checks one subject. All subjects are read before the first one is
-- written, because a script is not rolled back.
local counts, changes, first, result = ARGV[1], {}, 1, false
for p = 1, #counts do
  local last_key = first + string.byte(counts, p) - 1
  local before = 1 + (p - 1) * ARGUMENTS_OF_CHANGE
  local arguments = { (table.unpack or unpack)(ARGV, before + 1, before + ARGUMENTS_OF_CHANGE) }
  -- In tests, the last argument is the time (see lib/manual_time.lua).
  arguments[#arguments + 1] = ARGV[#ARGV]
  local change = read_change({ (table.unpack or unpack)(KEYS, first, last_key) }, arguments, server_time)
  if type(change) == 'table' then return change end
  changes[p], first = change, last_key + 1
end
for p, change in ipairs(changes) do
  local changed = change()
  if p == 1 then result = changed or false end
end
return result
