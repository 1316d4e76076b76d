-- Changes the counts of one subject outside a decision: settles its charge, renews its permits, or
-- resets one of its limits. (reset.lua resets all limits.) In settle.lua, this file is the last
-- piece of the function `read_change`.
--
-- KEYS      see lib/slots.lua
-- ARGV      see lib/arguments.lua. The plan:
--             1 byte   operation: 0 settle, 1 renew, 2 reset
--             7 bytes  the time of the charge
--             7 bytes  the time at which the leases of permits began
--             for each limit, 7 bytes each: the units to refund, and the further units to charge.
--             A renewal and a reset change the limits with units to refund
--             and for each limit its constants (7 bytes each)
--
-- Sets      change: the function that makes the change. A renewal returns 7 bytes, the time from
--           which the units count, or nothing if a permit is lost. Other operations return nothing
local operation, charged, leased = struct.unpack('>BI7I7', plan)
read_constants(16 + 14 * #slots)
local adds, is_lost = false, false
for i, slot in ipairs(slots) do
  slot.refunded, slot.added = struct.unpack('>I7I7', plan, 14 * i + 2)
  adds = adds or slot.added > 0
  -- All permits are checked before the first one is changed: they are renewed together or not at
  -- all.
  if operation == 1 and slot.refunded > 0 then
    slot.refunded = slot.kind > 6 and sliding_log.held(slot, slot.refunded, leased) or 0
    slot.renewed, is_lost = slot.refunded, is_lost or slot.refunded == 0
  end
end
-- The charge would need too many states. The error comes before any write. If a state of another
-- policy were dropped instead, a client could reset its limits.
if adds and #foreign > 16 then
  return redis.error_reply('RLFULL states of other policies still count for this subject')
end

local function change()
  if is_lost or not stored and not adds then return false end
  for _, slot in ipairs(slots) do
    local algorithm, since = algorithms[slot.kind], slot.kind == 8 and leased or charged
    if operation == 2 and slot.refunded > 0 then
      clear(slot)
      if slot.kind > 6 then sliding_log.forget(slot) end
    -- A charge later than `now` is not refunded. `now` is never before the last change of the
    -- stored state, so this state does not contain the charge: the clock has stepped back, and the
    -- state with the charge was lost or reset.
    elseif stored and slot.refunded > 0 and since <= now then
      algorithm('refund', slot, slot.refunded, since)
    end
    if slot.renewed then algorithm('charge', slot, slot.renewed) end
    if slot.added > 0 then algorithm('charge', slot, slot.added) end
  end
  -- A refund identifies its charge by the time. If a charge before the reset and a charge after it
  -- had the same time, a refund of the first would reduce the second. So the next charge gets a
  -- later time.
  if operation == 2 and last == now then advance_to(now + 1, slots, foreign) end
  save()
  return operation == 1 and struct.pack('>I7', now)
end
