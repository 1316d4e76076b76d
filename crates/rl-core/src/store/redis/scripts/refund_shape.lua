-- The fast path of refunds under the limits of one shape, for one subject or several. Each stored
-- state must begin with this shape (see lib/slots.lua) and have no states of other policies.
-- Everything else is left to amend.lua.
--
-- This is a template like shape.lua. LIMITS stands for the number of limits, and INDEX for the
-- index of the limit.
--
-- KEYS     for each subject its state, and the entries of each log
-- ARGV     see amend.lua. The operation is 0. For several subjects, the time of the charge and the
--          units in the plan are ignored
-- ARGV[4]  for several subjects: for each of them the time of the charge, and the units of each
--          limit (7 bytes each)
--
-- Returns  for several subjects, the places of those that were not decided (a byte each, from 0).
--          Their states are unchanged, and the client sends each of them again in a call of its own
do
  local <<constants>> = struct.unpack('><<I7 constants>>', plan, 7 * LIMITS + 9)
  local floor, ceil, min, max_of = math.floor, math.ceil, math.min, math.max
  local subjects, bucket_size, undecided = #KEYS / STRIDE, string.byte(shape, 2), ''
  local charges, at, all = plan, 2, nil
  if subjects > 1 then charges, at, all = ARGV[4], 1, redis.pcall('MGET', unpack(KEYS)) end
  for n = 1, subjects do
    local first = (n - 1) * STRIDE + 1
    local when = struct.unpack('>I7', charges, at)
    local stored = all and all[first] or redis.pcall('GET', KEYS[first])
    local is_done = not stored
    if stored and #stored == struct.size(format) then
      local head, last, <<cells>> = struct.unpack(format, stored)
      local now = clock
      if last > now then now = last end
      local gone, is_ours = now - last, head == shape and now < LATEST and when <= now
      --@ each
      --@ part declare
      --@ part released
      --@ part valid
      --@ part refundable
      --@ end
      if is_ours then
        local longest = 0
        --@ each
        do
          --@ part advance
          local units, lasts = struct.unpack('>I7', charges, at + 7 * INDEX), nil
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
        redis.call('SET', KEYS[first], value, 'PX', string.format('%d', lifetime))
        is_done = true
      end
    end
    if subjects == 1 then
      if is_done then return false end
      -- A GET of a key of another type returns an error table. amend.lua reports that error.
      found = type(stored) == 'string' and stored
    elseif not is_done then
      undecided = undecided .. string.char(n - 1)
    end
    at = at + 7 * LIMITS + 7
  end
  if subjects > 1 then return undecided end
end
