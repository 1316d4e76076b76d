-- The fast path: checks under fixed windows that begin with the first request, for one subject or for
-- several under one policy, if all calls of a subject are allowed and its state is stored in the shape
-- of the policy. Everything else is left to loop.lua. `algorithm/fixed_window/mod.rs` is the same
-- function in Rust. Change all three.
--
-- This is a template: `unrolling.rs` makes a branch of it for each number of limits, COUNT. Without a
-- table and a loop over the limits, a check takes two thirds of the server's time.
--
--   a line with _i          is repeated for each limit, with _1, _2, …
--   such lines in a row     are repeated together, as one block
--   a list in << and >>     has an item for each limit: << a_i, b_i >> becomes a_1, b_1, a_2, b_2
--
-- KEYS     the state of each subject (see lib/slots.lua)
-- ARGV     shape, plan and format (see decide.lua)
-- Expects  clock, shape, plan, format; kind: the first two bytes of the plan; and two empty results:
--          replies and allowed_subjects
-- Sets     replies[n]         the state that was stored for subject n, if all its calls are allowed
--          replies[-n]        otherwise the state that was found, or one in which no window is open
--          allowed_subjects   the number of subjects whose calls are allowed
if kind == COUNT then
  local _, cost, times, size, <<period_i, max_i>> = struct.unpack('>I2I7I2I2<<I7I7>>', plan)
  local units, all = cost * times, {}
  -- From here on, the maxima are what may have been used before these calls.
  max_i = max_i - units
  if #KEYS > 1 then all = redis.pcall('MGET', unpack(KEYS)) end
  for n = 1, cost > 0 and #KEYS or 0 do
    -- MGET returns nothing for a key that is not a string, or if the user may not run it.
    local stored = all[n] or redis.pcall('GET', KEYS[n]) or shape .. string.rep('\0', size - #shape)
    if #stored == size then
      local head, last, <<left_i, used_i>> = struct.unpack(format, stored)
      local now, fits, longest = clock, head == shape, 0
      if last > now then now = last end
      local gone = now - last
      left_i = left_i - gone
      if left_i <= 0 then left_i, used_i = period_i, 0 end
      if left_i > longest then longest = left_i end
      if used_i > max_i or left_i > period_i then fits = false end
      if fits and now < 4503599627370496 then
        local value = struct.pack(format, shape, now, <<left_i, used_i + units>>)
        local lasts = now + longest - clock + 999
        redis.call('SET', KEYS[n], value, 'PX', (lasts - lasts % 1000) / 1000 + linger)
        replies[n], allowed_subjects = value, allowed_subjects + 1
      end
    end
    if not replies[n] then replies[-n] = stored end
  end
end
