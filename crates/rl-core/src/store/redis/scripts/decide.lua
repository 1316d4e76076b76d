-- Decides a cost for all limits of one subject: charges all of them or none.
--
-- KEYS[1]   the subject's state (see lib/slots.lua)
-- KEYS[2…]  the entries of each log of the policy, in its order (see algorithms/sliding_log.lua)
-- ARGV[1]   shape (see lib/slots.lua)
-- ARGV[2]   plan, packed, big-endian:
--             1 byte   mode: 0 check, 1 check up to, 2 peek, 3 charge
--             1 byte   the number of limits if all are fixed windows that begin with the first
--                      request; otherwise 0
--             7 bytes  cost
--             2 bytes  the number of calls of this cost, which are decided one after the other; 0 if
--                      their costs differ
--             then, if all are such windows:
--             2 bytes  the length of a stored state of this shape
--             14 bytes for each limit: period in µs, max (7 bytes each)
--             otherwise:
--             2 bytes  the set of limits in shadow: the first limit is the lowest bit
--             2 bytes  the set of limits that count requests
--             14 bytes for each limit: max, capacity (the burst, if there is one; 7 bytes each)
--             and in both cases, if some calls are of no use without the others:
--             2 bytes  the least number of calls: if fewer would be allowed, none is
-- ARGV[3]   format (see lib/slots.lua)
-- ARGV[4]   the cost of each call (7 bytes), if the number of calls is 0
--
-- Returns   for several calls of one cost under fixed windows:
--             1 byte   2
--             1 byte   healed: how many keys had lost their expiry
--             2 bytes  how many calls are allowed, which are the first ones
--             7 bytes  the time of the decision
--             7 bytes  each cell of each limit after the last call
--           otherwise:
--             1 byte   0
--             1 byte   healed
--             and for each call, up to the last that differs from the one before:
--             2 bytes  the set of limits in shadow that would have denied the call, and are not charged
--             7 bytes  units granted
--             7 bytes  the time of the decision
--             7 bytes  each cell of each limit; for a log, each number of its summary
--
-- Without logs the script runs at most three commands: TIME, GET, and SET, or PTTL on a denial. A
-- fourth, PEXPIRE, is for a key that has lost its expiry. After fixed_windows/loop.lua left the call to
-- this script, a second GET follows. A denial changes no state.
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
    -- A capacity is not part of the tag: it may change while the state goes on.
    if slot.kind == 6 or slot.kind == 7 then slot.extra = capacity end
  end
  slot.in_shadow, slot.counts_requests = has(shadow, i), has(requests, i)
end
local least = next_number < #ARGV[2] and struct.unpack('>I2', ARGV[2], next_number) or 1

-- Under fixed windows one division yields how many calls of one cost are allowed. Evaluating each call of
-- a large lease would block the server.
local together = all_fixed > 0 and mode == 0 and cost > 0 and times > 1 and not costs
local allowed = 0

-- Joined once, because the server hashes all bytes of a new string.
local replies, packed, granted, any_granted = { '' }, nil, nil, false
for call = 1, together and 1 or times do
  if costs then cost = costs[call] end
  local available = MAX_UNITS + 1
  for _, slot in ipairs(slots) do
    local algorithm = algorithms[slot.kind]
    slot.available = algorithm.available(slot.at, slot.period, slot.max, slot.extra, slot.kind)
    -- A request is one unit, whatever it costs.
    if slot.counts_requests and slot.available > 0 then slot.available = MAX_UNITS + 1 end
    if not slot.in_shadow then available = min(available, slot.available) end
  end

  granted = 0
  if together then
    allowed = min(times, floor(available / cost))
    if allowed < least then allowed = 0 end
    granted = allowed * cost
  elseif mode == 3 or mode < 2 and cost <= available then
    granted = cost
  elseif mode == 1 then
    granted = available
  end

  -- Refuse before anything is written. Forgetting a state instead would let a client reset its limits.
  if granted > 0 and #foreign > 16 then
    return redis.error_reply('RLFULL states of other policies still count for this subject')
  end

  local required = 0
  if granted == 0 and mode < 3 then required = mode == 1 and min(cost, 1) or cost end
  local uncharged = 0
  for i, slot in ipairs(slots) do
    slot.required = slot.counts_requests and min(required, 1) or required
    if slot.in_shadow and mode ~= 3 and slot.available < granted then
      slot.required, uncharged = slot.counts_requests and 1 or granted, uncharged + 2 ^ (i - 1)
    elseif granted > 0 then
      local charge = algorithms[slot.kind].charge
      slot.is_charged = true
      local units = slot.counts_requests and 1 or granted
      charge(slot.at, slot.period, slot.max, slot.extra, slot.kind, units)
    end
  end
  state[1] = now
  packed, any_granted = pack_state(), any_granted or granted > 0
  if not together then replies[#replies + 1] = struct.pack('>I2I7', uncharged, granted) end
  replies[#replies + 1] = reply_state(packed)
  -- A denial changes nothing, so the next calls of the same cost are denied as well.
  if granted == 0 and not costs then break end
end

local healed = 0
if any_granted then
  save(packed)
elseif stored and mode ~= 2 and cost > 0 and redis.call('PTTL', KEYS[1]) == -1 then
  -- Another client removed the expiry. Without one the key would stay for ever.
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
if together then replies[1] = struct.pack('>BBI2', 2, healed, allowed) end
return table.concat(replies)
