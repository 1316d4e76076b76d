-- Stores the charge of decide.lua as a reservation, and returns the reply of decide.lua.
--
-- Expects  reply, of one call (see decide.lua); reserved_for and is_settled (see expired.lua)
local uncharged, taken = 0, 0
if type(reply) == 'string' then uncharged, taken = struct.unpack('>I2I7', reply, 3) end
if taken == 0 and is_settled then
  -- What is charged is stored already, with what has come back.
  state[1] = now
  save(pack_state())
end
if taken > 0 and reserved_for > 0 then
  local member = struct.pack('>I7I7I2', now, taken, uncharged) .. string.sub(shape, 3)
  -- It expires by the time of the charge, which the holder knows; a renewal uses the clock.
  redis.call('ZADD', KEYS[#KEYS], string.format('%.0f', now + reserved_for), member)
  -- The set must live as long as there are units to give back.
  local lasts = max_of(ceil(reserved_for / 1000) + linger, lifetime())
  if redis.call('PTTL', KEYS[#KEYS]) < lasts then redis.call('PEXPIRE', KEYS[#KEYS], lasts) end
end
return reply
