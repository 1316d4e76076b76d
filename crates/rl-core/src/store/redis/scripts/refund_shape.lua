-- The fast path of a refund under the limits of one shape, if the state is stored in this shape.
-- Everything else is left to amend.lua.
--
-- This is a template like shape.lua. LIMITS stands for the number of limits, and INDEX for the
-- index of the limit.
--
-- KEYS, ARGV  see amend.lua. The operation is 0
do
  local when = struct.unpack('>I7', plan, 2)
  local <<constants>> = struct.unpack('><<I7 constants>>', plan, 7 * LIMITS + 9)
  local floor, ceil, min, max_of = math.floor, math.ceil, math.min, math.max
  local bucket_size = string.byte(shape, 2)
  local stored, first = redis.pcall('GET', KEYS[1]), 1
  if not stored then return false end
  if #stored == struct.size(format) then
    local head, last, <<cells>> = struct.unpack(format, stored)
    local now = clock
    if last > now then now = last end
    local gone, is_ours = now - last, head == shape and now < LATEST and when <= now
    --@ each
    --@ part declare
    --@ part valid
    --@ part refundable
    --@ end
    if is_ours then
      local longest = 0
      --@ each
      do
        --@ part advance
        local units, lasts = struct.unpack('>I7', plan, 7 * INDEX + 2), nil
        if units > 0 then
          --@ part exact
          --@ part refund
        end
        --@ part lasts
        if lasts > longest then longest = lasts end
      end
      --@ end
      local value = struct.pack(format, shape, now, <<cells>>)
      local lifetime = max_of(1, ceil((now + longest - clock) / 1000)) + linger
      redis.call('SET', KEYS[1], value, 'PX', string.format('%d', lifetime))
      return false
    end
  end
  -- A GET of a key of another type returns an error table. amend.lua reports that error.
  found = type(stored) == 'string' and stored
end
