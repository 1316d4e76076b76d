-- Publishes the note of an instance, or returns the notes of all instances.
--
-- KEYS[1]   a hash with a field for each instance: the time in µs, in 16 digits, and the note
-- ARGV[1]   the id of the instance; empty to read
-- ARGV[2]   the note
--
-- Returns   the notes of the last 20 seconds, each in a line of its own. A value without a time was
--           not written by this script: it is returned once, and deleted.
local LIFETIME, MOST, LONGEST = 20000000, 256, 65536
if ARGV[1] ~= '' then
  redis.call('HSET', KEYS[1], ARGV[1], string.format('%016d', now) .. ARGV[2])
  redis.call('PEXPIRE', KEYS[1], 20000)
  -- Instances that have ended are removed by readers. Without any reader, they are removed here.
  if redis.call('HLEN', KEYS[1]) <= MOST then return false end
end
local found, notes = redis.call('HGETALL', KEYS[1]), {}
for i = 1, #found, 2 do
  local value = found[i + 1]
  local at = tonumber(string.match(string.sub(value, 1, 16), '^%d+$'))
  local is_old = at and math.abs(now - at) > LIFETIME
  local is_kept = not is_old and #value <= LONGEST and #notes < MOST
  if is_kept then notes[#notes + 1] = string.sub(value, at and 17 or 1) end
  if not is_kept or not at then redis.call('HDEL', KEYS[1], found[i]) end
end
return ARGV[1] == '' and table.concat(notes, '\n')
