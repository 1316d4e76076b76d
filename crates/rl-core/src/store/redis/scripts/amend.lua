-- Gives units back, renews permits, or forgets one limit. (lib/forget.lua forgets all limits.)
--
-- KEYS[1]   the subject's state (see lib/slots.lua)
-- KEYS[2…]  the entries of each log of the policy, in its order (see algorithms/sliding_log.lua)
-- ARGV[1]   shape (see lib/slots.lua)
-- ARGV[2]   plan, packed, big-endian: the operation (1 byte: 0 give back, 1 renew, 2 forget), the
--           time of the charge (7 bytes), and for each limit units (0 if the limit is left alone)
--           and max (7 bytes each)
-- ARGV[3]   format (see lib/slots.lua)
--
-- Returns   for a renewal, the time from which the units count (7 bytes), or nothing if the permit
--           is lost; otherwise nothing
if not stored then return false end
local last = state[1]
local operation, charged, next_number = struct.unpack('>BI7', ARGV[2])
for _, slot in ipairs(slots) do
  slot.units, slot.max, next_number = struct.unpack('>I7I7', ARGV[2], next_number)
  -- Check all permits before one is changed: they are renewed together or not at all.
  if operation == 1 and slot.units > 0 then
    slot.units = algorithms[slot.kind].held(slot.at, slot.extra, slot.units, charged)
    if slot.units == 0 then return false end
  end
end
for _, slot in ipairs(slots) do
  local algorithm = algorithms[slot.kind]
  if slot.units > 0 and operation == 2 then
    for cell = slot.at, slot.at + slot.cells - 1 do state[cell] = 0 end
    if algorithm.forget then algorithm.forget(slot.extra) end
  elseif slot.units > 0 and charged <= now then
    -- A charge in the future belongs to a state that was lost before the clock stepped back.
    algorithm.refund(slot.at, slot.period, slot.max, slot.extra, slot.kind, slot.units, charged)
    if operation == 1 then
      algorithm.charge(slot.at, slot.period, slot.max, slot.extra, slot.kind, slot.units)
    end
  end
end
-- A refund of a charge in this microsecond must not find the new state, so the next charge is
-- later.
if operation == 2 and last == now then now = now + 1 end
state[1] = now
save(pack_state())
return operation == 1 and struct.pack('>I7', now)
