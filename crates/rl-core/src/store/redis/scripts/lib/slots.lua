-- The packed layout: the states of all limits of one subject in one string.
--
--   version  1 byte, 3
--   width    1 byte, the bytes of a count
--   code     which states it is, whatever their max: 1 byte, bits for the second to the month, if all
--            are fixed windows that begin with the first request, and 64 more, if all are sliding
--            window counters; else 128 and their number, and a tag for each
--   last     7 bytes, the time of the last change, µs
--   cells    the integers of each state, one state after the other
--
-- Numbers are big-endian. The head of a tag is 1 byte, algorithm * 16 + place (1 for the second … 6
-- for the month), and 8 more if the limit counts requests. For other periods the place is 0, 128 is added and the period in ms follows, 6
-- bytes. A sliding window's precision in ms follows, 6 bytes; for algorithm 7 a byte, 0 for a sliding
-- log and 1 for concurrency.
--
-- Cells are of 7 bytes, but for two algorithms that keep them short. A fixed window that begins with the
-- first request has instead of its beginning the time that was left of it at the last change, 0 if it
-- was over, in as many bytes as hold its period. A sliding window counter has the time since its
-- beginning and 1, 0 if it is over, in as many bytes as hold two periods, and in as many the time from
-- the beginning of the window before to its first charge, and 1. Their counts are of `width`.
--
-- KEYS[1]   the subject's state
-- KEYS[2…]  the ring of each log of the policy, in its order (see sliding_log.lua)
-- ARGV[1]   shape: version, width and code of the policy's limits, in its order; where it has no tags,
--           in that of their periods. The width is that of the largest max: it may be larger in what
--           is stored
-- ARGV[3]   format: how struct reads and writes a state of this shape, which is the first it reads
--
-- Expects  stored, what is under the key
-- Sets     slots, one for each limit of the policy: { at, kind, period, extra },
--          state { last, cells … } in the order of the slots,
--          foreign: states of other policies of the subject that still count; decide.lua charges
--          nothing beside more than 16, because none may be forgotten, and
--          clock: the time that keys expire by, while now is never before the last change
local NAMED = { 1000000, 60000000, 3600000000, DAY, 7 * DAY, 30 * DAY }
local LATEST = 4503599627370496
local KINDS = { [2] = 4, [3] = 5, [4] = 6, [5] = 6, [6] = 7 }

-- Reads so many tags into slots whose cells lie behind `last`. Returns the slots, where the tags end and
-- how many integers follow; or nothing, if these are no tags.
local function read_tags(bytes, at, count)
  local read, cells, keys = {}, 2, 1
  for i = 1, count do
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
      if not variant or variant > 1 then return nil end
      kind, at, keys = 8 + variant, at + 1, keys + 1
      extra = keys
    end
    if algorithm == 1 then
      kind = period == 30 * DAY and 3 or period % (7 * DAY) == 0 and 2 or 1
    end
    local slot = { at = cells, kind = kind, period = period, extra = extra }
    slot.tag, slot.cells = string.sub(bytes, from, at - 1), algorithms[kind].cells(period, extra)
    cells = cells + slot.cells
    read[i] = slot
  end
  return read, at, cells - 1
end

