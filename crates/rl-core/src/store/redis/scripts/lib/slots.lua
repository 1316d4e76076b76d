-- The packed layout: the states of all limits of one subject in one string.
--
--   ┌─────────┬───────┬──────┬────────┬──────┬─────────┬─────────┬───┬───────────┬─
--   │ version │ width │ code │ tags … │ last │ cells … │ cells … │ … │ entries … │ …
--   │ 1 byte  │ 1     │ 1    │        │ 7    │ limit 1 │ limit 2 │   │ log 1     │
--   └─────────┴───────┴──────┴────────┴──────┴─────────┴─────────┴───┴───────────┴─
--   shape: version to tags
--
--   version  6
--   width    the number of bytes of a count
--   code     the states that follow. Below 64, it is a set of named periods, one bit each from the
--            second to the month: the states are fixed windows that begin with the first request.
--            With 64 added, they are sliding window counters. Otherwise the code is 128 plus the
--            number of tags
--   tags     one for each limit, if the code is 128 or more
--   last     the time of the last change, in µs
--   cells    the cells of each state, in the order of the file of its algorithm
--   entries  the newest entries of each log (see algorithms/sliding_log.lua)
--
-- Numbers are big-endian. A tag begins with a byte: algorithm * 16 + period (1 for the second … 6
-- for the month), plus 8 if the limit counts requests. For any other period, 128 is added, and the
-- period in ms follows (6 bytes). For a sliding window, the precision in ms follows (6 bytes). For
-- algorithm 7, a byte follows: 0 for a sliding log, 1 for concurrency, 2 for a fixed window on the
-- clock with an offset, which follows in ms (6 bytes).
--
-- Cells have 7 bytes, with these exceptions:
--
--   counts of fixed windows and of sliding window counters   `width` bytes
--   times to the end of fixed windows                        as many bytes as hold the period
--   the time in a sliding window counter                     as many bytes as hold two periods
--   the older buckets of a sliding window                    `width` bytes each
--
-- KEYS[1]   the subject's state
-- KEYS[2…]  the sealed blocks of each log of the policy, in the order of the tags
-- ARGV      see lib/arguments.lua. The shape lists the limits in the order of their kinds, or of
--           their periods if there are no tags. Its width is the number of bytes of the largest
--           max; a stored state may have a larger width
--
-- Expects  stored: the value under the key
-- Sets     stored: the state under the subject's key, or false. A key of another type is an error
--          slots: one for each limit of the policy, { kind, period, extra, cells … }. That of a
--          log has its newest entries as `tail`
--          foreign: states of other policies of the subject that still count. None of them may be
--          dropped, so decide.lua rejects a charge if there are more than 16
--          clock: the time by which keys expire
--          now: the time of the decision, never before the last change
local stored = found or redis.call('GET', KEYS[1])
local NAMED = { 1000000, 60000000, 3600000000, 86400000000, 604800000000, 2592000000000 }
local KINDS = { [2] = 3, [3] = 4, [4] = 5, [5] = 5, [6] = 6 }
-- The formats of integers of 1 to 7 bytes. They are listed here, because the server takes long to
-- convert a number to text.
local INTEGERS = { 'I1', 'I2', 'I3', 'I4', 'I5', 'I6', 'I7' }

