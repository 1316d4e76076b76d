-- Decides a cost for all limits of one subject: charges all or none.
--
-- KEYS[1]  the subject's state (see slots.lua)
-- ARGV[1]  shape (see slots.lua)
-- ARGV[2]  packed, big-endian: mode (1 byte: 0 check, 1 check up to, 2 peek, 3 charge), cost
--          (7 bytes), and for each limit grid (1 byte), period µs (7 bytes), max (7 bytes)
--
-- Returns  packed: healed (1 byte), units taken (7 bytes), the time of the decision (7 bytes), and
--          since and used (7 bytes each) of each limit afterwards
--
-- At most three commands: TIME, GET, and SET, or on a denial PTTL. A denial writes nothing.
local plan = { struct.unpack('>BI7' .. string.rep('BI7I7', count), ARGV[2]) }
local mode, cost = plan[1], plan[2]

local available, expires = MAX_UNITS + 1, 0
for i = 1, count do
  local since, used = state[2 * i], state[2 * i + 1]
  local ends = window_end(since, used, plan[3 * i], plan[3 * i + 1])
  if now >= ends then
    used = 0
    state[2 * i], state[2 * i + 1] = 0, 0
  elseif ends > expires then
    expires = ends
  end
  local left = plan[3 * i + 2] - used
  if left < available then available = left end
end
if available < 0 then available = 0 end

local taken = 0
if mode == 3 or mode < 2 and cost <= available then
  taken = cost
elseif mode == 1 then
  taken = available
end

local healed = 0
if taken > 0 then
  for i = 1, count do
    local since, used = state[2 * i], state[2 * i + 1]
    if since == 0 and used == 0 then since = window_begin(plan[3 * i], plan[3 * i + 1]) end
    used = math.min(used + taken, MAX_UNITS)
    state[2 * i], state[2 * i + 1] = since, used
    local ends = window_end(since, used, plan[3 * i], plan[3 * i + 1])
    if ends > expires then expires = ends end
  end
end
state[1] = now
local packed = pack_state()
if taken > 0 then
  save(packed, expires)
elseif stored and mode ~= 2 and cost > 0 and redis.call('PTTL', KEYS[1]) == -1 then
  -- Somebody took the expiry away; without one the key would stay for ever.
  redis.call('PEXPIRE', KEYS[1], math.max(1, math.ceil((expires - clock) / 1000)) + linger)
  healed = 1
end
return struct.pack('>BI7', healed, taken) .. packed
