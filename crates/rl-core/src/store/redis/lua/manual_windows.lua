-- Window prologue of tests, for the readable layout: windows end by the time that comes with the
-- call. Keys outlive them, because real time passes while the invented one stands still.
--
-- ARGV[last]  now, µs since the epoch
local TWO_HUNDRED_YEARS = 6311433600000
local shifted = math.floor(tonumber(ARGV[#ARGV]) / 1000) + TWO_HUNDRED_YEARS
local function ttl_of(key)
  local ends = redis.call('PEXPIRETIME', key)
  return ends < 0 and ends or math.max(0, ends - shifted)
end
local function open_window(key, units, period) redis.call('SET', key, units, 'PXAT', shifted + period) end
local function end_window_in(key, period) redis.call('PEXPIREAT', key, shifted + period) end
