-- What is stored under the subject's key: a string, or false. An error, if it is something else.
local stored = redis.call('GET', KEYS[1])
