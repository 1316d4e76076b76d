-- Refunds the units of expired reservations, then decides, and stores the charge as a reservation.
--
-- KEYS[last]  the reservations of the subject: a sorted set by the time at which they expire, in µs.
--             A member consists of the time of the charge (7 bytes), the units (7 bytes), the set
--             of limits that were not charged (2 bytes), and the code of the policy with its tags
--             (see slots.lua)
-- ARGV[2]     plan (see decide.lua)
-- ARGV[4]     the lifetime of the reservation that this call makes, in µs (7 bytes); 0 if it makes
--             none
--
-- Returns     the reply of decide.lua for a single call
--
-- The number of reservations that one call refunds is bounded, so that the script does not block
-- the server. The bound is lower for more limits, and lowest for logs, whose refunds move entries.
-- A peek must write nothing. A refund to a log writes its entries, so a peek skips logs.
local MOST, MOST_OF_LIMITS, MOST_OF_LOGS = 32, 64, 16
-- Whether refunds have changed the state, so that it must be stored.
local is_settled = false
local reserved_for = struct.unpack('>I7', ARGV[4])
local is_peek = string.byte(plan, 1) == 2

-- The time of a charge identifies its reservation, so two charges must not have the same time.
if reserved_for > 0 and stored and last == now then advance_to(now + 1, slots, foreign) end

do
  local by_tag, requests = {}, struct.unpack('>I2', plan, 4)
  local most, logs_of_policy = min(MOST, floor(MOST_OF_LIMITS / #slots)), 0
  read_constants(19)
  for i, slot in ipairs(slots) do
    slot.counts_requests = floor(requests / 2 ^ (i - 1)) % 2 == 1
    if slot.kind == 7 then logs_of_policy = logs_of_policy + 1 end
    by_tag[slot.tag] = slot
  end
  if logs_of_policy > 0 then most = max_of(1, min(4, floor(MOST_OF_LOGS / logs_of_policy))) end

  local due = string.format('%.0f', clock)
  local expired = redis.call('ZRANGEBYSCORE', KEYS[#KEYS], '-inf', due, 'LIMIT', 0, most)
  local is_changed = false
  -- For the code of each policy: the slots of its limits, with false for a limit that the current
  -- policy lacks. They are kept in a table, because most reservations have the same policy.
  local slots_of = {}
  for _, member in ipairs(stored and expired or {}) do
    local when, units, uncharged, from = struct.unpack('>I7I7I2', member)
    local code = string.sub(member, from)
    if not slots_of[code] then
      slots_of[code] = {}
      for i, other in ipairs(read_code('\2\1' .. code) or {}) do
        slots_of[code][i] = by_tag[other.tag] or false
      end
    end
    -- A charge later than `now` is not refunded. `now` is never before the last change of the
    -- stored state, so this state does not contain the charge: the clock has stepped back, and the
    -- state with the charge was lost or reset.
    for i, slot in ipairs(when <= now and slots_of[code] or {}) do
      -- Concurrency limits (kind 8) are not refunded here: each permit lapses by itself when the
      -- period of its limit is over.
      if slot and slot.kind < 8 and not (is_peek and slot.kind == 7)
          and floor(uncharged / 2 ^ (i - 1)) % 2 == 0 then
        algorithms[slot.kind]('refund', slot, slot.counts_requests and 1 or units, when)
        is_changed = true
      end
    end
  end
  if #expired > 0 and not is_peek then
    redis.call('ZREM', KEYS[#KEYS], (table.unpack or unpack)(expired))
    is_settled = is_changed
  end
end

local reply = (function()
  --@ decide
end)()
local uncharged, granted = 0, 0
if type(reply) == 'string' then uncharged, granted = struct.unpack('>I2I7', reply, 3) end
if granted == 0 and is_settled then
  -- decide.lua stores no state if nothing was charged, but the refunds of expired reservations must
  -- be stored.
  save()
end
if granted > 0 and reserved_for > 0 then
  local member = struct.pack('>I7I7I2', now, granted, uncharged) .. string.sub(shape, 3)
  -- The lifetime begins at the time of the charge (`now`), because the holder computes its end from
  -- that time. `now` is later than the time of the server (`clock`) if the clock has stepped back,
  -- or if the last change was in the same microsecond. A renewal starts the lifetime again at
  -- `clock` (see reservation.lua).
  redis.call('ZADD', KEYS[#KEYS], string.format('%.0f', now + reserved_for), member)
  -- The set must live as long as there are units to refund.
  local lasts = max_of(ceil(reserved_for / 1000) + linger, lifetime())
  if redis.call('PTTL', KEYS[#KEYS]) < lasts then redis.call('PEXPIRE', KEYS[#KEYS], lasts) end
end
return reply
