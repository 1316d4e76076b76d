-- Refunds units, renews permits, or resets one limit. (reset.lua resets all limits.)
--
-- KEYS      see lib/slots.lua
-- ARGV      see lib/arguments.lua. The plan:
--             1 byte   operation: 0 refund, 1 renew, 2 reset
--             7 bytes  the time of the charge
--             7 bytes  for each limit, its units; 0 leaves the limit unchanged
--             and for each limit its constants (7 bytes each)
--
-- Returns   for a renewal: 7 bytes, the time from which the units count; nothing if the permit is
--           lost
--           for another operation: nothing
if not stored then return false end
local operation, charged = struct.unpack('>BI7', plan)
read_constants(9 + 7 * #slots)
for i, slot in ipairs(slots) do
  slot.units = struct.unpack('>I7', plan, 7 * i + 2)
  -- All permits are checked before the first one is changed: they are renewed together or not at
  -- all.
  if operation == 1 and slot.units > 0 then
    slot.units = slot.kind > 7 and sliding_log.held(slot, slot.units, charged) or 0
    if slot.units == 0 then return false end
  end
end
for _, slot in ipairs(slots) do
  local algorithm = algorithms[slot.kind]
  if slot.units > 0 and operation == 2 then
    clear(slot)
    if slot.kind > 7 then sliding_log.forget(slot) end
  -- A charge later than `now` is not refunded. `now` is never before the last change of the stored
  -- state, so this state does not contain such a charge: the clock has stepped back, and the state
  -- with the charge was lost or reset.
  elseif slot.units > 0 and charged <= now then
    algorithm('refund', slot, slot.units, charged)
    if operation == 1 then algorithm('charge', slot, slot.units) end
  end
end
-- A refund identifies its charge by the time. If a charge before the reset and a charge after it
-- had the same time, a refund of the first would reduce the second. So the next charge gets a later
-- time.
if operation == 2 and last == now then advance_to(now + 1, slots, foreign) end
save()
return operation == 1 and struct.pack('>I7', now)
