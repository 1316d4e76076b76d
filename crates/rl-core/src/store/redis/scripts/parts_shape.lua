-- The fast path of a check of several parts. Each stored state must begin with the shape of its
-- policy (see lib/slots.lua) and have no states of other policies. Everything else is left to
-- parts.lua.
--
-- This is a template (see shape.lua).
--
--   --@ include FILE            stands for the lines of that file
--   --@ parts … --@ end parts   is repeated for each part. PART stands for its number. The limits
--                               of all parts are numbered in one sequence
--   PARTS                       stands for the number of parts
--   BUCKET_SIZE                 stands for the number of bytes of a bucket of the part's windows
--
-- KEYS, ARGV  see parts.lua and parts_arguments.lua
-- Returns     a byte, 2, if the request is allowed; else a byte, 3, and a byte, the number of keys
--             that had lost their expiry; then the state of each part as it would be stored; then
--             the time of the server, if its clock has stepped back (see shape.lua)
do
  local now, is_ours, fits, healed = server_time, true, true, 0
  -- Local variables are faster to read than global ones.
  local KEYS, ARGV, call, read, write = KEYS, ARGV, redis.call, struct.unpack, struct.pack
  --@ parts
  local shape_pPART, format_pPART, cost_pPART, size_pPART, <<constants>> = read('>I2c0I2c0I7I2<<I7 constants>>', ARGV[PART], PART == 1 and 11 + PARTS or 10)
  -- For a key that is not a string, this is an error table.
  local value_pPART = redis.pcall('GET', KEYS[PART])
    or shape_pPART .. string.rep('\0', size_pPART - #shape_pPART)
  local last_pPART, expires_pPART, <<cells>>
  if #value_pPART == size_pPART then
    local head
    head, last_pPART, <<cells>> = read(format_pPART, value_pPART)
    if head ~= shape_pPART then is_ours = false end
    if last_pPART > now then now = last_pPART end
  else
    is_ours = false
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
    if is_ours then
      --@ parts
      --@ include part_fits
      --@ end parts
      --@ parts
      do
        --@ include part_charge
        value_pPART = value
        -- SETRANGE keeps the expiry (see shape.lua).
        local is_kept = fits and now + longest == expires_pPART
        if is_kept and call('PTTL', KEYS[PART]) + 5 > lifetime - linger then
          call('SETRANGE', KEYS[PART], '0', value)
        elseif fits then
          call('SET', KEYS[PART], value, 'PX', string.format('%d', lifetime))
        elseif call('PTTL', KEYS[PART]) == -1 then
          -- Another client removed the expiry. Without one the key would stay for ever.
          call('PEXPIRE', KEYS[PART], lifetime > 0 and lifetime or 1)
          healed = healed + 1
        end
      end
      --@ end parts
      return (fits and '\2' or '\3' .. string.char(healed))
      --@ parts
        .. value_pPART
      --@ end parts
        .. (now - server_time > 1000 and write('>I7', server_time) or '')
    end
  end
end
