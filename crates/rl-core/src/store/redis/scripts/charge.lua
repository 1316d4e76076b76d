-- Reads and settles the charge of one subject. This file is the last piece of the function
-- `read_charge`, which scripts/mod.rs puts together and settle.lua calls.
--
-- ARGV      shape, plan and format. The plan:
--             7 bytes  the time of the charge
--             7 bytes  the time at which the leases of permits began
--             for each limit, 7 bytes each: the units to refund, and the further units to charge
--             and for each limit its constants (7 bytes each)
--
-- Returns   the charge, with the function that settles it
local charged, leased = struct.unpack('>I7I7', plan)
read_constants(15 + 14 * #slots)
local adds = false
for i, slot in ipairs(slots) do
  slot.refunded, slot.added = struct.unpack('>I7I7', plan, 14 * i + 1)
  adds = adds or slot.added > 0
end
-- The charge would need too many states. The error comes before any write. If a state of another
-- policy were dropped instead, a client could reset its limits.
if adds and #foreign > 16 then
  return redis.error_reply('RLFULL states of other policies still count for this subject')
end
local charge = {}

function charge.settle()
  if not stored and not adds then return end
  for _, slot in ipairs(slots) do
    local since = slot.kind == 9 and leased or charged
    -- A charge later than `now` is not refunded. `now` is never before the last change of the
    -- stored state, so this state does not contain the charge: the clock has stepped back, and the
    -- state with the charge was lost or reset.
    if stored and slot.refunded > 0 and since <= now then
      algorithms[slot.kind]('refund', slot, slot.refunded, since)
    end
    if slot.added > 0 then algorithms[slot.kind]('charge', slot, slot.added) end
  end
  save()
end

return charge