-- Reads the code likewise.
local function read_code(bytes)
  local code = string.byte(bytes, 3)
  if not code or code >= 128 then return read_tags(bytes, 4, (code or 128) - 128) end
  local read, at = {}, 2
  local kind, cells, tag = 0, 2, 0
  if code >= 64 then kind, cells, tag, code = 4, 4, 32, code - 64 end
  for place = 1, 6 do
    if code % 2 == 1 then
      local slot = { at = at, kind = kind, period = NAMED[place], extra = 0, cells = cells }
      slot.tag, at = string.char(tag + place), at + cells
      read[#read + 1] = slot
    end
    code = floor(code / 2)
  end
  return read, 4, at - 1
end

-- How many bytes hold the number, which are `bytes` at least.
local function bytes_of(number, bytes)
  local most = 256 ^ bytes
  while number >= most do bytes, most = bytes + 1, most * 256 end
  return bytes
end

-- Returns how `struct` reads and writes the cells of a slot, with counts of `width` bytes.
local function format_of(slot, width)
  if slot.kind == 0 then return 'I' .. bytes_of(slot.period, 1) .. 'I' .. width end
  if slot.kind == 4 then
    local age = 'I' .. bytes_of(2 * slot.period, 1)
    return age .. string.rep('I' .. width, 2) .. age
  end
  return string.rep('I7', slot.cells)
end

-- Returns how many bytes the cells of a slot take, with counts of `width` bytes.
local function length_of(slot, width)
  if slot.kind == 0 then return bytes_of(slot.period, 1) + width end
  if slot.kind == 4 then return 2 * bytes_of(2 * slot.period, 1) + 2 * width end
  return 7 * slot.cells
end

-- Makes cells of what is stored. Returns whether it is ours: no time and no count that we store is
-- larger; struct.pack would cut it off. No clock shows a time of the upper half, from 2112 on: what is
-- charged then would end at the largest time, and count no longer.
local function expand(read, cells, size)
  local last, is_ours = cells[1], cells[1] < LATEST
  for _, slot in ipairs(read) do
    local at, kind = slot.at, slot.kind
    local first = cells[at]
    if kind == 0 then
      cells[at] = first > 0 and last + first - slot.period or 0
      if first == 0 then cells[at + 1] = 0 end
      is_ours = is_ours and first <= slot.period and cells[at] >= 0
    elseif kind == 4 then
      cells[at] = first > 0 and last + 1 - first or 0
      local charged = cells[at + 3]
      cells[at + 3] = max_of(0, cells[at] - slot.period + charged - 1)
      if first == 0 then cells[at + 1], cells[at + 2], cells[at + 3] = 0, 0, 0 end
      is_ours = is_ours and first <= 2 * slot.period and charged <= 2 * slot.period
        and cells[at] >= 0
    end
  end
  return is_ours and (size < 2 or max_of(unpack(cells, 2, size)) <= MAX_UNITS)
end

-- Returns the cells of a state behind a head of `head` bytes, or nothing if it is not ours.
local function read_state(bytes, head, format, read, size)
  if #bytes ~= struct.size(format) then return nil end
  local cells = { struct.unpack('>' .. string.sub(format, #('>c' .. head) + 1), bytes, head + 1) }
  -- Behind the integers, struct.unpack returns where it ended.
  return expand(read, cells, size) and cells
end

-- Returns the cells of states of which some belong to other policies, or nothing if they are not ours. Of a
-- sliding window that is not wanted only the two cells before the buckets are read: its bytes are copied
-- when the state is stored.
local function read_others(bytes, head, others, width, wanted)
  local ends = head + 7
  for _, other in ipairs(others) do
    other.from, other.length = ends + 1, length_of(other, width)
    ends = ends + other.length
  end
  if #bytes ~= ends then return nil end
  local cells, size = { (struct.unpack('>I7', bytes, head + 1)) }, 1
  for _, other in ipairs(others) do
    other.at = size + 1
    if other.kind == 5 and not wanted[other.tag] then
      other.cells = 2
      cells[size + 1], cells[size + 2] = struct.unpack('>I7I7', bytes, other.from)
    else
      local read = { struct.unpack('>' .. format_of(other, width), bytes, other.from) }
      for i = 1, other.cells do cells[size + i] = read[i] end
    end
    size = size + other.cells
  end
  return expand(others, cells, size) and cells
end

local shape, state_format = ARGV[1], ARGV[3]
local slots, _, size = read_code(shape)
local foreign = {}

if not stored then
  state = { 0 }
  for i = 2, size do state[i] = 0 end
elseif string.sub(stored, 1, #shape) == shape then
  state = read_state(stored, #shape, state_format, slots, size)
else
  -- Of another policy, or with larger counts.
  local others, from
  local width = string.byte(stored, 2)
  if string.byte(stored, 1) == 3 and width and width >= 1 and width <= 7 then
    others, from = read_code(stored)
  end
  local wanted, cells = {}, nil
  for _, slot in ipairs(slots) do wanted[slot.tag] = slot end
  if others then cells = read_others(stored, from - 1, others, width, wanted) end
  if cells then
    state = { cells[1] }
    for i = 2, size do state[i] = 0 end
    for _, other in ipairs(others) do
      local slot = wanted[other.tag]
      if slot then
        local to, from = slot.at, other.at
        for i = 0, slot.cells - 1 do state[to + i] = cells[from + i] end
      else
        local ends = algorithms[other.kind].expires(other.at, other.period, other.extra, other.kind, cells)
        if max_of(now, cells[1]) < ends then
          other.ends, other.of = ends, cells
          foreign[#foreign + 1] = other
        end
      end
    end
  end
end
if not state then
  return redis.error_reply('RLCORRUPT the stored state is not ours or is damaged')
end

-- A clock that stepped back grants nothing: decisions are not made before the last change. Keys
-- expire by the clock as it is.
clock = now
now = max_of(now, state[1])

-- Before anything is written: a script is not rolled back.
for _, slot in ipairs(slots) do
  local open = algorithms[slot.kind].open
  if open and not open(slot.at, slot.period, slot.extra) then
    return redis.error_reply('RLCORRUPT a log is not ours or is damaged')
  end
end

-- When the last of all states is as if never used.
local function states_expire()
  local expires = 0
  for _, other in ipairs(foreign) do expires = max_of(expires, other.ends) end
  for _, slot in ipairs(slots) do
    local own = algorithms[slot.kind].expires(slot.at, slot.period, slot.extra, slot.kind, state)
    expires = max_of(expires, own)
  end
  return expires
end

-- How long the key is needed, in ms.
local function lifetime()
  return max_of(1, ceil((states_expire() - clock) / 1000)) + linger
end

-- The state in the policy's shape, all in 7 bytes.
local function pack_state()
  return struct.pack('>' .. string.rep('I7', size), unpack(state, 1, size))
end

-- The state as it is replied: of what pack_state has packed, a log's cells are of no use to anybody.
local function told_state(packed)
  if #KEYS == 1 then return packed end
  local told = { string.sub(packed, 1, 7) }
  for i, slot in ipairs(slots) do
    local tell = algorithms[slot.kind].told
    local from = 7 * (slot.at - 1)
    told[i + 1] = tell
      and struct.pack('>I7I7I7', tell(slot.at, slot.period, slot.max, slot.extra, slot.needed))
      or string.sub(packed, from + 1, from + 7 * slot.cells)
  end
  return table.concat(told)
end

-- The cells of a slot as they are stored: short, if it has a short form, and what is over as if it had
-- never been. Returns also how many bytes a count of it has, if that is more than `width`.
local function shortened(slot, cells, width)
  local at, period = slot.at, slot.period
  local first, second = cells[at], cells[at + 1]
  if slot.kind == 0 then
    if now >= first + period or (first == 0 and second == 0) then return width, 0, 0 end
    return bytes_of(second, width), first + period - now, second
  end
  local third = cells[at + 2]
  if now >= first + 2 * period or (first == 0 and second == 0 and third == 0) then
    return width, 0, 0, 0, 0
  end
  local charged = cells[at + 3] - (first - period) + 1
  return bytes_of(max_of(second, third), width), now - first + 1, second, third, charged
end

-- Returns the value of these states behind their code. States that are stored short are packed. All others are
-- copied, from what pack_state has packed or from what is stored.
local function join_states(code, all, packed)
  local width = string.byte(shape, 2)
  for _, slot in ipairs(all) do
    if slot.kind == 0 or slot.kind == 4 then
      slot.short = { shortened(slot, slot.of, width) }
      width = slot.short[1]
    end
  end
  local parts = { string.char(3, width) .. code .. struct.pack('>I7', now) }
  -- Neighbours in one string are copied together, because the server hashes all bytes of a new string.
  local source, first, last
  for _, slot in ipairs(all) do
    if slot.short then
      if source then parts[#parts + 1] = string.sub(source, first, last) end
      source = nil
      parts[#parts + 1] = struct.pack('>' .. format_of(slot, width), unpack(slot.short, 2))
    else
      local of, from = stored, slot.from
      if slot.of == state then of, from = packed, 7 * slot.at - 6 end
      if of ~= source or from ~= last + 1 then
        if source then parts[#parts + 1] = string.sub(source, first, last) end
        source, first, last = of, from, from - 1
      end
      last = last + (slot.length or 7 * slot.cells)
    end
  end
  if source then parts[#parts + 1] = string.sub(source, first, last) end
  return table.concat(parts)
end

-- Stores the state, of which pack_state has made `packed`, with what other policies left, as long as any
-- of it counts.
local function save(packed)
  local is_short = false
  for _, slot in ipairs(slots) do
    slot.of, is_short = state, is_short or slot.kind == 0 or slot.kind == 4
  end
  local value
  if #foreign > 0 then
    -- After a refund or a reset there may be more than 16 foreign states. Then empty states of the
    -- policy are not stored, so that no value holds more than 32.
    local all, tags = {}, ''
    for _, slot in ipairs(slots) do
      local ends = #foreign > 16
        and algorithms[slot.kind].expires(slot.at, slot.period, slot.extra, slot.kind, state)
      if not ends or now < ends then all[#all + 1] = slot end
    end
    for _, other in ipairs(foreign) do all[#all + 1] = other end
    for _, slot in ipairs(all) do tags = tags .. slot.tag end
    value = join_states(string.char(128 + #all) .. tags, all, packed)
  elseif is_short then
    local values, at, width = { shape, now }, 3, string.byte(shape, 2)
    for _, slot in ipairs(slots) do
      if slot.kind == 0 then
        width, values[at], values[at + 1] = shortened(slot, state, width)
      elseif slot.kind == 4 then
        width, values[at], values[at + 1], values[at + 2], values[at + 3] =
          shortened(slot, state, width)
      else
        for i = 0, slot.cells - 1 do values[at + i] = state[slot.at + i] end
      end
      at = at + slot.cells
    end
    if width == string.byte(shape, 2) then
      value = struct.pack(state_format, unpack(values))
    else
      value = join_states(string.sub(shape, 3), slots, packed)
    end
  else
    value = shape .. packed
  end
  redis.call('SET', KEYS[1], value, 'PX', lifetime())
end
