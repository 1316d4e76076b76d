-- The readable layout: a decimal counter for each period. A window begins with the first charge. It
-- ends when the key of the counter expires on the server.
--
-- KEYS     one counter for each limit
-- ARGV[1]  packed, big-endian: the period of each limit in ms (7 bytes each)
--
-- Sets     count, periods, and for each counter
--            used
--            ttl: the time until its window ends, in ms; 0 if no window is open
--            unbounded: whether it had no expiry, or one beyond its period
--
-- All counters are read and checked before the first one is written, because a script is not rolled
-- back.
--
-- They are also read before the time. Redis 7.0 lets time pass while a script runs, so the reply
-- may state the end of a window a little late. A client that waits until then finds that the window
-- has ended. (The refund reads the time first.)
local MAX_UNITS = 9007199254740991
local count = #KEYS
local periods = { struct.unpack('>' .. string.rep('I7', count), ARGV[1]) }
local used, ttl, unbounded = {}, {}, {}
for i = 1, count do
  local value = redis.call('GET', KEYS[i])
  used[i], ttl[i] = 0, 0
  if value then
    -- INCRBY rejects a leading zero, and would fail after other counters were written.
    if not (string.find(value, '^[1-9]%d*$') or value == '0') or tonumber(value) > MAX_UNITS then
      return redis.error_reply('RLCORRUPT a counter holds no number of units')
    end
    ttl[i] = ttl_of(i)
    if ttl[i] == -1 or ttl[i] > periods[i] then
      -- Other programs cause such counters. A client that sets value and expiry in two commands may
      -- leave a counter without an expiry. A wrong unit, another period, or a clock that stepped
      -- back leaves a counter that ends later than one period from now. Such a counter would deny
      -- requests for too long.
      unbounded[i] = true
      ttl[i] = periods[i]
    end
    -- At 0 the window has ended, although the key still exists.
    if ttl[i] > 0 then used[i] = tonumber(value) end
  end
end
