-- The common case: a check of fixed windows that begin with the first request, of one subject or of
-- many under one policy, stored in the shape of the policy. Decides and returns, or leaves everything
-- to decide.lua, which would do the same; `algorithm/fixed_window.rs` is the same function in Rust.
-- Change all three.
--
-- What passes has been dealt with in fixed_unrolled.lua, where there are no more than eight limits.
-- Each subject is as many calls of the same cost: as many of them pass as fit, the first of them.
--
-- KEYS     the state of each subject (see slots.lua)
-- ARGV     shape and plan (see decide.lua)
--
-- Returns  if all calls of all subjects pass, the states that are stored, one after the other. Else a
--          byte, 2, and for each subject: healed (1 byte), how many of its calls pass (2 bytes), and
--          the state; or 65535 and nothing more, if the subject was not decided: nothing has changed,
--          and it is to be asked for alone
if passed == #KEYS then
  if passed == 1 then return told[1] end
  return table.concat(told)
end
local kind, cost, times, from = struct.unpack('>I2I7I2', plan)
if kind == 1 and cost > 0 then
  local count, decided = string.byte(shape, 2), 0
  local format = '>I7' .. string.rep('I7I7', count)
  local limits = { struct.unpack('>' .. string.rep('I7I7', count), plan, from) }
  for n = 1, #KEYS do
    local head, value = struct.pack('>BI2', 0, times), told[n]
    local stored = told[-n] or not value and redis.pcall('GET', KEYS[n])
    if not value then
      head, value = struct.pack('>BI2', 0, 65535), ''
      stored = stored or shape .. string.rep('\0', 7 + 14 * count)
    end
    if stored and #stored == #shape + 7 + 14 * count and string.find(stored, shape, 1, true) == 1 then
      local state = { struct.unpack(format, stored, #shape + 1) }
      local now, room, expires = math.max(clock, state[1]), cost * times, 0
      local largest = state[1]
      for i = 2, 2 * count, 2 do
        local period, max = limits[i - 1], limits[i]
        local ends = state[i] + period
        largest = math.max(largest, state[i], state[i + 1])
        if now >= ends or (state[i] == 0 and state[i + 1] == 0) then
          -- No window is open: one begins now, if a call passes.
          state[i], state[i + 1], ends = now, 0, now + period
        end
        room = math.min(room, max - state[i + 1])
        expires = math.max(expires, ends)
      end
      if largest <= 9007199254740991 and now < 4503599627370496 then
        local passing, healed = room >= cost and math.floor(room / cost) or 0, 0
        local lifetime = math.ceil((expires - clock) / 1000) + linger
        if passing > 0 then
          state[1] = now
          for i = 3, 2 * count + 1, 2 do state[i] = state[i] + passing * cost end
          value = shape .. struct.pack(format, unpack(state, 1, 2 * count + 1))
          redis.call('SET', KEYS[n], value, 'PX', lifetime)
        else
          -- The windows as they are stored; those that are over count nothing.
          value = shape .. struct.pack('>I7', now) .. string.sub(stored, #shape + 8)
          if redis.call('PTTL', KEYS[n]) == -1 then
            -- Somebody took the expiry away; without one the key would stay for ever.
            redis.call('PEXPIRE', KEYS[n], lifetime)
            healed = 1
          end
        end
        head, decided = struct.pack('>BI2', healed, passing), decided + 1
      end
    end
    told[n] = head .. value
  end
  -- One that is not so simple is decided below.
  if #KEYS > 1 or decided == 1 then return '\2' .. table.concat(told, '', 1, #KEYS) end
end
