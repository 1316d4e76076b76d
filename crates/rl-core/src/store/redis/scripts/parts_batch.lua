-- Decides checks of several parts, one request after the other, if each stored state begins with
-- the shape of its policy (see lib/slots.lua) and has no states of other policies. All requests
-- have the same list of policies. They may share subjects, and their costs may differ.
--
-- This is a template (see parts_shape.lua). PARTS stands for the number of parts of a request.
--
-- KEYS      the states of all subjects, each once
-- ARGV[1]   for each part of each request: the index of its key (2 bytes), and its cost (7 bytes)
-- ARGV[2…]  for each part, the three arguments of decide.lua. The cost in the plan is not used
--
-- Returns   1 byte   the number of keys that had lost their expiry
--           and for each request:
--             1 byte   0 if it is denied, 1 if it is allowed; 2, without anything more, if it was not
--                      decided. Its states are unchanged, and the client sends it again in a call of
--                      its own
--             the state of each part as it would be stored
local found = redis.pcall('MGET', unpack(KEYS))
-- values: the states that were read, with the charges of the requests so far. lifetimes: the times
-- in ms for which they are needed. is_changed: whether they must be stored.
local values, lifetimes, is_changed, replies, next_part = {}, {}, {}, { '' }, 1
--@ parts
local size_pPART, <<constants>> = struct.unpack('>I2<<I7 constants>>', ARGV[3 * PART], 17)
--@ end parts
for n = 1, #ARGV[1] / (9 * PARTS) do
  local now, is_ours, fits = server_time, true, true
  --@ parts
  local key_pPART, cost_pPART, last_pPART, <<cells>>
  key_pPART, cost_pPART, next_part = struct.unpack('>I2I7', ARGV[1], next_part)
  do
    local stored = values[key_pPART]
    if not stored then
      -- MGET returns nothing for a key that is not a string, or if the user has no permission for
      -- it.
      stored = found[key_pPART] or redis.pcall('GET', KEYS[key_pPART])
        or ARGV[3 * PART - 1] .. string.rep('\0', size_pPART - #ARGV[3 * PART - 1])
      values[key_pPART] = stored
    end
    if #stored == size_pPART then
      local head
      head, last_pPART, <<cells>> = struct.unpack(ARGV[3 * PART + 1], stored)
      if head ~= ARGV[3 * PART - 1] then is_ours = false end
      if last_pPART > now then now = last_pPART end
    else
      is_ours = false
    end
  end
  --@ end parts
  if is_ours and now < LATEST then
    --@ parts
    do
      local last, bucket_size = last_pPART, string.byte(ARGV[3 * PART - 1], 2)
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
  if is_ours then
    --@ parts
    --@ include part_fits
    --@ end parts
    replies[#replies + 1] = fits and '\1' or '\0'
    --@ parts
    do
      --@ include part_charge
      lifetimes[key_pPART] = lifetime
      if fits then values[key_pPART], is_changed[key_pPART] = value, true end
      replies[#replies + 1] = value
    end
    --@ end parts
  else
    replies[#replies + 1] = '\2'
  end
end
local healed = 0
for key = 1, #KEYS do
  local lifetime = lifetimes[key]
  if is_changed[key] then
    redis.call('SET', KEYS[key], values[key], 'PX', string.format('%d', lifetime))
  elseif lifetime and redis.call('PTTL', KEYS[key]) == -1 then
    -- Another client removed the expiry. Without one the key would stay for ever.
    redis.call('PEXPIRE', KEYS[key], lifetime > 0 and lifetime or 1)
    healed = healed + 1
  end
end
replies[1] = string.char(healed < 255 and healed or 255)
return table.concat(replies)
