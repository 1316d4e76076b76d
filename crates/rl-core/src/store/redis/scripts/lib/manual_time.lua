-- The time in tests. The caller passes it, so that tests control the time. Keys live longer than in
-- production, because real time passes while the time of a test stands still.
--
-- ARGV[last]  now, in µs since the epoch, and PAGE, separated by a space
-- Sets        now, and linger: the time in ms that a key lives beyond its last window
--             PAGE: the largest number of blocks in a page of a log (see
--             algorithms/sliding_log.lua)
local now, PAGE = string.match(ARGV[#ARGV], '(%d+) (%d+)')
local linger = 600000
now, PAGE = tonumber(now), tonumber(PAGE)

--@ windows
-- The windows of the readable layout in tests. Whether a window has ended depends on the time that
-- the caller passes. Keys live longer than in production, because real time passes while the time
-- of a test stands still.
--
-- ARGV[last]  now, in µs since the epoch
local TWO_HUNDRED_YEARS = 6311433600000
local shifted = math.floor(string.match(ARGV[#ARGV], '%d+') / 1000) + TWO_HUNDRED_YEARS
local function millis()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
local function ttl_of(i)
  -- PEXPIRETIME, which returns the end, exists since Redis 7.0. In older versions, time
  -- may pass during a script.
  local before, ttl
  repeat
    before, ttl = millis(), redis.call('PTTL', KEYS[i])
  until before == millis()
  return ttl < 0 and ttl or math.max(0, before + ttl - shifted)
end
local function open_window(i, units, period, ...)
  return redis.call('SET', KEYS[i], units, 'PXAT', shifted + period, ...)
end
local function end_window_in(i, period) redis.call('PEXPIREAT', KEYS[i], shifted + period) end
