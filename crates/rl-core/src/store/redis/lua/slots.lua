-- The packed layout: the states of all limits of one subject in one string.
--
--   version  1 byte, 1
--   count    1 byte, the number of states
--   tags     one for each state: which state it is, whatever its max
--   last     7 bytes, the time of the last change, µs
--   cells    7 bytes each: the integers of each state, one state after the other
--
-- Numbers are big-endian. The head of a tag is 1 byte, algorithm * 16 + place (1 for the second … 6
-- for the month). For other periods the place is 0, 128 is added and the period in ms follows, 6
-- bytes. A sliding window's precision in ms follows, 6 bytes; for algorithm 7 a byte, 0 for a sliding
-- log and 1 for concurrency.
--
-- KEYS[1]   the subject's state
-- KEYS[2…]  the ring of each log of the policy, in its order (see sliding_log.lua)
-- ARGV[1]   shape: version, count and tags of the policy's limits, in its order
--
-- Expects  stored, what is under the key
-- Sets     slots, one for each limit of the policy: { at, kind, period, extra },
--          state { last, cells … } in the order of the slots,
--          foreign: what other policies of the subject left and still counts, and
--          clock: the time that keys expire by, while now is never before the last change
local NAMED = { 1000000, 60000000, 3600000000, DAY, 7 * DAY, 30 * DAY }
local LATEST = 4503599627370496
local KINDS = { [2] = 4, [3] = 5, [4] = 6, [5] = 6, [6] = 7 }

-- Reads tags into slots whose cells lie behind `last`. Returns the slots, where the tags end and how
-- many integers follow; or nothing, if these are no tags.
local function read_tags(bytes)
  local read, at, cells, keys = {}, 3, 2, 1
  for i = 1, string.byte(bytes, 2) or 0 do
    local head, from = string.byte(bytes, at), at
    if not head then return nil end
    local algorithm, period, extra = floor(head % 128 / 16), NAMED[head % 16], 0
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

local shape = ARGV[1]
local slots, head, size = read_tags(shape)
local format = '>' .. string.rep('I7', size)
local foreign = {}
state = { 0 }
for i = 2, size do state[i] = 0 end

if stored and string.sub(stored, 1, #shape) == shape and #stored == #shape + 7 * size then
  state = { struct.unpack(format, stored, #shape + 1) }
elseif stored then
  local others, from, count = read_tags(stored)
  if string.byte(stored, 1) ~= 1 or not others or #stored ~= from - 1 + 7 * count then
    return redis.error_reply('RLCORRUPT the stored state is not ours or is damaged')
  end
  local cells = { struct.unpack('>' .. string.rep('I7', count), stored, from) }
  local wanted = {}
  for _, slot in ipairs(slots) do wanted[slot.tag] = slot end
  state[1] = cells[1]
  for _, other in ipairs(others) do
    local slot = wanted[other.tag]
    if slot then
      for i = 0, slot.cells - 1 do state[slot.at + i] = cells[other.at + i] end
    else
      local ends = algorithms[other.kind].expires(other.at, other.period, other.extra, other.kind, cells)
      if max_of(now, cells[1]) < ends and #foreign < 16 then
        other.ends = ends
        local from_byte = from + 7 * (other.at - 1)
        other.bytes = string.sub(stored, from_byte, from_byte + 7 * other.cells - 1)
        foreign[#foreign + 1] = other
      end
    end
  end
end

-- No time and no count that we store is larger; struct.pack would cut it off. No clock shows a time of
-- the upper half, from 2112 on: what is charged then would end at the largest time, and count no longer.
local is_ours = state[1] < LATEST
for i = 1, size do is_ours = is_ours and state[i] <= MAX_UNITS end
if not is_ours then
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

-- The state in the policy's shape, as it is stored.
local function pack_state()
  return struct.pack(format, unpack(state, 1, size))
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

-- Stores what pack_state has packed, with what other policies left, as long as any of it counts.
local function save(packed)
  local value = shape .. packed
  if #foreign > 0 then
    local tags, cells = string.sub(shape, 3), packed
    for _, other in ipairs(foreign) do
      tags, cells = tags .. other.tag, cells .. other.bytes
    end
    value = string.char(1, #slots + #foreign) .. tags .. cells
  end
  redis.call('SET', KEYS[1], value, 'PX', lifetime())
end
