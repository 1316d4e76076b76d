-- The common case without a table or a loop over limits: calls that pass fixed windows which begin
-- with the first request, stored in the shape of the policy, of one subject or of many. What does not
-- pass, or is not so simple, is left to decide_fixed.lua. `algorithm/fixed_window.rs` is the same
-- function in Rust. Change all three.
--
-- This is a pattern: `unrolled` in script.rs makes one branch of it for each number of limits, COUNT.
-- Lines with `_i` stand there once for each limit, together where they follow each other, and what is
-- between << and >> likewise in its line.
--
-- KEYS     the state of each subject (see slots.lua)
-- ARGV     shape and plan (see decide.lua)
-- Expects  clock, shape, plan, and told: an empty table
-- Sets     told[n], the state that was stored for subject n, if its calls passed; passed, how many
--          subjects there are of these; told[-n], what was found for another
if #plan == 11 + 14 * COUNT then
  local kind, cost, times, <<period_i, max_i>> = struct.unpack('>I2I7I2<<I7I7>>', plan)
  local units = cost * times
  for n = 1, kind == 1 and cost > 0 and #KEYS or 0 do
    local stored = redis.pcall('GET', KEYS[n]) or shape .. string.rep('\0', 7 + 14 * COUNT)
    if #stored == #shape + 7 + 14 * COUNT and string.find(stored, shape, 1, true) == 1 then
      local now, expires, fits, ends = clock, 0, true
      local last, <<since_i, used_i>> = struct.unpack('>I7<<I7I7>>', stored, #shape + 1)
      if last > now then now = last end
      ends = since_i + period_i
      if now >= ends or (since_i == 0 and used_i == 0) then since_i, used_i, ends = now, 0, now + period_i end
      if ends > expires then expires = ends end
      if used_i + units > max_i then fits = false end
      if fits and expires <= 9007199254740991 and now < 4503599627370496 then
        local value = struct.pack('>c0I7<<I7I7>>', shape, now, <<since_i, used_i + units>>)
        local left = expires - clock + 999
        redis.call('SET', KEYS[n], value, 'PX', (left - left % 1000) / 1000 + linger)
        told[n], passed = value, passed + 1
      end
    end
    if not told[n] then told[-n] = stored end
  end
end
