-- The fast path of checks of several parts: decides requests one after the other. Each stored state
-- must begin with the shape of its policy (see lib/slots.lua) and have no states of other policies.
-- All requests have the same list of policies. They may share subjects, and their costs may differ.
-- A single request that is not decided here is left to parts.lua.
--
-- This is a template (see shape.lua).
--
--   --@ parts … --@ end parts   is repeated for each part. PART stands for its number. The limits
--                               of all parts are numbered in one sequence
--   PARTS                       stands for the number of parts
--   BUCKET_SIZE                 stands for the number of bytes of a bucket of the part's windows
--
-- KEYS        the states of all subjects, each once
-- ARGV        see parts_arguments.lua. For several requests, the cost in a plan is not used
--
-- Returns     1 byte   2
--             1 byte   the number of keys that had lost their expiry
--             and for each request:
--               1 byte   0 if it is denied, 1 if it is allowed; 2, without anything more, if it was
--                        not decided. Its states are unchanged, and the client sends it again in a
--                        call of its own
--               the state of each part as it would be stored
--             and the time of the server, if its clock has stepped back (see shape.lua)
do
  local KEYS, ARGV, call, read, write = KEYS, ARGV, redis.call, struct.unpack, struct.pack
  local found = redis.pcall('MGET', (table.unpack or unpack)(KEYS))
  -- values: the states that were read, with the charges of the requests so far. lifetimes: the
  -- times in ms for which they are needed. is_changed: whether they must be stored. is_renewed:
  -- whether their keys need a new expiry.
  local values, lifetimes, is_changed, is_renewed, replies, count = {}, {}, {}, {}, { '' }, 1
  local request, next_request, is_behind = '>' .. string.rep('I2I7', PARTS), 2 + PARTS, false
  local requests = (#ARGV[1] - 1 - PARTS) / (9 * PARTS)
  --@ parts
  local shape_pPART, format_pPART, size_pPART, <<constants>> = read('>I2c0I2c0xxxxxxxI2<<I7 constants>>', ARGV[1 + PART], 10)
  -- held: the stored form of the state that is in `last` and the cells; false if there is none. The
  -- next request often has the same subject, whose state then need not be unpacked again.
  local key_pPART, cost_pPART, held_pPART, last_pPART, expires_pPART, <<cells>>
  --@ end parts
  for n = 1, requests do
    local now, is_ours, fits = server_time, true, true
    --@ parts
    key_pPART, cost_pPART,
    --@ end parts
    next_request = read(request, ARGV[1], next_request)
    --@ parts
    do
      local stored = values[key_pPART]
      if not stored then
        -- MGET returns nothing for a missing key or a key of another type, and an error if the user
        -- lacks the permission. In all these cases, GET returns the state, nothing for a missing
        -- key, or the error.
        stored = found[key_pPART] or redis.pcall('GET', KEYS[key_pPART])
          or shape_pPART .. string.rep('\0', size_pPART - #shape_pPART)
        values[key_pPART] = stored
      end
      if stored ~= held_pPART then
        held_pPART = false
        if #stored == size_pPART then
          local head
          head, last_pPART, <<cells>> = read(format_pPART, stored)
          if head == shape_pPART then held_pPART = stored end
        end
      end
      if not held_pPART then
        is_ours = false
      elseif last_pPART > now then
        now = last_pPART
      end
    end
    --@ end parts
    if is_ours and now < LATEST then
      --@ parts
      do
        local last, bucket_size = last_pPART, BUCKET_SIZE
        local gone = now - last
        --@ each
        --@ part declare
        --@ part valid
        --@ end
      end
      --@ end parts
    else
      is_ours = false
    end
    count = count + 1
    if now - server_time > 1000 then is_behind = true end
    if is_ours then
      --@ parts
      -- Brings the states of the part up to now. expires: the time at which the key expires, unless
      -- another client has changed its expiry.
      do
        local cost, last, bucket_size = cost_pPART, last_pPART, BUCKET_SIZE
        local gone = now - last
        expires_pPART = 0
        do
          local now = last
          --@ each
          do
            local lasts
            --@ part lasts
            if lasts > expires_pPART then expires_pPART = lasts end
          end
          --@ end
          expires_pPART = last + expires_pPART
        end
        --@ each
        do
          --@ part advance
          local available
          --@ part available
          if available < COST then fits = false end
        end
        --@ end
      end
      --@ end parts
      replies[count] = fits and '\1' or '\0'
      --@ parts
      do
        -- value: the state as it would be stored. lifetime: the time in ms for which it is needed.
        local cost, last, bucket_size = cost_pPART, last_pPART, BUCKET_SIZE
        local longest = 0
        if fits then
          --@ each
          do
            local units = COST
            --@ part charge
          end
          --@ end
        end
        --@ each
        do
          local lasts
          --@ part lasts
          if lasts > longest then longest = lasts end
        end
        --@ end
        local value = write(format_pPART, shape_pPART, now, <<cells>>)
        -- Round the lifetime up to ms.
        local lifetime = now + longest - server_time + 999
        lifetime = (lifetime - lifetime % 1000) / 1000 + linger
        lifetimes[key_pPART] = lifetime
        if fits then
          values[key_pPART], is_changed[key_pPART] = value, true
          held_pPART, last_pPART = value, now
          if now + longest ~= expires_pPART then is_renewed[key_pPART] = true end
        else
          -- The local cells have advanced to `now`, but the state in `values` is unchanged. The
          -- next request reads it again.
          held_pPART = false
        end
        count = count + 1
        replies[count] = value
      end
      --@ end parts
    else
      replies[count] = '\2'
    end
  end
  -- A single request that was not decided is left to parts.lua.
  if requests > 1 or replies[2] ~= '\2' then
    local healed = 0
    for key = 1, #KEYS do
      local lifetime = lifetimes[key]
      if is_changed[key] and not is_renewed[key] and call('PTTL', KEYS[key]) + 5 > lifetime - linger then
        call('SETRANGE', KEYS[key], '0', values[key])
      elseif is_changed[key] then
        call('SET', KEYS[key], values[key], 'PX', string.format('%d', lifetime))
      elseif lifetime and call('PTTL', KEYS[key]) == -1 then
        -- Another client removed the expiry. Without one the key would stay for ever.
        call('PEXPIRE', KEYS[key], lifetime > 0 and lifetime or 1)
        healed = healed + 1
      end
    end
    replies[1] = '\2' .. string.char(healed < 255 and healed or 255)
    if is_behind then replies[count + 1] = write('>I7', server_time) end
    return table.concat(replies)
  end
end
