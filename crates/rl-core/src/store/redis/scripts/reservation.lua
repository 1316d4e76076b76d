-- Renews a reservation, or ends it before change.lua refunds its units.
--
-- KEYS[last]  the reservations of the subject (see reserve.lua)
-- ARGV[4]     the reservation, as a member of the set
-- ARGV[5]     its lifetime from now on, in µs (7 bytes); 0 ends it
-- ARGV[6]     the time at which it expires according to its holder, in µs (7 bytes)
--
-- Returns     if there is no such reservation, a byte: 1 if it has expired, or 0 if it was lost
--             before it could expire
--             otherwise, for a renewal, the time at which the reservation expires (7 bytes)
--             otherwise the reply of change.lua
local reserved_for = struct.unpack('>I7', ARGV[5])
local is_there
if reserved_for == 0 then
  is_there = redis.call('ZREM', KEYS[#KEYS], ARGV[4]) == 1
else
  is_there = redis.call('ZSCORE', KEYS[#KEYS], ARGV[4])
end
if not is_there then return clock >= (struct.unpack('>I7', ARGV[6])) and '\1' or '\0' end
if reserved_for > 0 then
  redis.call('ZADD', KEYS[#KEYS], string.format('%.0f', clock + reserved_for), ARGV[4])
  local lasts = max_of(ceil(reserved_for / 1000) + linger, lifetime())
  if redis.call('PTTL', KEYS[#KEYS]) < lasts then redis.call('PEXPIRE', KEYS[#KEYS], lasts) end
  return struct.pack('>I7', clock + reserved_for)
end
