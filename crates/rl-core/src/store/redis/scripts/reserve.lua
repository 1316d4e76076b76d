-- Stores the charge of decide.lua as a reservation, and returns the reply of decide.lua.
--
-- Expects  reply: the reply of decide.lua for a single call
--          reserved_for, is_settled: see lib/expired.lua
local uncharged, granted = 0, 0
if type(reply) == 'string' then uncharged, granted = struct.unpack('>I2I7', reply, 3) end
if granted == 0 and is_settled then
  -- decide.lua stores no state if nothing was charged, but the refunds of expired reservations must
  -- be stored.
  save()
end
if granted > 0 and reserved_for > 0 then
  local member = struct.pack('>I7I7I2', now, granted, uncharged) .. string.sub(shape, 3)
  -- The lifetime begins at the time of the charge (`now`), because the holder computes its end from
  -- that time. `now` is later than the time of the server (`clock`) if the clock has stepped back,
  -- or if the last change was in the same microsecond. A renewal starts the lifetime again at
  -- `clock` (see reservation.lua).
  redis.call('ZADD', KEYS[#KEYS], string.format('%.0f', now + reserved_for), member)
  -- The set must live as long as there are units to refund.
  local lasts = max_of(ceil(reserved_for / 1000) + linger, lifetime())
  if redis.call('PTTL', KEYS[#KEYS]) < lasts then redis.call('PEXPIRE', KEYS[#KEYS], lasts) end
end
return reply
