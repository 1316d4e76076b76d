-- The readable layout: a decimal counter for each period, whose expiry is the end of the window.
-- Windows begin with the first charge, and Redis itself ends them.
--
-- KEYS     one counter for each limit
-- ARGV[1]  packed, big-endian: the period of each limit in ms (7 bytes each)
--
-- Sets     count, periods, and for each counter used, ttl (ms; 0 if no window is open) and
--          unbounded (true if it had no expiry, or one beyond its period)
--
-- All counters are read and checked before one is written, because a script is not rolled back.
--
-- They are also read before the time. Redis 7.0 lets time pass while a script runs, so the reply
-- may say that a window ends a little late. A client that waits for that end finds the window over.
-- (The refund reads the time first.)
local MAX_UNITS = 9007199254740991
local count = #KEYS
local periods = { struct.unpack('>' .. string.rep('I7', count), ARGV[1]) }
local used, ttl, unbounded = {}, {}, {}
for i = 1, count do
  local value = redis.call('GET', KEYS[i])
  used[i], ttl[i] = 0, 0
  if value then
    -- INCRBY refuses a leading zero, when other counters are written already.
    if not (string.find(value, '^[1-9]%d*$') or value == '0') or tonumber(value) > MAX_UNITS then
      return redis.error_reply('RLCORRUPT a counter holds no number of units')
    end
    ttl[i] = ttl_of(i)
    if ttl[i] == -1 or ttl[i] > periods[i] then
      -- Other programs cause both. A client that sets value and expiry in two commands may leave a
      -- counter without expiry. A wrong unit, another period, or a clock that stepped back leave a
      -- counter that ends later than a period from now: it would deny for longer than the limit
      -- says.
      unbounded[i] = true
      ttl[i] = periods[i]
    end
    -- At 0 the window is over, although the key is still there.
    if ttl[i] > 0 then used[i] = tonumber(value) end
  end
end
