-- The fast path of a check of several parts. Each stored state must begin with the shape of its
-- policy (see lib/slots.lua) and have no states of other policies. Everything else is left to
-- parts.lua.
--
-- This is a template (see shape.lua).
--
--   --@ include FILE            stands for the lines of this file
--   --@ parts … --@ end parts   is repeated for each part. PART stands for its number. The limits
--                               of all parts are numbered in one sequence
--
-- KEYS, ARGV, Returns  see parts.lua
do
  local now, is_ours = server_time, true
  local found, replies = redis.pcall('MGET', unpack(KEYS)), {}
  --@ parts
  local cost_pPART = struct.unpack('>I7', ARGV[3 * PART], 6)
  local size_pPART, <<constants>> = struct.unpack('>I2<<I7 constants>>', ARGV[3 * PART], 17)
  -- MGET returns nothing for a key that is not a string, or if the user has no permission for it.
  local stored_pPART = found[PART] or redis.pcall('GET', KEYS[PART])
    or ARGV[3 * PART - 1] .. string.rep('\0', size_pPART - #ARGV[3 * PART - 1])
  local last_pPART, <<cells>>
  if #stored_pPART == size_pPART then
    local head
    head, last_pPART, <<cells>> = struct.unpack(ARGV[3 * PART + 1], stored_pPART)
    if head ~= ARGV[3 * PART - 1] then is_ours = false end
    if last_pPART > now then now = last_pPART end
  else
    is_ours = false
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
    if is_ours then
      local fits = true
      --@ parts
      --@ include part_fits
      --@ end parts
      --@ parts
      do
        --@ include part_charge
        local healed = 0
        if fits then
          redis.call('SET', KEYS[PART], value, 'PX', string.format('%d', lifetime))
        elseif redis.call('PTTL', KEYS[PART]) == -1 then
          -- Another client removed the expiry. Without one the key would stay for ever.
          redis.call('PEXPIRE', KEYS[PART], lifetime > 0 and lifetime or 1)
          healed = 1
        end
        replies[PART] = struct.pack('>BI2I7', healed, 0, fits and cost or 0) .. value
      end
      --@ end parts
      return (fits and '\1' or '\0') .. table.concat(replies)
    end
  end
end
