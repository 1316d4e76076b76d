-- Resets all limits of several subjects, whatever is stored.
--
-- KEYS      for each subject, its keys (see lib/slots.lua)
-- ARGV[1]   a byte for each subject: the number of its keys
-- ARGV[2…]  for each subject, the shape and the format (see lib/arguments.lua)
--
-- Returns   nothing
--
-- A refund names a charge by its time. With a manual clock, a reset may come in the microsecond of
-- the last charge. In this case an empty state is stored briefly, only to hold the time of the last
-- change. The next charge then gets a later time, and a refund of the last charge cannot find it.
local counts, first = ARGV[1], 1
for p = 1, #counts do
  local last_key = first + string.byte(counts, p) - 1
  local shape, format = ARGV[2 * p], ARGV[2 * p + 1]
  local found = redis.pcall('GET', KEYS[first])
  -- UNLINK frees the memory of long logs in the background: DEL would block the server for a
  -- millisecond. An expiry of 0 is not used, so that only users with the permission to unlink can
  -- reset.
  redis.call('UNLINK', (table.unpack or unpack)(KEYS, first, last_key))
  if type(found) == 'string' and string.byte(found, 1) == 6 then
    local at, code = 4, string.byte(found, 3) or 0
    for _ = 129, code do
      -- Skip a tag (see slots.lua).
      local head = string.byte(found, at) or 0
      local algorithm = math.floor(head % 128 / 16)
      at = at + 1 + (head >= 128 and 6 or 0)
      if algorithm == 3 then at = at + 6 end
      if algorithm == 7 then at = at + (string.byte(found, at) == 2 and 7 or 1) end
    end
    local last = #found >= at + 6 and struct.unpack('>I7', found, at) or 0
    if last >= now and last - now < 1000 then
      local size = struct.size(format) - #shape - 7
      local emptied = shape .. struct.pack('>I7', last + 1) .. string.rep('\0', size)
      redis.call('SET', KEYS[first], emptied, 'PX', 1 + linger)
    end
  end
  first = last_key + 1
end
return false
