-- Renews a reservation, or ends it before amend.lua gives its units back.
--
-- KEYS[last]  the reservations of the subject (see expired.lua)
-- ARGV[4]     the reservation, a member of them
-- ARGV[5]     how long it lasts from now on, µs (7 bytes); 0 ends it
-- ARGV[6]     when it expires according to its holder, µs (7 bytes)
--
-- Returns     a byte if there is no such reservation: 1 if it has expired, 0 if it cannot have; for a
--             renewal, when it expires (7 bytes); else as amend.lua
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
