-- Reads the state under the subject's key: a string, or false. A key of another type is an error.
local stored = found or redis.call('GET', KEYS[1])
