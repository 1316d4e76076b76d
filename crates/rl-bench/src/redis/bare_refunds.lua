-- The commands of a refund without its logic: the lower bound of its server time.
--
-- KEYS  the subject's state, and for a long log the hash of its older entries
-- ARGV  for a long log: the name of a page, the name of a block, and 14 bytes, a changed item
local time, state = redis.call('TIME'), redis.call('GET', KEYS[1])
if KEYS[2] then
  redis.call('HGET', KEYS[2], 'b')
  local page, block = redis.call('HGET', KEYS[2], ARGV[1]), redis.call('HGET', KEYS[2], ARGV[2])
  page = string.sub(page, 1, 600) .. ARGV[3] .. string.sub(page, 615)
  block = string.sub(block, 1, 250) .. ARGV[3] .. string.sub(block, 265)
  redis.call('HSET', KEYS[2], ARGV[1], page, ARGV[2], block)
end
redis.call('SET', KEYS[1], state, 'PX', '3600000')
return time[1]
