-- The common case, in half the time: a check of fixed windows that begin with the first request,
-- stored in the shape of the policy. Decides and returns, or leaves everything to decide.lua, which
-- would do the same; `algorithm/fixed_window.rs` is the same function in Rust. Change all three.
--
-- KEYS, ARGV and what is returned: see decide.lua
if stored and string.byte(ARGV[2]) == 0 and string.byte(ARGV[2], 2) == 1
    and string.sub(stored, 1, #ARGV[1]) == ARGV[1] then
  local shape, count = ARGV[1], string.byte(ARGV[1], 2)
  local format = '>I7' .. string.rep('I7I7', count)
  if #stored == #shape + 7 + 14 * count then
    local state = { struct.unpack(format, stored, #shape + 1) }
    local plan = { struct.unpack('>BBI7' .. string.rep('I7I7', count), ARGV[2]) }
    local cost, clock = plan[3], now
    if state[1] > now then now = state[1] end
    local available, expires, largest = cost, 0, now
    for i = 2, 2 * count, 2 do
      local period, used = plan[i + 2], state[i + 1]
      local ends = state[i] + period
      if used > largest then largest = used end
      if state[i] > largest then largest = state[i] end
      if now >= ends or (used == 0 and state[i] == 0) then
        -- No window is open: one begins now, if the request passes.
        state[i], state[i + 1], used, ends = now, 0, 0, now + period
      end
      if plan[i + 3] - used < available then available = -1 end
      if ends > expires then expires = ends end
    end
    if largest > 9007199254740991 or now >= 4503599627370496 then
      return redis.error_reply('RLCORRUPT the stored state is not ours or is damaged')
    end
    if cost > 0 and available == cost then
      for i = 3, 2 * count + 1, 2 do
        local used = state[i] + cost
        state[i] = used < 9007199254740991 and used or 9007199254740991
      end
      state[1] = now
      local packed = struct.pack(format, unpack(state, 1, 2 * count + 1))
      local lifetime = math.ceil((expires - clock) / 1000)
      redis.call('SET', KEYS[1], shape .. packed, 'PX', (lifetime > 1 and lifetime or 1) + linger)
      return struct.pack('>BI2I7', 0, 0, cost) .. packed
    end
    -- Denied: the windows as they are stored; those that are over count nothing.
    local healed = 0
    if cost > 0 and redis.call('PTTL', KEYS[1]) == -1 then
      redis.call('PEXPIRE', KEYS[1], math.ceil((expires - clock) / 1000) + linger)
      healed = 1
    end
    return struct.pack('>BI2I7I7', healed, 0, 0, now) .. string.sub(stored, #shape + 8)
  end
end
