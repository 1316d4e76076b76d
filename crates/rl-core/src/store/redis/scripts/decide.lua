-- Decides a cost for all limits of one subject: charges all or none.
--
-- KEYS[1]   the subject's state (see slots.lua)
-- KEYS[2…]  the ring of each log of the policy, in its order (see sliding_log.lua)
-- ARGV[1]   shape (see slots.lua)
-- ARGV[2]   plan, packed, big-endian: mode (1 byte: 0 check, 1 check up to, 2 peek, 3 charge);
--           1 byte: the number of limits, if all are fixed windows that begin with the first request,
--           else 0; cost (7 bytes); how many calls of this cost it is, that came one after the other (2
--           bytes), or 0; if all are such windows, how long a state of this shape is (2 bytes), else a
--           bit for each limit in shadow, that of the first is 1 (2 bytes), and the same for limits that
--           count requests (2 bytes); and for each limit, 7 bytes each, period µs and max if all are
--           such windows, else max and capacity (the burst, where there is one)
-- ARGV[3]   format (see slots.lua)
-- ARGV[4]   if the number of calls is 0: the cost of each (7 bytes)
--
-- Returns   of several calls of one cost under fixed windows: 2 (1 byte), healed (1 byte), how many of
--           them pass, the first of them (2 bytes), the time of the decision (7 bytes), and the cells of
--           each limit afterwards (7 bytes each). Else: 0 (1 byte), healed (1 byte), and for each call: a
--           bit for each limit in shadow that
--           would have denied what was granted, and is not charged (2 bytes), units taken (7 bytes),
--           the time of the decision (7 bytes), and the cells of each limit afterwards, of a log what
--           is told of it (7 bytes each); calls beyond the last that is told were denied as that was
--
-- Without logs at most three commands: TIME, GET, and SET, or on a denial PTTL; a fourth, PEXPIRE,
-- only for a key that has lost its expiry, and a second GET after decide_fixed.lua could not decide. A
-- denial changes no state.
local mode, all_fixed = string.byte(ARGV[2], 1, 2)
local cost, times, next_number = struct.unpack('>I7I2', ARGV[2], 3)
local costs
if times == 0 then
  times = #ARGV[4] / 7
  costs = { struct.unpack('>' .. string.rep('I7', times), ARGV[4]) }
end
local shadow, requests = 0, 0
if all_fixed == 0 then
  shadow, requests, next_number = struct.unpack('>I2I2', ARGV[2], next_number)
else
  next_number = next_number + 2
end
local function has(set, place) return floor(set / 2 ^ (place - 1)) % 2 == 1 end
for i, slot in ipairs(slots) do
  if all_fixed > 0 then
    slot.max, next_number = struct.unpack('>I7', ARGV[2], next_number + 7)
  else
    local max, capacity, after = struct.unpack('>I7I7', ARGV[2], next_number)
    slot.max, next_number = max, after
    -- A capacity is no part of the tag: it may change, and the state goes on.
    if slot.kind == 6 or slot.kind == 7 then slot.extra = capacity end
  end
  slot.in_shadow, slot.is_one = has(shadow, i), has(requests, i)
end
local least = next_number < #ARGV[2] and struct.unpack('>I2', ARGV[2], next_number) or 1

-- Under fixed windows one division tells how many calls of one cost pass: as many as lie in a large lease
-- would keep the server from others, if each were evaluated.
local together = all_fixed > 0 and mode == 0 and cost > 0 and times > 1 and not costs
local passing = 0

-- Joined once, because the server hashes all bytes of a new string.
local replies, packed, taken, any_taken = { '' }, nil, nil, false
for call = 1, together and 1 or times do
  if costs then cost = costs[call] end
  local available = MAX_UNITS + 1
  for _, slot in ipairs(slots) do
    local algorithm = algorithms[slot.kind]
    slot.available = algorithm.available(slot.at, slot.period, slot.max, slot.extra, slot.kind)
    -- A request is one unit, whatever it costs.
    if slot.is_one and slot.available > 0 then slot.available = MAX_UNITS + 1 end
    if not slot.in_shadow then available = min(available, slot.available) end
  end

  taken = 0
  if together then
    passing = min(times, floor(available / cost))
    if passing < least then passing = 0 end
    taken = passing * cost
  elseif mode == 3 or mode < 2 and cost <= available then
    taken = cost
  elseif mode == 1 then
    taken = available
  end

  -- Before anything is written: forgetting a state would let a client reset its own limits.
  if taken > 0 and #foreign > 16 then
    return redis.error_reply('RLFULL states of other policies still count for this subject')
  end

  local needed = 0
  if taken == 0 and mode < 3 then needed = mode == 1 and min(cost, 1) or cost end
  local uncharged = 0
  for i, slot in ipairs(slots) do
    slot.needed = slot.is_one and min(needed, 1) or needed
    if slot.in_shadow and mode ~= 3 and slot.available < taken then
      slot.needed, uncharged = slot.is_one and 1 or taken, uncharged + 2 ^ (i - 1)
    elseif taken > 0 then
      local charge = algorithms[slot.kind].charge
      slot.is_charged = true
      local units = slot.is_one and 1 or taken
      charge(slot.at, slot.period, slot.max, slot.extra, slot.kind, units)
    end
  end
  state[1] = now
  packed, any_taken = pack_state(), any_taken or taken > 0
  if not together then replies[#replies + 1] = struct.pack('>I2I7', uncharged, taken) end
  replies[#replies + 1] = told_state(packed)
  -- What was denied once is denied again: nothing has changed.
  if taken == 0 and not costs then break end
end

local healed = 0
if any_taken then
  save(packed)
elseif stored and mode ~= 2 and cost > 0 and redis.call('PTTL', KEYS[1]) == -1 then
  -- Somebody took the expiry away; without one the key would stay for ever.
  redis.call('PEXPIRE', KEYS[1], lifetime())
  healed = 1
end

for _, slot in ipairs(slots) do
  local algorithm = algorithms[slot.kind]
  if algorithm.heal and not slot.is_charged and mode ~= 2 and cost > 0
      and algorithm.heal(slot.at, slot.period, slot.extra) then
    healed = healed + 1
  end
end
replies[1] = struct.pack('>BB', 0, healed)
if together then replies[1] = struct.pack('>BBI2', 2, healed, passing) end
return table.concat(replies)
