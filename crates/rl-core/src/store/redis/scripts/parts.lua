-- Decides a request: charges all of its parts or none.
--
-- KEYS      for each part, the keys of its subject (see lib/slots.lua or lib/readable_counters.lua)
-- ARGV      in the packed layout, see parts_arguments.lua. In the readable layout, the flags, and
--           then for each part its periods, plan, shape and format
--
-- `flags` has a byte for each part: the number of its keys, plus 128 if the part is in shadow.
-- `arguments_of` returns the arguments of a part.
--
-- Returns   1 byte   1 if all enforced parts grant the request, else 0
--           and for each part:
--             1 byte   the number of keys that had lost their expiry
--             2 bytes  the set of limits in shadow that were not charged
--             7 bytes  the granted units
--             the states as they would be stored, and the waits of logs (see decide.lua)
--           and in the packed layout, if the server's clock has stepped back, its time (see
--           decide.lua)
--
-- `read_part` reads and checks a part. All parts are read before one is written, because a script
-- is not rolled back. If the clock has stepped back, the time of the decision is the latest time at
-- which a part was changed.
local parts, at = {}, server_time
repeat
  local first, time = 1, at
  for p = 1, #flags do
    local flag = string.byte(flags, p)
    local last_key = first + flag % 128 - 1
    local arguments = arguments_of(p)
    -- In tests, the last argument is the time (see lib/manual_time.lua).
    arguments[#arguments + 1] = ARGV[#ARGV]
    local part = read_part({ (table.unpack or unpack)(KEYS, first, last_key) }, arguments, time)
    if part.err then return part end
    part.in_shadow = flag > 127
    parts[p], first, at = part, last_key + 1, math.max(at, part.now or at)
  end
until at == time

local mode, is_allowed, common = parts[1].mode, true, 9007199254740992
for _, part in ipairs(parts) do
  part.free = part.available()
  if not part.in_shadow and mode ~= 3 and part.cost > part.free then
    -- In mode 1, each part is charged the largest number of units that all enforced parts grant. If
    -- a part grants none, or in another mode, the request is denied.
    if mode == 1 and part.free > 0 then common = math.min(common, part.free) else is_allowed = false end
  end
end
for _, part in ipairs(parts) do
  local units = math.min(part.cost, common)
  if not is_allowed or mode == 2 or part.in_shadow and mode ~= 3 and units > part.free then units = 0 end
  part.granted = units
  if units > 0 and part.is_full then
    return redis.error_reply('RLFULL states of other policies still count for this subject')
  end
end

local replies = { is_allowed and '\1' or '\0' }
for p, part in ipairs(parts) do
  local required = part.granted > 0 and 0 or part.cost
  if not is_allowed and mode == 1 then required = math.min(part.cost, 1) end
  replies[p + 1] = part.charge(part.granted, required)
end
if parts[1].now and at - server_time > 1000 then replies[#replies + 1] = struct.pack('>I7', server_time) end
