-- Window prologue of production, for the readable layout: the server ends windows with their keys.
local function ttl_of(key) return redis.call('PTTL', key) end
local function open_window(key, units, period) redis.call('SET', key, units, 'PX', period) end
local function end_window_in(key, period) redis.call('PEXPIRE', key, period) end
