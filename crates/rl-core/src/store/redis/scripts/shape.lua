-- The fast path: checks of one cost under the limits of one shape, for one subject or several. Each
-- stored state must begin with this shape (see lib/slots.lua) and have no states of other policies.
-- Everything else is left to decide.lua.
--
-- This is a template. `composer.rs` writes it out for the algorithms of a policy. The result
-- contains no loop over the limits, and no table or closure for each limit. Each algorithm consists
-- of the parts of its file in algorithms/.
--
--   --@ each … --@ end   is repeated for each limit; names that end in _i then end in _1, _2, …
--   --@ part NAME        is replaced by the part of that name of the limit's algorithm
--   <<cells>>            is replaced by the names of the cells of all limits. After I7, it is
--                        replaced by the same number of integer formats. Likewise <<constants>>,
--                        and <<zeros>>: a 0 for each cell
--   COST                 stands for the cost, or 1 for a limit that counts requests
--   LOGS                 stands for the number of logs
--   --@ logs LINE        is a line that only shapes with logs have. Likewise --@ buckets, for
--                        sliding windows
--
-- Every subject has `times` calls of one cost. As many of them as fit are allowed. If fewer than
-- `least` fit, none is allowed.
--
-- KEYS     see decide.lua. If the mode in the plan is 4, the states of several subjects
-- ARGV     shape, plan and format (see decide.lua)
--
-- Returns  if all calls of all subjects are allowed, the stored states, one after the other.
--          Otherwise a byte, 1, and for each subject:
--            1 byte   healed: the number of its keys that had lost their expiry
--            2 bytes  the number of its allowed calls; 65535, without anything more, if the subject
--                     was not decided. Its state is unchanged, and the client sends it again in a
--                     call of its own
--            the state as it would be stored
--            7 bytes  for each log, the time at which enough units for a denied call will be
--                     available; 0 if they are available now, or never will be
--          In both cases 7 bytes follow if a state was changed more than 1 ms after the time of the
--          server, because the server's clock has stepped back: the time of the server
do
  local times, least, cost, size, <<constants>> = struct.unpack('>I2I2I7I2<<I7 constants>>', plan, 6)
  local subjects, bucket_size = #KEYS, string.byte(shape, 2)
  -- Local variables are faster to read than global ones.
  local KEYS, call, read, write = KEYS, redis.call, struct.unpack, struct.pack
  --@ logs if string.byte(plan) ~= 4 then subjects = 1 end
  --@ logs local is_refund = false
  -- all: the values under the keys. replies: the parts of the reply. partly: the subjects for which
  -- not all calls are allowed.
  -- time: the time of the server if its clock has stepped back, else empty.
  local all, replies, partly, last_lifetime, lifetime_text
  local time = ''
  if subjects > 1 then all, replies = redis.pcall('MGET', (table.unpack or unpack)(KEYS)), {} end
  for n = 1, subjects do
    -- If MGET has no value for a key, GET finds out why. For MGET, a key of another type looks like
    -- a missing key; GET returns an error for it. If the user may not call MGET or may not read one
    -- of the keys, MGET fails for all keys; GET then returns what each key has.
    local stored = all and all[n] or redis.pcall('GET', KEYS[n])
    --@ buckets stored = stored or shape .. string.rep('\0', size - #shape)
    local calls, healed, value, waits = 65535, 0, '', ''
    local is_sized = not stored or #stored == size
    --@ logs is_sized = is_sized or #stored > size
    if is_sized then
      local head, last, <<cells>>
      if stored then
        head, last, <<cells>> = read(format, stored)
      else
        head, last, <<cells>> = shape, 0, <<zeros>>
      end
      local now = clock
      if last > now then
        if last - now > 1000 then time = write('>I7', now) end
        now = last
      end
      local gone, is_ours = now - last, head == shape and now < LATEST
      --@ logs local rest, tails = size + 1, ''
      --@ each
      --@ part declare
      --@ part valid
      --@ end
      --@ logs is_ours = is_ours and (not stored or rest == #stored + 1)
      if is_ours then
        -- expires: the time at which the key expires, unless another client has changed its expiry.
        local allowed, longest, expires = times, 0, 0
        do
          local now = last
          --@ each
          do
            local lasts
            --@ part lasts
            if lasts > expires then expires = lasts end
          end
          --@ end
          expires = last + expires
        end
        --@ each
        do
          --@ part advance
          local available
          --@ part available
          if available < COST * allowed then allowed = (available - available % COST) / COST end
        end
        --@ end
        if allowed < least then allowed = 0 end
        if allowed < times then
          --@ each
          do
            --@ part denied
          end
          --@ end
        end
        if is_ours then
          calls = allowed
          if calls > 0 then
            --@ each
            do
              local units = COST * calls
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
          --@ each
          --@ part join
          --@ end
          value = write(format, shape, now, <<cells>>)
          local state = value
          --@ logs state = value .. tails
          -- Round the lifetime up to ms.
          local lifetime = now + longest - clock + 999
          lifetime = (lifetime - lifetime % 1000) / 1000 + linger
          -- SETRANGE keeps the expiry, and takes a third of the time of a SET with an expiry. PTTL
          -- finds out whether another client has removed or shortened the expiry. The server rounds
          -- times to ms.
          local is_kept = calls > 0 and now + longest == expires
          --@ logs is_kept = is_kept and #state == #stored
          if is_kept and call('PTTL', KEYS[n]) + 5 > lifetime - linger then
            call('SETRANGE', KEYS[n], '0', state)
          elseif calls > 0 then
            -- `string.format` takes less time than the server's conversion of a number to text.
            -- Subjects often have the same lifetime, so its text is reused.
            if lifetime ~= last_lifetime then
              last_lifetime, lifetime_text = lifetime, string.format('%d', lifetime)
            end
            call('SET', KEYS[n], state, 'PX', lifetime_text)
          else
            if call('PTTL', KEYS[n]) == -1 then
              -- Another client removed the expiry. Without one the key would stay for ever.
              call('PEXPIRE', KEYS[n], lifetime > 0 and lifetime or 1)
              healed = 1
            end
            --@ each
            --@ part heal
            --@ end
          end
          if calls < times then
            --@ each
            --@ part wait
            --@ end
          end
        end
      end
    end
    if subjects == 1 then
      -- To append an empty string copies nothing.
      if calls == times then return value .. time end
      if calls < 65535 then return struct.pack('>BBI2', 1, healed, calls) .. value .. waits .. time end
      -- A GET of a key of another type returns an error table. decide.lua reports that error.
      found = type(stored) == 'string' and stored
    elseif calls == times then
      replies[n] = value
    else
      partly = partly or {}
      partly[n], replies[n] = true, struct.pack('>BI2', healed, calls) .. value .. waits
    end
  end
  if subjects > 1 then
    if not partly then return table.concat(replies) .. time end
    local head, waits = struct.pack('>BI2', 0, times), string.rep('\0', 7 * LOGS)
    for n = 1, subjects do
      if not partly[n] then replies[n] = head .. replies[n] .. waits end
    end
    return '\1' .. table.concat(replies) .. time
  end
  -- A single subject that was not decided is left to decide.lua.
end
