-- The windows of the readable layout in production: the server ends them together with their keys.
--
-- Local variables are faster to read than global ones.
local KEYS, call = KEYS, redis.call
local function ttl_of(i) return call('PTTL', KEYS[i]) end
local function open_window(i, units, period, ...) return call('SET', KEYS[i], units, 'PX', period, ...) end
local function end_window_in(i, period) call('PEXPIRE', KEYS[i], period) end
