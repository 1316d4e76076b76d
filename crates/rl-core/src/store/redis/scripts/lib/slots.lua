-- The packed layout: the states of all limits of one subject in one string.
--
--   ┌─────────┬───────┬──────┬────────┬──────┬─────────┬─────────┬─
--   │ version │ width │ code │ tags … │ last │ cells … │ cells … │ …
--   │ 1 byte  │ 1     │ 1    │        │ 7    │ limit 1 │ limit 2 │
--   └─────────┴───────┴──────┴────────┴──────┴─────────┴─────────┴─
--   shape: version to tags
--
--   version  3
--   width    the number of bytes of a count
--   code     which states follow, whatever their max. Below 128 it is a set of named periods, one bit
--            each from the second to the month, of fixed windows that begin with the first request;
--            with 64 added, of sliding window counters. Otherwise it is 128 and the number of tags
--   tags     one for each limit, if the code announces them
--   last     the time of the last change, in µs
--   cells    the integers of each state
--
-- Numbers are big-endian. A tag begins with a byte: algorithm * 16 + period (1 for the second … 6 for
-- the month), and 8 more if the limit counts requests. For any other period, 128 is added and the
-- period in ms follows (6 bytes). For a sliding window the precision in ms follows (6 bytes). For
-- algorithm 7 a byte follows: 0 for a sliding log, 1 for concurrency.
--
-- Cells have 7 bytes, except for two algorithms that store them shorter:
--
--   fixed window from the first request   the remaining time at the last change, 0 if the window was
--                                         over, in as many bytes as hold the period; the count
--   sliding window counter                the time since its beginning and 1, 0 if it is over, in as
--                                         many bytes as hold two periods; two counts; and, in as many
--                                         bytes, the time from the beginning of the previous window
--                                         to its first charge, and 1
--
-- Their counts have `width` bytes.
--
-- KEYS[1]   the subject's state
-- KEYS[2…]  the entries of each log of the policy, in its order (see algorithms/sliding_log.lua)
-- ARGV[1]   shape: version, width, code and tags of the policy's limits. Tags have the order of the
--           policy; without tags the order is that of the periods. The width is that of the largest
--           max; in a stored state it may be larger
-- ARGV[3]   format: how struct reads and writes a state of this shape. The shape is its first value
--
-- Expects  stored: the value under the key
-- Sets     slots: one for each limit of the policy, { at, kind, period, extra }
--          state: { last, cells … } in the order of the slots
--          foreign: states under other policies of the subject that still count. decide.lua refuses to
--          charge beside more than 16 of them, because none may be forgotten
--          clock: the time by which keys expire. `now` is never before the last change
local NAMED = { 1000000, 60000000, 3600000000, DAY, 7 * DAY, 30 * DAY }
local LATEST = 4503599627370496
local KINDS = { [2] = 4, [3] = 5, [4] = 6, [5] = 6, [6] = 7 }

-- Reads `count` tags into slots, whose cells follow `last`. Returns the slots, the position behind the
-- tags, and the number of integers that follow; or nothing if the bytes are not tags.
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

-- Reads the code, and the tags if there are any. Returns the same as read_tags.
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

-- Returns how many bytes hold the number: at least `bytes`.
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

-- Turns stored numbers into cells. Returns false if the state is damaged: these scripts store no larger
-- time or count, and struct.pack would truncate it. Times from the year 2112 on are refused, because a
-- window that begins then would end at the largest time.
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
  -- The state is one of another policy, or has larger counts.
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

-- A clock that stepped back grants nothing: no decision is made at a time before the last change. Keys
-- still expire by the clock.
clock = now
now = max_of(now, state[1])

-- Check the logs before anything is written, because a script is not rolled back.
for _, slot in ipairs(slots) do
  local open = algorithms[slot.kind].open
  if open and not open(slot.at, slot.period, slot.extra) then
    return redis.error_reply('RLCORRUPT a log is not ours or is damaged')
  end
end

-- Returns when the last of all states is as if never used.
local function states_expire()
  local expires = 0
  for _, other in ipairs(foreign) do expires = max_of(expires, other.ends) end
  for _, slot in ipairs(slots) do
    local own = algorithms[slot.kind].expires(slot.at, slot.period, slot.extra, slot.kind, state)
    expires = max_of(expires, own)
  end
  return expires
end

-- Returns how long the key is needed, in ms.
local function lifetime()
  return max_of(1, ceil((states_expire() - clock) / 1000)) + linger
end

-- Returns the time and the cells of the policy's slots, with 7 bytes each.
local function pack_state()
  return struct.pack('>' .. string.rep('I7', size), unpack(state, 1, size))
end

-- Returns the state for a reply: the result of pack_state, but for a log a summary instead of its cells,
-- which clients cannot use.
local function reply_state(packed)
  if #KEYS == 1 then return packed end
  local reply = { string.sub(packed, 1, 7) }
  for i, slot in ipairs(slots) do
    local summary = algorithms[slot.kind].summary
    local from = 7 * (slot.at - 1)
    reply[i + 1] = summary
      and struct.pack('>I7I7I7', summary(slot.at, slot.period, slot.max, slot.extra, slot.required))
      or string.sub(packed, from + 1, from + 7 * slot.cells)
  end
  return table.concat(reply)
end

-- Returns the stored form of a slot that has a short one: the number of bytes that its counts need, at
-- least `width`, and its numbers. A window that is over is stored as if never used.
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

-- Stores the state, together with the foreign states that still count. `packed` is the result of
-- pack_state.
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
