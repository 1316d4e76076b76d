-- Resets all limits of the subject, whatever is stored.
--
-- KEYS, ARGV  see amend.lua; the plan is the single byte 3 (the operation)
--
-- A refund names a charge by its time. With a manual clock, a reset may come in the microsecond of
-- the last charge. In this case an empty state is stored briefly, only to hold the time of the last
-- change. The next charge then gets a later time, and a refund of the last charge cannot find it.
if string.byte(ARGV[2]) == 3 then
  local found = redis.pcall('GET', KEYS[1])
  -- UNLINK frees the memory of long logs in the background: DEL would block the server for a
  -- millisecond. An expiry of 0 is not used, so that only users with the permission to unlink can
  -- reset.
  redis.call('UNLINK', unpack(KEYS))
  if type(found) ~= 'string' or string.byte(found, 1) ~= 6 then return false end
  local at, code = 4, string.byte(found, 3) or 0
  for _ = 129, code do
    -- Skip a tag (see slots.lua).
    local head = string.byte(found, at) or 0
    local algorithm = math.floor(head % 128 / 16)
    at = at + 1 + (head >= 128 and 6 or 0) + (algorithm == 3 and 6 or algorithm == 7 and 1 or 0)
  end
  local last = #found >= at + 6 and struct.unpack('>I7', found, at) or 0
  if last >= now and last - now < 1000 then
    local size = struct.size(ARGV[3]) - #ARGV[1] - 7
    local emptied = ARGV[1] .. struct.pack('>I7', last + 1) .. string.rep('\0', size)
    redis.call('SET', KEYS[1], emptied, 'PX', 1 + linger)
  end
  return false
end
