-- Notes what decide.lua has charged as a reservation, and replies what that has replied.
--
-- Expects  reply, of one call (see decide.lua); reservations and reserved_for (see expired.lua)
if type(reply) == 'string' and reserved_for > 0 then
  local uncharged, taken = struct.unpack('>I2I7', reply, 3)
  if taken > 0 then
    local member = struct.pack('>I7I7I2', now, taken, uncharged) .. string.sub(shape, 3)
    redis.call('ZADD', reservations, string.format('%.0f', clock + reserved_for), member)
    -- It is needed for as long as there is something to give back.
    local lasts = max_of(ceil(reserved_for / 1000) + linger, lifetime())
    if redis.call('PTTL', reservations) < lasts then redis.call('PEXPIRE', reservations, lasts) end
  end
end
return reply
