-- Notes what decide.lua has charged as a reservation, and replies what that has replied.
--
-- Expects  reply, of one call (see decide.lua); reserved_for (see expired.lua)
if type(reply) == 'string' and reserved_for > 0 then
  local uncharged, taken = struct.unpack('>I2I7', reply, 3)
  if taken > 0 then
    local member = struct.pack('>I7I7I2', now, taken, uncharged) .. string.sub(shape, 3)
    -- By the time of the charge, which the holder knows. A renewal goes by the clock.
    redis.call('ZADD', KEYS[#KEYS], string.format('%.0f', now + reserved_for), member)
    -- It is needed for as long as there is something to give back.
    local lasts = max_of(ceil(reserved_for / 1000) + linger, lifetime())
    if redis.call('PTTL', KEYS[#KEYS]) < lasts then redis.call('PEXPIRE', KEYS[#KEYS], lasts) end
  end
end
return reply
