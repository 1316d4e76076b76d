-- The fast path of the readable layout: a check under enforced limits, written out for each of them
-- (see shape.lua). It leaves counters with a wrong expiry, and values that are not counts, to
-- parts.lua.
--
--   --@ time   reads the time, after the writes. If it were read before, it could precede the start
--              of a window that the charge opens. Such a charge could not be refunded
--
-- KEYS, ARGV  see parts.lua, for a single part
--
-- Returns     see parts.lua
do
  local KEYS, call = KEYS, redis.call
  local cost, <<max>> = struct.unpack('>I7<<I7 max>>', ARGV[3], 6)
  local <<period>> = struct.unpack('><<I7 period>>', ARGV[2])
  local found, fits, is_ours = redis.pcall('MGET', (table.unpack or unpack)(KEYS)), true, true
  -- MGET returns nothing for a missing key or a key of another type, and an error if the user lacks
  -- the permission. In all these cases, GET returns the counter, nothing for a missing key, or the
  -- error. The first missing key needs no GET if its window is opened before any other key is
  -- written, and only if there is no such key.
  local first
  --@ each
  local text_i, used_i, ttl_i = found[INDEX], 0, 0
  if not text_i then
    if first or found.err then text_i = call('GET', KEYS[INDEX]) else first = INDEX end
  end
  if not text_i then
    text_i = '0'
  else
    used_i, ttl_i = tonumber(text_i) or -1, ttl_of(INDEX)
    if used_i < 0 or used_i > 9007199254740991 or ttl_i == -1 or ttl_i > period_i then
      is_ours = false
    elseif ttl_i <= 0 then
      used_i, ttl_i = 0, 0
    end
  end
  if used_i + COST > max_i then fits = false end
  --@ end
  local texts = ',' .. <<.. text>>
  -- Leave numbers with a leading zero, or with a character other than a digit, to parts.lua.
  is_ours = is_ours and not string.find(texts, '[^%d,]') and not string.find(texts, ',0%d')
  local units = cost == 1 and '1' or string.format('%d', cost)
  if is_ours and fits and first then
    --@ each
    if first == INDEX then
      is_ours = open_window(INDEX, TEXT, period_i, 'NX')
      used_i, ttl_i = COST, period_i
    end
    --@ end
  elseif first then
    call('GET', KEYS[first])
  end
  if is_ours then
    if fits then
      --@ each
      if first == INDEX then
        -- Its window is open already.
      elseif ttl_i > 0 then
        used_i = call('INCRBY', KEYS[INDEX], TEXT)
      else
        open_window(INDEX, TEXT, period_i)
        used_i, ttl_i = COST, period_i
      end
      --@ end
    end
    --@ time
    local part = now % 1000
    --@ each
    ttl_i = ttl_i > 0 and ttl_i * 1000 - part or 0
    --@ end
    local verdict = fits and struct.pack('>BI3I7', 1, 0, cost) or string.rep('\0', 11)
    return verdict .. struct.pack(ARGV[5], ARGV[4], now, <<ttl, used>>)
  end
end
