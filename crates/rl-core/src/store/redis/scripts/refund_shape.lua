-- The fast path of refunds under the limits of one shape, for one subject or several. Each stored
-- state must begin with this shape (see lib/slots.lua) and have no states of other policies.
-- Everything else is left to change.lua.
--
-- This is a template like shape.lua. LIMITS stands for the number of limits, and INDEX for the
-- index of the limit.
--
-- KEYS     see change.lua. If the operation is 4, the states of several subjects
-- ARGV     see change.lua. The operation is 0, or 4 for several subjects. For these, the times and
--          the units in the plan are ignored. Both times in the plan are equal, and no further
--          units are charged
-- ARGV[4]  for several subjects: for each of them the time of the charge, and the units of each
--          limit (7 bytes each)
--
-- Returns  for several subjects, the indices in KEYS (a byte each, from 0) of those to which nothing
--          was refunded. The client sends each of these refunds again in a call of its own
do
  local <<constants>> = struct.unpack('><<I7 constants>>', plan, 14 * LIMITS + 16)
  local floor, ceil, min, max_of = math.floor, math.ceil, math.min, math.max
  local subjects, bucket_size, undecided = #KEYS, string.byte(shape, 2), ''
  --@ logs if string.byte(plan) ~= 4 then subjects = 1 end
  --@ logs local is_refund = true
  local charges, at, all = plan, 2, nil
  -- step: the number of bytes from the units of a limit to those of the next.
  local step = 14
  if subjects > 1 then charges, at, step, all = ARGV[4], 1, 7, redis.pcall('MGET', (table.unpack or unpack)(KEYS)) end
  for n = 1, subjects do
    local when = struct.unpack('>I7', charges, at)
    local stored = all and all[n] or redis.pcall('GET', KEYS[n])
    local is_done = not stored
    local size = struct.size(format)
    local is_sized = stored and #stored == size
    --@ logs is_sized = stored and #stored >= size
    if is_sized then
      local head, last, <<cells>> = struct.unpack(format, stored)
      local now = clock
      if last > now then now = last end
      local gone, is_ours = now - last, head == shape and now < LATEST and when <= now
      --@ logs local rest, tails = size + 1, ''
      --@ each
      --@ part declare
      --@ part valid
      --@ part refundable
      --@ end
      --@ logs is_ours = is_ours and rest == #stored + 1
      if is_ours then
        local longest = 0
        --@ each
        do
          --@ part advance
          local units, lasts = struct.unpack('>I7', charges, at + step * INDEX), nil
          if units > 0 then
            --@ part exact
            --@ part refund
          end
          --@ part lasts
          if lasts > longest then longest = lasts end
        end
        --@ end
        local lifetime = ceil((now + longest - clock) / 1000) + linger
        if lifetime > 0 then
          --@ each
          --@ part write
          --@ part join
          --@ end
          local value = struct.pack(format, shape, now, <<cells>>)
          --@ logs value = value .. tails
          redis.call('SET', KEYS[n], value, 'PX', string.format('%d', lifetime))
        else
          -- The state equals an unused one, so delete it. Unlike DEL, an expiry of 0 needs no
          -- further permission.
          redis.call('PEXPIRE', KEYS[n], 0)
        end
        is_done = true
      end
    end
    if subjects == 1 then
      if is_done then return false end
      -- A GET of a key of another type returns an error table. change.lua reports that error.
      found = type(stored) == 'string' and stored
    elseif not is_done then
      undecided = undecided .. string.char(n - 1)
    end
    at = at + 7 * LIMITS + 7
  end
  if subjects > 1 then return undecided end
end
