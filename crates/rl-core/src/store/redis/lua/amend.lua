-- Gives units back, or forgets one limit.
--
-- KEYS[1]  the subject's state (see slots.lua)
-- ARGV[1]  shape (see slots.lua)
-- ARGV[2]  packed, big-endian: units to give back (7 bytes), when they were charged (7 bytes), the
--          place of a limit to forget, from 1 (1 byte, 0 for none), and for each limit grid
--          (1 byte) and period µs (7 bytes)
--
-- Returns  nothing
local plan = { struct.unpack('>I7I7B' .. string.rep('BI7', count), ARGV[2]) }
local units, charged, forget = plan[1], plan[2], plan[3]
if not stored then return false end

local expires = 0
for i = 1, count do
  local since, used = state[2 * i], state[2 * i + 1]
  local ends = window_end(since, used, plan[2 + 2 * i], plan[3 + 2 * i])
  if i == forget then
    state[2 * i], state[2 * i + 1] = 0, 0
  else
    if since <= charged and charged < ends then
      state[2 * i + 1] = math.max(0, used - units)
    end
    expires = math.max(expires, ends)
  end
end
state[1] = now
save(pack_state(), expires)
return false
