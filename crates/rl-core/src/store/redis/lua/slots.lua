-- The packed layout: the states of all limits of one subject in one string.
--
--   version  1 byte, 1
--   count    1 byte, the number of states
--   tags     one for each state: which state it is, whatever its max
--   last     7 bytes, the time of the last change, µs
--   states   since (7 bytes) and used (7 bytes) for each
--
-- Numbers are big-endian. A tag is 1 byte for the six named periods, anchor * 16 + place (1 for the
-- second … 6 for the month), else 128 + anchor * 16 and the period in ms as 6 bytes.
--
-- KEYS[1]  the subject's state
-- ARGV[1]  shape: version, count and tags of the policy's limits, in its order
--
-- Sets     state { last, since, used, since, used, … } in the order of the shape,
--          foreign: what other policies of the subject left and still counts, or nil, and
--          clock: the time that keys expire by, while now is never before the last change
local shape = ARGV[1]
local count = string.byte(shape, 2)
local state_format = '>I7' .. string.rep('I7I7', count)
local stored = redis.call('GET', KEYS[1])
local state, foreign

-- Reads what is stored in another shape. Returns an error text if it is no state at all.
local function load_other_shape()
  local named = { 1000000, 60000000, 3600000000, DAY, 7 * DAY, 30 * DAY }
  local function read_tags(bytes)
    local tags, at = {}, 3
    for i = 1, string.byte(bytes, 2) or 0 do
      local head = string.byte(bytes, at)
      local length = head and head >= 128 and 7 or 1
      if not head or at + length - 1 > #bytes then return nil end
      local anchor, period = floor(head % 128 / 16), named[head % 16]
      if length == 7 then period = struct.unpack('>I6', bytes, at + 1) * 1000 end
      if anchor > 1 or not period or period == 0 then return nil end
      local grid = 0
      if anchor == 1 then
        grid = period == 30 * DAY and 3 or period % (7 * DAY) == 0 and 2 or 1
      end
      tags[i] = { tag = string.sub(bytes, at, at + length - 1), grid = grid, period = period }
      at = at + length
    end
    return tags, at
  end

  local tags, at = read_tags(stored)
  if string.byte(stored, 1) ~= 1 or not tags or #stored ~= at + 6 + 14 * #tags then
    return 'RLCORRUPT the stored state is not ours or is damaged'
  end
  state[1] = struct.unpack('>I7', stored, at)
  local found = {}
  for i, slot in ipairs(tags) do
    slot.since, slot.used = struct.unpack('>I7I7', stored, at + 14 * i - 7)
    found[slot.tag] = slot
  end
  for i, wanted in ipairs(read_tags(shape)) do
    local slot = found[wanted.tag]
    if slot then
      state[2 * i], state[2 * i + 1] = slot.since, slot.used
      found[wanted.tag] = nil
    end
  end
  foreign = {}
  for _, slot in ipairs(tags) do
    slot.ends = window_end(slot.since, slot.used, slot.grid, slot.period)
    if found[slot.tag] and math.max(now, state[1]) < slot.ends and #foreign < 16 then
      foreign[#foreign + 1] = slot
    end
  end
end

if stored and string.sub(stored, 1, #shape) == shape and #stored == #shape + 7 + 14 * count then
  state = { struct.unpack(state_format, stored, #shape + 1) }
else
  state = { 0 }
  for i = 2, 2 * count + 1 do state[i] = 0 end
  if stored then
    local err = load_other_shape()
    if err then return redis.error_reply(err) end
  end
end

-- A clock that stepped back grants nothing: decisions are not made before the last change. Keys
-- expire by the clock as it is.
local clock = now
now = math.max(now, state[1])

-- The state in the policy's shape, as it is stored and replied.
local function pack_state()
  return struct.pack(state_format, unpack(state, 1, 2 * count + 1))
end

-- Stores `packed`, until `expires` (µs) or the end of the last foreign window.
local function save(packed, expires)
  local value = shape .. packed
  if foreign and #foreign > 0 then
    local tags, states = string.sub(shape, 3), string.sub(packed, 8)
    for _, slot in ipairs(foreign) do
      tags = tags .. slot.tag
      states = states .. struct.pack('>I7I7', slot.since, slot.used)
      expires = math.max(expires, slot.ends)
    end
    value = string.char(1, count + #foreign) .. tags .. string.sub(packed, 1, 7) .. states
  end
  redis.call('SET', KEYS[1], value, 'PX', math.max(1, math.ceil((expires - clock) / 1000)) + linger)
end
