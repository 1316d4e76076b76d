-- Gives units back, or forgets one limit.
--
-- KEYS[1]  the subject's state (see slots.lua)
-- ARGV[1]  shape (see slots.lua)
-- ARGV[2]  packed, big-endian: units to give back (7 bytes), when they were charged (7 bytes), the
--          place of a limit to forget, from 1 (1 byte, 0 for none), and the max of each limit
--          (7 bytes each)
--
-- Returns  nothing
if not stored then return false end
local units, charged, forget, next_number = struct.unpack('>I7I7B', ARGV[2])
for i, slot in ipairs(slots) do
  local max
  max, next_number = struct.unpack('>I7', ARGV[2], next_number)
  if i == forget then
    for cell = slot.at, slot.at + slot.cells - 1 do state[cell] = 0 end
  elseif units > 0 then
    local refund = algorithms[slot.kind].refund
    refund(slot.at, slot.period, max, slot.extra, slot.kind, units, charged)
  end
end
state[1] = now
save(pack_state())
return false
