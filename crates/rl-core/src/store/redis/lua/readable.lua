-- The readable layout: a decimal counter for each period, whose expiry is the window's end. The
-- windows begin with the first charge; Redis itself ends them.
--
-- KEYS     one counter for each limit; one hash tag, or no cluster
-- ARGV[1]  packed, big-endian: mode (1 byte: 0 check, 1 check up to, 2 peek, 3 charge), cost
--          (7 bytes), and for each limit period ms (7 bytes) and max (7 bytes)
--
-- Returns  as decide.lua
--
-- All counters are read and judged before one is written: a script is not rolled back.
local MAX_UNITS = 9007199254740991
local count = #KEYS
local plan = { struct.unpack('>BI7' .. string.rep('I7I7', count), ARGV[1]) }
local mode, cost = plan[1], plan[2]

local counters, unbounded, healed = {}, {}, 0
local available = MAX_UNITS + 1
for i = 1, count do
  local value, since, used = redis.call('GET', KEYS[i]), 0, 0
  if value then
    if not string.find(value, '^%d+$') then
      return redis.error_reply('RLCORRUPT a counter holds no number')
    end
    local ttl = redis.call('PTTL', KEYS[i])
    if ttl == -1 then
      -- Never seen with our own counters; a client that sets value and expiry apart leaves them.
      unbounded[i] = true
      ttl = plan[2 * i + 1]
    end
    -- At 0 the window is over although the key is still there.
    if ttl > 0 then
      since = (math.floor(now / 1000) + ttl - plan[2 * i + 1]) * 1000
      used = math.min(tonumber(value), MAX_UNITS)
    end
  end
  counters[2 * i - 1], counters[2 * i] = since, used
  available = math.min(available, plan[2 * i + 2] - used)
end
available = math.max(available, 0)

local taken = 0
if mode == 3 or mode < 2 and cost <= available then
  taken = cost
elseif mode == 1 then
  taken = available
end

for i = 1, count do
  if taken > 0 then
    local since, used = counters[2 * i - 1], counters[2 * i]
    if since == 0 then
      redis.call('SET', KEYS[i], string.format('%.0f', math.min(taken, MAX_UNITS)), 'PX', plan[2 * i + 1])
      counters[2 * i - 1] = math.floor(now / 1000) * 1000
    else
      redis.call('INCRBY', KEYS[i], string.format('%.0f', math.min(taken, MAX_UNITS - used)))
    end
    counters[2 * i] = math.min(used + taken, MAX_UNITS)
  end
  if unbounded[i] and mode ~= 2 and cost > 0 then
    redis.call('PEXPIRE', KEYS[i], plan[2 * i + 1])
    healed = healed + 1
  end
end

return struct.pack('>BI7I7' .. string.rep('I7I7', count), healed, taken, now, unpack(counters))
