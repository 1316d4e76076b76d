-- Sliding log: the Lua twin of `algorithm/sliding_log.rs`. Change both.
--
-- Kind 8; kind 9, concurrency, is the same with the lease for a period. Extra is the place in KEYS of
-- the ring: a string of entries, 14 bytes each, the time and the units up to and with it (7 bytes
-- each, big-endian). Cells: where in the ring the entries begin, how many there are, for how many it
-- has room, units up to the first, units up to the last, and the time of the newest.
--
-- Entries are read and written one by one; only a ring that is full is read whole, to make room for
-- twice as many, and a refund reads the entries behind its own. `open` runs before anything else:
-- from there on the cells tell of entries that count now.
local ENTRY, LEAST_ROOM = 14, 8

-- Entries from `first` to before `last` as they are stored, counted from the oldest, from 0.
local function log_bytes(at, ring, first, last)
  if first == last then return '' end
  local room = state[at + 2]
  local from, count = (state[at] + first) % room, last - first
  local before_edge = min(count, room - from)
  local bytes = redis.call('GETRANGE', KEYS[ring], from * ENTRY, (from + before_edge) * ENTRY - 1)
  if count > before_edge then
    local rest = (count - before_edge) * ENTRY - 1
    bytes = bytes .. redis.call('GETRANGE', KEYS[ring], 0, rest)
  end
  return bytes
end

-- Stores entries in the places from `first` on.
local function log_store(at, ring, first, bytes)
  local room = state[at + 2]
  local from = (state[at] + first) % room
  local before_edge = (room - from) * ENTRY
  redis.call('SETRANGE', KEYS[ring], from * ENTRY, string.sub(bytes, 1, before_edge))
  if #bytes > before_edge then
    redis.call('SETRANGE', KEYS[ring], 0, string.sub(bytes, before_edge + 1))
  end
end

local function log_entry(at, ring, index)
  return struct.unpack('>I7I7', log_bytes(at, ring, index, index + 1))
end

-- Units up to the entry, without its own.
local function log_before(at, ring, index)
  if index == 0 then return state[at + 3] end
  local _, up_to = log_entry(at, ring, index - 1)
  return up_to
end

-- The first entry for which `holds` is true, as it then is for all later ones; their number, if there
-- is none. It is one of the oldest nearly always, so that is where it is looked for: in steps that
-- double, and then between the last two.
local function log_first(at, ring, holds)
  local low, high, step = 0, state[at + 1], 1
  while low + step <= high do
    local next = low + step - 1
    if holds(log_entry(at, ring, next)) then high = next else low, step = next + 1, 2 * step end
  end
  while low < high do
    local middle = floor((low + high) / 2)
    if holds(log_entry(at, ring, middle)) then high = middle else low = middle + 1 end
  end
  return low
end

