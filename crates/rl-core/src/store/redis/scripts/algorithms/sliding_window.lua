-- Sliding window: the Lua twin of `algorithm/sliding_window.rs`. Change both.
--
-- Cells: the number of the newest bucket, the time of the first charge since the state was empty,
-- the units that count, the units of the newest bucket, and a string of the older buckets. This
-- string has `bucket_size` bytes for each bucket, newest first.
--
-- Bucket n counts while now < (n + 1) * precision + period. The first bucket that counts is
-- therefore floor((now - period) / precision).
--@ cells newest since total current older
--@ constants period max precision

--@ helpers
-- Returns the sum of the buckets from number `from` to number `to`, but at most 2^53 - 1. `size` is
-- the number of bytes of an older bucket.
local function units_of_buckets(from, to, newest, current, older, size)
  local units, format = 0, '>I' .. size
  if to >= newest then units, to = current, newest - 1 end
  for number = math.max(from, newest - #older / size), to do
    units = units + struct.unpack(format, older, (newest - number - 1) * size + 1)
  end
  return math.min(units, 9007199254740991)
end

--@ valid
if newest_i > MAX_UNITS or since_i > MAX_UNITS or total_i > MAX_UNITS or current_i > MAX_UNITS then
  is_ours = false
end

--@ advance
if total_i > 0 then
  local before = (last - period_i - (last - period_i) % precision_i) / precision_i
  local first = (now - period_i - (now - period_i) % precision_i) / precision_i
  if first > newest_i then
    total_i = 0
  elseif first > before then
    if total_i < MAX_UNITS then
      total_i = total_i - units_of_buckets(before, first - 1, newest_i, current_i, older_i, bucket_size)
    else
      -- The total was cut off at its maximum, so nothing can be subtracted. Compute it again.
      total_i = units_of_buckets(first, newest_i, newest_i, current_i, older_i, bucket_size)
    end
  end
end

--@ available
available = max_i - total_i

--@ charge
local number = (now - now % precision_i) / precision_i
if number > newest_i then
  local size, age = #older_i, bucket_size * (number - newest_i)
  if age > size then
    older_i = string.rep('\0', size)
  else
    older_i = string.rep('\0', age - bucket_size) .. struct.pack('>I' .. bucket_size, current_i)
      .. string.sub(older_i, 1, size - age)
  end
  newest_i, current_i = number, 0
end
if since_i == 0 then since_i = now end
current_i = current_i + units
if current_i > MAX_UNITS then current_i = MAX_UNITS end
total_i = total_i + units
if total_i > MAX_UNITS then total_i = MAX_UNITS end

--@ refund
local number = (when - when % precision_i) / precision_i
local place = bucket_size * (newest_i - number - 1) + 1
if when >= since_i and number <= newest_i and place <= #older_i then
  local held = current_i
  if number < newest_i then held = struct.unpack('>I' .. bucket_size, older_i, place) end
  local given = math.min(held, units)
  if number == newest_i then
    current_i = held - given
  else
    older_i = string.sub(older_i, 1, place - 1) .. struct.pack('>I' .. bucket_size, held - given)
      .. string.sub(older_i, place + bucket_size)
  end
  local first = math.floor((now - period_i) / precision_i)
  if total_i == MAX_UNITS then
    -- The total was cut off at its maximum, so nothing can be subtracted. Compute it again.
    total_i = units_of_buckets(first, newest_i, newest_i, current_i, older_i, bucket_size)
  elseif number >= first then
    total_i = total_i - given
  end
end

--@ lasts
lasts = since_i > 0 and (newest_i + 1) * precision_i + period_i - now or 0
