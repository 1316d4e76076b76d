-- Decides checks under fixed windows that begin with the first request, for one subject or for
-- several under one policy. The states must be stored in the shape of the policy. Returns a reply,
-- or leaves the call to decide.lua, which would decide the same.
--
-- This is the loop beside unrolled.lua, which has handled the calls that are allowed. It decides
-- the others, and policies of more than twelve limits. `algorithm/fixed_window/mod.rs` is the same
-- function in Rust. Change all three.
--
-- Every subject has the same number of calls of one cost. The first calls that fit are allowed, or
-- none if fewer than the least number fit.
--
-- KEYS     the state of each subject (see lib/slots.lua)
-- ARGV     shape, plan and format (see decide.lua)
-- Expects  replies and allowed_subjects (see unrolled.lua)
--
-- Returns  if all calls of all subjects are allowed, the states that are stored, one after the
--          other. Otherwise a byte, 1, and for each subject: healed (1 byte), how many of its calls
--          are allowed (2 bytes), and the state as it would be stored. A subject that was not
--          decided has 65535 and nothing more: nothing of it has changed, and the client sends it
--          again in a call of its own.
if allowed_subjects == #KEYS then
  if allowed_subjects == 1 then return replies[1] end
  return table.concat(replies)
end
local _, cost, times = struct.unpack('>I2I7I2', plan)
if kind > 0 and kind <= 16 and cost > 0 then
  local count, decided, width = kind, 0, string.byte(shape, 2)
  local limits = { struct.unpack('>' .. string.rep('I7I7', count), plan, 14) }
  local cells = string.find(format, 'I7', 1, true) + 2
  local rest = limits[2 * count + 1]
  local least = rest < #plan and struct.unpack('>I2', plan, rest) or 1
  for n = 1, #KEYS do
    local head, value, stored = struct.pack('>BI2', 0, times), replies[n], replies[-n]
    if not value then
      head, value = struct.pack('>BI2', 0, 65535), ''
      stored = stored or redis.pcall('GET', KEYS[n])
        or shape .. string.rep('\0', struct.size(format) - #shape)
    end
    local found, as_found = stored and #stored >= #shape and string.byte(stored, 2), format
    if found and (found < 1 or found > 7) then found = nil end
    if found and found ~= width then
      -- Counts that were stored under another max have another width.
      local all = string.gsub(string.sub(format, cells), 'I(%d)I%d', 'I%1I' .. found)
      as_found = string.sub(format, 1, cells - 1) .. all
    end
    if found and #stored == struct.size(as_found) and string.byte(stored, 1) == 3
        and string.sub(stored, 3, #shape) == string.sub(shape, 3) then
      -- The shape, the time, and for each limit the remaining time of its window and the used units.
      local state = { struct.unpack(as_found, stored) }
      local now, available, longest = math.max(clock, state[2]), cost * times, 0
      local gone, is_ours = now - state[2], now < 4503599627370496
      state[2] = now
      for i = 1, 2 * count, 2 do
        local period, max = limits[i], limits[i + 1]
        is_ours = is_ours and state[i + 2] <= period and state[i + 3] <= 9007199254740991
        state[i + 2] = state[i + 2] - gone
        if state[i + 2] <= 0 then state[i + 2], state[i + 3] = 0, 0 end
        available = math.min(available, max - state[i + 3])
      end
      if is_ours then
        local allowed, healed = available >= cost and math.floor(available / cost) or 0, 0
        if allowed < least then allowed = 0 end
        -- The counts of allowed calls do not exceed the max of a limit, so they fit into its width.
        if allowed > 0 then state[1], as_found = shape, format end
        for i = 1, 2 * count, 2 do
          if allowed > 0 then
            -- If no window is open, one begins now.
            if state[i + 2] == 0 then state[i + 2] = limits[i] end
            state[i + 3] = state[i + 3] + allowed * cost
          end
          longest = math.max(longest, state[i + 2])
        end
        value = struct.pack(as_found, unpack(state, 1, 2 * count + 2))
        local lifetime = math.max(1, math.ceil((now + longest - clock) / 1000)) + linger
        if allowed > 0 then
          redis.call('SET', KEYS[n], value, 'PX', lifetime)
        elseif redis.call('PTTL', KEYS[n]) == -1 then
          -- Another client removed the expiry. Without one the key would stay for ever.
          redis.call('PEXPIRE', KEYS[n], lifetime)
          healed = 1
        end
        head, decided = struct.pack('>BI2', healed, allowed), decided + 1
      end
    end
    replies[n] = head .. value
  end
  -- A single subject that was not decided is left to decide.lua.
  if #KEYS > 1 or decided == 1 then return '\1' .. table.concat(replies, '', 1, #KEYS) end
end