-- Reads the code, and the tags if there are any. Returns the slots and the position after the tags.
-- Returns nothing if the bytes are not a valid code.
local function read_code(bytes)
  local code, at, read, keys = string.byte(bytes, 3) or 128, 4, {}, 1
  if code < 128 then
    local kind, tag = 0, 0
    if code >= 64 then kind, tag, code = 3, 32, code - 64 end
    for place = 1, 6 do
      if code % 2 == 1 then
        read[#read + 1] = { kind = kind, period = NAMED[place], extra = 0, tag = string.char(tag + place) }
      end
      code = floor(code / 2)
    end
    return read, at
  end
  for i = 1, code - 128 do
    local head, from = string.byte(bytes, at), at
    if not head then return nil end
    local algorithm, period, extra = floor(head % 128 / 16), NAMED[head % 8], 0
    at = at + 1
    if head >= 128 and #bytes >= at + 5 then
      period, at = struct.unpack('>I6', bytes, at) * 1000, at + 6
    end
    if algorithm == 3 and #bytes >= at + 5 then
      extra, at = struct.unpack('>I6', bytes, at) * 1000, at + 6
    end
    if not period or period == 0 or (algorithm == 3 and extra == 0) then return nil end
    local kind = KINDS[algorithm] or 0
    if algorithm == 7 then
      local variant = string.byte(bytes, at)
      if not variant or variant > 2 or (variant == 2 and #bytes < at + 6) then return nil end
      if variant == 2 then
        algorithm, at = 1, at + 7
      else
        kind, at, keys = 7 + variant, at + 1, keys + 1
        extra = keys
      end
    end
    if algorithm == 1 then kind = period == NAMED[6] and 2 or 1 end
    read[i] = { kind = kind, period = period, extra = extra, tag = string.sub(bytes, from, at - 1) }
  end
  return read, at
end

-- Returns the number of bytes that `number` needs, but at least `bytes`.
local function bytes_of(number, bytes)
  local most = 256 ^ bytes
  while number >= most do bytes, most = bytes + 1, most * 256 end
  return bytes
end

-- Returns the format in which struct reads and writes the cells of these slots. Counts have `width`
-- bytes.
local function format_of(all, width)
  local formats = {}
  for i, slot in ipairs(all) do
    local kind, period = slot.kind, slot.period
    if kind == 0 then
      formats[i] = INTEGERS[bytes_of(period, 1)] .. INTEGERS[width]
    elseif kind < 3 then
      formats[i] = INTEGERS[bytes_of(period, 1)] .. INTEGERS[width] .. 'I7'
    elseif kind == 3 then
      formats[i] = INTEGERS[bytes_of(2 * period, 1)] .. INTEGERS[width] .. INTEGERS[width]
    elseif kind == 4 then
      formats[i] = 'I7I7I7I7c' .. width * ceil(period / slot.extra)
    else
      formats[i] = string.rep('I7', cell_counts[kind])
    end
  end
  return table.concat(formats)
end

-- Converts a string of older buckets from `old_size` bytes for each bucket to `size` bytes. If
-- `size` is smaller, the units of each bucket must fit.
local function resized(older, old_size, size)
  if size == old_size then return older end
  local bytes = string.rep('.', min(size, old_size))
  local wanted = size < old_size and string.rep('.', old_size - size) .. '(' .. bytes .. ')' or bytes
  return (string.gsub(older, wanted, string.rep('\0', max_of(0, size - old_size)) .. '%1'))
end

-- Reads the time from a stored value with the shape `head`, and fills the slots in `read`. Returns
-- the time, or nothing if the value is damaged. A time or count of more than 2^53 - 1 counts
-- as damage, because these scripts never store one, and struct.pack would truncate it. Times from
-- the year 2112 on are rejected too, so that the end of a window never exceeds the largest time.
local function read_cells(bytes, head, read, width)
  local cells = format
  if head ~= shape then cells = '>c' .. #head .. 'I7' .. format_of(read, width) end
  local rest = struct.size(cells) + 1
  if #bytes < rest - 1 then return nil end
  local values, next_value = { struct.unpack(cells, bytes) }, 3
  local is_ours = values[2] < LATEST
  last = values[2]
  for _, slot in ipairs(read) do
    for cell = 1, cell_counts[slot.kind] do
      local value = values[next_value]
      slot[cell], next_value = value, next_value + 1
      is_ours = is_ours and (type(value) == 'string' or value <= MAX_UNITS)
    end
    if slot.kind == 4 then slot[5] = resized(slot[5], width, bucket_size) end
    if slot.kind > 6 then rest = sliding_log.read(slot, bytes, rest) end
    is_ours = is_ours and algorithms[slot.kind]('valid', slot)
  end
  return is_ours and rest == #bytes + 1 and last or nil
end

-- Sets the state of a slot to that of an unused limit.
local function clear(slot)
  for cell = 1, cell_counts[slot.kind] do slot[cell] = 0 end
  if slot.kind > 6 then slot.tail = '' end
  if slot.kind == 4 then slot[5] = string.rep('\0', bucket_size * ceil(slot.period / slot.extra)) end
end

-- Brings the cells of all slots to a later time.
local function advance_to(time, ...)
  last, now, gone = now, time, time - now
  for _, all in ipairs({ ... }) do
    for _, slot in ipairs(all) do algorithms[slot.kind]('advance', slot) end
  end
end

local slots, foreign = read_code(shape), {}

-- Reads the constants of the policy's limits from the plan. Returns the position after them.
local function read_constants(at)
  for _, slot in ipairs(slots) do
    slot.max, at = struct.unpack('>I7', plan, at + 7)
    -- For a sliding window (kind 4) the number is the precision, which the tag contains too. For
    -- buckets and GCRA it is the capacity. It is not in the tag, so it may change while the state
    -- is kept. For windows on the clock (kinds 1 and 2) it is their alignment.
    if slot.kind > 0 and slot.kind < 7 and slot.kind ~= 3 then
      slot.extra, at = struct.unpack('>I7', plan, at)
    end
  end
  return at
end

local is_ours, width = true, stored and string.byte(stored, 2)
-- An older bucket has the larger of two widths: that of the policy's shape, and that of the stored
-- state. The newest bucket fits when it becomes an older one, because `pack` chose the stored width
-- for it too. This call adds units only to the newest bucket, which is a cell of its own.
bucket_size = string.byte(shape, 2)
if width and width <= 7 then bucket_size = max_of(bucket_size, width) end
for _, slot in ipairs(slots) do clear(slot) end
if stored then
  local others, head = slots, string.sub(stored, 1, #shape)
  if head ~= shape then
    -- The state has the shape of another policy, or wider counts.
    local is_known, from = string.byte(stored, 1) == string.byte(shape) and width and width >= 1 and width <= 7, nil
    others = nil
    if is_known then others, from = read_code(stored) end
    head = others and string.sub(stored, 1, from - 1)
  end
  is_ours = others and read_cells(stored, head, others, width)
  if is_ours then
    if others ~= slots then
      local wanted = {}
      for _, slot in ipairs(slots) do wanted[slot.tag] = slot end
      for _, other in ipairs(others) do
        local slot = wanted[other.tag]
        if slot then
          for cell = 1, cell_counts[slot.kind] do slot[cell] = other[cell] end
          slot.tail = other.tail
        else
          foreign[#foreign + 1] = other
        end
      end
    end
  end
end
if not is_ours then
  return redis.error_reply('RLCORRUPT the stored state is damaged or was written by another program')
end

-- No decision is made at a time before the last change, so a clock that stepped back grants
-- nothing. The expiry of keys still uses the time of the clock.
now = stored and last or now
advance_to(max_of(clock, now), slots, foreign)
for i = #foreign, 1, -1 do
  if algorithms[foreign[i].kind]('lasts', foreign[i]) <= 0 then table.remove(foreign, i) end
end

-- Check the logs before anything is written, because a script is not rolled back.
for _, slot in ipairs(slots) do
  if slot.kind > 6 and not sliding_log.open(slot) then
    return redis.error_reply('RLCORRUPT the entries of a log are damaged or were written by another program')
  end
end

-- Returns the time in ms for which the key is needed.
local function lifetime()
  local lasts = 0
  for _, all in ipairs({ slots, foreign }) do
    for _, slot in ipairs(all) do lasts = max_of(lasts, algorithms[slot.kind]('lasts', slot)) end
  end
  return max_of(1, ceil((now + lasts - clock) / 1000)) + linger
end

-- Returns the number of bytes that the largest older bucket of a slot needs, but at least `bytes`.
local function bytes_of_buckets(slot, bytes)
  local older = slot[5]
  local units = { struct.unpack('>' .. string.rep('I' .. bucket_size, #older / bucket_size), older) }
  -- The last value is not a bucket, but the position at which `struct.unpack` has stopped.
  units[#units] = 0
  return bytes_of(max_of((table.unpack or unpack)(units)), bytes)
end

-- Returns the stored form of the states of these slots, without the entries of logs. `code` is the
-- part of their shape after the width. An older bucket gets at least `least` bytes. Without
-- `least`, this number is computed from all buckets, which takes long.
local function pack(all, code, least)
  local width, values = string.byte(shape, 2), { now }
  for _, slot in ipairs(all) do
    if slot.kind < 4 then width = bytes_of(slot[2], width) end
    if slot.kind == 3 then width = bytes_of(slot[3], width) end
    if slot.kind == 4 then
      -- The newest bucket will become an older one, so the width must suffice for it too.
      width = bytes_of(slot[4], max_of(width, least or 1))
      if width < bucket_size then width = bytes_of_buckets(slot, width) end
    end
  end
  local count = 1
  for _, slot in ipairs(all) do
    if slot.kind > 6 then slot[8] = #slot.tail / ENTRY end
    local cells = cell_counts[slot.kind]
    for cell = 1, cells do values[count + cell] = slot[cell] end
    count = count + cells
    if slot.kind == 4 then values[count] = resized(slot[5], bucket_size, width) end
  end
  if all == slots and width == string.byte(shape, 2) then return struct.pack(format, shape, (table.unpack or unpack)(values)) end
  return struct.pack('>c2c' .. #code .. 'I7' .. format_of(all, width), string.char(string.byte(shape), width), code, (table.unpack or unpack)(values))
end

-- Returns the states of the policy for a reply, and for each log the time at which the required
-- units will be available.
local function reply_states()
  local reply = { pack(slots, string.sub(shape, 3), bucket_size) }
  for _, slot in ipairs(slots) do
    if slot.kind > 6 then reply[#reply + 1] = struct.pack('>I7', sliding_log.passes_at(slot)) end
  end
  return table.concat(reply)
end

-- Stores the states, and the states of other policies (`foreign`) that still count.
local function save()
  -- If there are foreign states, the buckets keep their width. To find a smaller width, all buckets
  -- would have to be read. It would gain nothing, because the fast path cannot read a value with
  -- foreign states anyway.
  local all, code, least = slots, string.sub(shape, 3), nil
  if #foreign > 0 then
    all, code, least = {}, '', bucket_size
    -- After a refund or a reset there may be more than 16 foreign states. In that case, unused
    -- states of the policy are not stored, so that no value holds more than 32 states.
    for _, slot in ipairs(slots) do
      if #foreign <= 16 or algorithms[slot.kind]('lasts', slot) > 0 then all[#all + 1] = slot end
    end
    for _, other in ipairs(foreign) do all[#all + 1] = other end
    local tags = { string.char(128 + #all) }
    for i, slot in ipairs(all) do tags[i + 1] = slot.tag end
    code = table.concat(tags)
  end
  local value = { pack(all, code, least) }
  for _, slot in ipairs(all) do
    if slot.kind > 6 then
      sliding_log.write(slot)
      value[#value + 1] = slot.tail
    end
  end
  redis.call('SET', KEYS[1], table.concat(value), 'PX', lifetime())
end
