-- Renews a reservation, or ends it, before amend.lua gives back what is to come back.
--
-- KEYS[last]  the reservations of the subject (see expired.lua)
-- ARGV[4]     the reservation, a member of them
-- ARGV[5]     how long it lasts from now on, µs (7 bytes); 0 ends it
--
-- Returns     a byte: 0 if there is no such reservation, 1 if it was renewed; else as amend.lua
local reservations, reserved_for = KEYS[#KEYS], struct.unpack('>I7', ARGV[5])
if reserved_for == 0 then
  if redis.call('ZREM', reservations, ARGV[4]) == 0 then return '\0' end
elseif not redis.call('ZSCORE', reservations, ARGV[4]) then
  return '\0'
else
  redis.call('ZADD', reservations, string.format('%.0f', clock + reserved_for), ARGV[4])
  local lasts = max_of(ceil(reserved_for / 1000) + linger, lifetime())
  if redis.call('PTTL', reservations) < lasts then redis.call('PEXPIRE', reservations, lasts) end
  return '\1'
end
