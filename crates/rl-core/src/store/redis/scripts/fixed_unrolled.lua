-- The common case without a table or a loop over limits: calls that pass fixed windows which begin
-- with the first request, stored in the shape of the policy, of one subject or of many. What does not
-- pass, or is not so simple, is left to decide_fixed.lua. `algorithm/fixed_window/mod.rs` is the same
-- function in Rust. Change all three.
--
-- This is a pattern: `unrolling.rs` makes one branch of it for each number of limits, COUNT.
-- Lines with `_i` stand there once for each limit, together where they follow each other, and what is
-- between << and >> likewise in its line.
--
-- KEYS     the state of each subject (see slots.lua)
-- ARGV     shape, plan and format (see decide.lua)
-- Expects  clock, shape, plan, kind: the first two bytes of it, format, and told: an empty table
-- Sets     told[n], the state that was stored for subject n, if its calls passed; passed, how many
--          subjects there are of these; told[-n], what was found for another, or a state in which no
--          window is open
if kind == COUNT then
  local _, cost, times, size, <<period_i, max_i>> = struct.unpack('>I2I7I2I2<<I7I7>>', plan)
  local units, all = cost * times, {}
  -- From here on what may be used before.
  max_i = max_i - units
  if #KEYS > 1 then all = redis.pcall('MGET', unpack(KEYS)) end
  for n = 1, cost > 0 and #KEYS or 0 do
    -- To MGET what is no string is nothing, and not every user may ask for it.
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
        told[n], passed = value, passed + 1
      end
    end
    if not told[n] then told[-n] = stored end
  end
end
