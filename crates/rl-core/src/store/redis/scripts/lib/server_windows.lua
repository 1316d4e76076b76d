-- The windows of the readable layout in production: the server ends them together with their keys.
local function ttl_of(i) return redis.call('PTTL', KEYS[i]) end
local function open_window(i, units, period) redis.call('SET', KEYS[i], units, 'PX', period) end
local function end_window_in(i, period) redis.call('PEXPIRE', KEYS[i], period) end