-- The same entries with fewer units up to each.
local function log_lowered(bytes, units)
  if units == 0 then return bytes end
  local entries = {}
  for from = 1, #bytes, ENTRY do
    local time, up_to = struct.unpack('>I7I7', bytes, from)
    entries[#entries + 1] = struct.pack('>I7I7', time, up_to - units)
  end
  return table.concat(entries)
end

local function log_lifetime(at, period)
  return max_of(1, ceil((state[at + 5] + period - clock) / 1000)) + linger
end

-- Stores the entries anew in a ring with room for `room`; of the units up to each, fewer by `units`.
local function log_lay_out(at, ring, period, room, units)
  local bytes = log_lowered(log_bytes(at, ring, 0, state[at + 1]), units)
  bytes = bytes .. string.rep('\0', room * ENTRY - #bytes)
  redis.call('SET', KEYS[ring], bytes, 'PX', log_lifetime(at, period))
  state[at], state[at + 2] = 0, room
  state[at + 3], state[at + 4] = state[at + 3] - units, state[at + 4] - units
end

-- The place and the units of the entry of exactly this time; or nothing.
local function log_find(at, ring, when)
  local index = log_first(at, ring, function(time) return time >= when end)
  if index == state[at + 1] then return nil end
  local time, up_to = log_entry(at, ring, index)
  if time ~= when then return nil end
  return index, up_to - log_before(at, ring, index)
end

local sliding_log = {
  cells = function() return 6 end,

  -- Lets go what does not count any more; false, if the ring is not the one that the cells tell of.
  open = function(at, period, ring)
    local begin, count, room, before, total, newest = unpack(state, at, at + 5)
    local length = 0
    if count > 0 and newest + period > now then length = redis.call('STRLEN', KEYS[ring]) end
    if length == 0 then
      -- A ring that somebody deleted is an empty one, as a state that somebody deleted is.
      for cell = at, at + 5 do state[cell] = 0 end
      return true
    end
    if length ~= room * ENTRY or count > room or begin >= room or before >= total then return false end
    local is_sound = true
    local gone = log_first(at, ring, function(time, up_to)
      is_sound = is_sound and time <= newest and before < up_to and up_to <= total
      return time + period > now
    end)
    if not is_sound or gone == count then return false end
    if gone > 0 then
      state[at + 3] = log_before(at, ring, gone)
      state[at], state[at + 1] = (begin + gone) % room, count - gone
    end
    return true
  end,

  available = function(at, _, max) return max_of(0, max - (state[at + 4] - state[at + 3])) end,

  charge = function(at, period, max, ring, _, units)
    local count, room, newest = state[at + 1], state[at + 2], state[at + 5]
    units = min(units, MAX_UNITS - (state[at + 4] - state[at + 3]))
    if units == 0 then return end
    local is_later = count == 0 or newest < now
    -- A limit of 0 is charged, too, if the work is done already.
    local most = max_of(1, max)
    if count == 0 then
      room = min(LEAST_ROOM, most)
    elseif is_later and count == room and room < most then
      room = min(2 * room, most)
    end
    state[at + 5] = now
    if count == 0 then
      for cell = at, at + 4 do state[cell] = 0 end
      log_lay_out(at, ring, period, room, 0)
    elseif units > MAX_UNITS - state[at + 4] then
      -- Units are counted on for as long as the log is not empty.
      log_lay_out(at, ring, period, room, state[at + 3])
    elseif room > state[at + 2] then
      log_lay_out(at, ring, period, room, 0)
    else
      redis.call('PEXPIRE', KEYS[ring], log_lifetime(at, period))
    end
    if is_later and count < room then state[at + 1] = count + 1 end
    state[at + 4] = state[at + 4] + units
    log_store(at, ring, state[at + 1] - 1, struct.pack('>I7I7', now, state[at + 4]))
  end,

  refund = function(at, period, _, ring, _, units, when)
    local index, held = log_find(at, ring, when)
    if not index then return end
    local count, gone = state[at + 1], units >= held and 1 or 0
    units = min(units, held)
    if index == 0 and gone == 1 then
      -- The oldest just leaves: leases that are renewed in turn are always the oldest.
      state[at], state[at + 1] = (state[at] + 1) % state[at + 2], count - 1
      state[at + 3] = state[at + 3] + units
      if count == 1 then state[at + 5] = 0 end
      redis.call('PEXPIRE', KEYS[ring], log_lifetime(at, period))
      return
    end
    local later = log_lowered(log_bytes(at, ring, index + gone, count), units)
    if #later > 0 then log_store(at, ring, index, later) end
    state[at + 1], state[at + 4] = count - gone, state[at + 4] - units
    state[at + 5] = count > gone and log_entry(at, ring, count - gone - 1) or 0
    redis.call('PEXPIRE', KEYS[ring], log_lifetime(at, period))
  end,

  expires = function(at, period, _, _, cells)
    if cells[at + 1] == 0 then return 0 end
    return cells[at + 5] + period
  end,

  -- What counts of units that were taken at `when`.
  held = function(at, ring, units, when)
    local _, held = log_find(at, ring, when)
    return min(units, held or 0)
  end,

  -- The integers that are replied: units used, the time of the newest, and when enough have left for
  -- `needed` to be available, 0 if they are or never will be.
  told = function(at, period, max, ring, needed)
    local before, total = state[at + 3], state[at + 4]
    local used, passes_at = total - before, 0
    if needed <= max and used + needed > max then
      local must_leave = total - (max - needed)
      local last = log_first(at, ring, function(_, up_to) return up_to >= must_leave end)
      passes_at = log_entry(at, ring, last) + period
    end
    return used, used > 0 and state[at + 5] or 0, passes_at
  end,

  -- Gives a ring that has lost its expiry another. Whether it had lost it.
  heal = function(at, period, ring)
    if state[at + 1] == 0 or redis.call('PTTL', KEYS[ring]) ~= -1 then return false end
    redis.call('PEXPIRE', KEYS[ring], log_lifetime(at, period))
    return true
  end,

  -- Deletes the ring; an expiry of nothing needs no permission of its own.
  forget = function(ring) redis.call('PEXPIRE', KEYS[ring], 0) end,
}
algorithms[8], algorithms[9] = sliding_log, sliding_log
