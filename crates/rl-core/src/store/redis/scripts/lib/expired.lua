-- Refunds the units of expired reservations, before a decision is made.
--
-- KEYS[last]  the reservations of the subject: a sorted set by the time at which they expire, in µs.
--             A member consists of the time of the charge (7 bytes), the units (7 bytes), the set
--             of limits that were not charged (2 bytes), and the code of the policy with its tags
--             (see slots.lua)
-- ARGV[2]     plan (see decide.lua)
-- ARGV[4]     the lifetime of the reservation that this call makes, in µs (7 bytes); 0 if it makes
--             none
--
-- Sets        reserved_for: the number in ARGV[4]
--             is_settled: whether the state has changed and must be stored
--
-- The number of reservations that one call refunds is bounded, so that the script does not block
-- the server. The bound is lower for more limits, and lowest for logs, whose refunds move entries.
-- A peek must write nothing. A refund to a log writes its entries, so a peek skips logs.
local MOST, MOST_OF_LIMITS, MOST_OF_LOGS = 32, 64, 16
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
    if slot.kind == 8 then logs_of_policy = logs_of_policy + 1 end
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
      -- Concurrency limits (kind 9) are not refunded here: each permit lapses by itself when the
      -- period of its limit is over.
      if slot and slot.kind < 9 and not (is_peek and slot.kind == 8)
          and floor(uncharged / 2 ^ (i - 1)) % 2 == 0 then
        algorithms[slot.kind]('refund', slot, slot.counts_requests and 1 or units, when)
        is_changed = true
      end
    end
  end
  if #expired > 0 and not is_peek then
    redis.call('ZREM', KEYS[#KEYS], unpack(expired))
    is_settled = is_changed
  end
end
