-- Gives units back, renews leases, or forgets one limit. (forget.lua handles a plan that forgets all
-- limits.)
--
-- KEYS[1]   the subject's state (see slots.lua)
-- KEYS[2…]  the ring of each log of the policy, in its order (see sliding_log.lua)
-- ARGV[1]   shape (see slots.lua)
-- ARGV[2]   plan, packed, big-endian: what to do (1 byte: 0 give back, 1 renew, 2 forget), when the
--           units were charged (7 bytes), and for each limit units (0 if it is not meant) and max (7
--           bytes each)
-- ARGV[3]   format (see slots.lua)
--
-- Returns   of a renewal, the time from which the units count (7 bytes); else nothing, as of a
--           permit that is lost
if not stored then return false end
local last = state[1]
local task, charged, next_number = struct.unpack('>BI7', ARGV[2])
for _, slot in ipairs(slots) do
  slot.units, slot.max, next_number = struct.unpack('>I7I7', ARGV[2], next_number)
  -- All leases are looked at before one is changed.
  if task == 1 and slot.units > 0 then
    slot.units = algorithms[slot.kind].held(slot.at, slot.extra, slot.units, charged)
    if slot.units == 0 then return false end
  end
end
for _, slot in ipairs(slots) do
  local algorithm = algorithms[slot.kind]
  if slot.units > 0 and task == 2 then
    for cell = slot.at, slot.at + slot.cells - 1 do state[cell] = 0 end
    if algorithm.forget then algorithm.forget(slot.extra) end
  elseif slot.units > 0 and charged <= now then
    -- A later charge belongs to a state that was lost before the clock stepped back.
    algorithm.refund(slot.at, slot.period, slot.max, slot.extra, slot.kind, slot.units, charged)
    if task == 1 then
      algorithm.charge(slot.at, slot.period, slot.max, slot.extra, slot.kind, slot.units)
    end
  end
end
-- Charges of this same microsecond do not belong to the new state, so the next charge is later.
if task == 2 and last == now then now = now + 1 end
state[1] = now
save(pack_state())
return task == 1 and struct.pack('>I7', now)
