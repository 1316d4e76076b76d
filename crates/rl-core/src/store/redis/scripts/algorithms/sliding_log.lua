-- Sliding log: the Lua twin of `algorithm/sliding_log.rs`. Change both.
--
-- A sliding log is kind 8. A concurrency limit is kind 9, with its lease as the period. An entry is
-- the time of a charge and its units (7 bytes each, big-endian). The newest entries, oldest first,
-- are in the subject's state: 1 to 256. If there are 32 or more, they are sealed before another
-- entry is added. So a short log has no key of its own.
--
-- The sealed entries are in a hash, and `extra` is the index of its key in KEYS:
--
--   field   value
--   1 …     sealed blocks of entries, at most 256 entries each
--   b       the list of the sealed blocks, oldest first. An item has 20 bytes:
--             7 bytes  a time that is after all entries of the block before, and not after the
--                      first entry of this block
--             7 bytes  the units of the block
--             2 bytes  its number of entries
--             4 bytes  its name: the number of its field
--
--   oldest ─── block 7 ─── block 8 ─── block 9 ─── tail ─── newest
--
-- Cells: the units that count, the number of entries that count, a time not after the oldest of
-- them, the time of the newest, the number of expired entries in the oldest block (or in the tail),
-- the number of sealed blocks, the name of the newest block, and the number of entries in the tail.
--
-- However long the log is, an operation reads at most the list and three blocks. Neighbouring
-- blocks are merged sooner or later if they have at most 256 entries together. If the hash is
-- deleted, only the tail counts.
--
-- `open` runs before all other functions. From then on, the cells describe the entries that count
-- now. Expired blocks stay at the front of the list until the next write. Each write deletes at
-- most 16 of them, so that a log whose entries expire together does not block the server.
--
-- Each call of `struct` reads many entries or items, which takes half the time of one call for
-- each.
local ENTRY, TAIL, BLOCK, ITEM, MOST_DELETED = 14, 32, 256, 20, 16
local ENTRY_FORMAT, ITEM_FORMAT = 'I7I7', 'I7I7I2I4'

local function log_entry(bytes, index) return struct.unpack('>I7I7', bytes, index * ENTRY + 1) end

-- Returns an item of the list: the time, the units, the number of entries and the name of a sealed
-- block. Items are numbered from 0.
local function log_item(log, index) return struct.unpack('>I7I7I2I4', log.list, index * ITEM + 1) end

-- Returns the sum of the units of the entries from `first` to the one before `last`.
local function log_units(bytes, first, last)
  local units, count = 0, last - first
  if count <= 0 then return 0 end
  local read = { struct.unpack('>' .. string.rep(ENTRY_FORMAT, count), bytes, first * ENTRY + 1) }
  for i = 2, 2 * count, 2 do units = units + read[i] end
  return units
end

-- Sets the state of a log to that of an unused limit.
local function log_clear(slot)
  for cell = 1, 8 do slot[cell] = 0 end
  slot.tail = ''
end

-- Reads the list of sealed blocks. Returns whether it contains the blocks that the cells describe.
-- Blocks before these had expired when the cells were last stored.
local function log_read_list(slot, log)
  local list = redis.call('HGET', KEYS[slot.extra], 'b')
  if not list then
    -- The hash was deleted, so only the tail counts.
    local count = #slot.tail / ENTRY
    slot[1], slot[2], slot[3] = log_units(slot.tail, 0, count), count, (log_entry(slot.tail, 0))
    slot[5], slot[6] = 0, 0
    return true
  end
  local before = #list - slot[6] * ITEM
  if before < 0 or #list % ITEM > 0 then return false end
  log.list = list
  if before > 0 then
    log.left, log.list = string.sub(list, 1, before), string.sub(list, before + 1)
  end
  return true
end

-- Returns the entries of a sealed block, or nil if they do not agree with the list.
local function log_block(slot, log, index)
  local _, _, count, name = log_item(log, index)
  local bytes = redis.call('HGET', KEYS[slot.extra], name)
  return bytes and #bytes == count * ENTRY and bytes or nil
end

-- Replaces one or two items of the list.
local function log_splice(log, index, count, items)
  log.list = string.sub(log.list, 1, index * ITEM) .. items
    .. string.sub(log.list, (index + count) * ITEM + 1)
end

-- Returns the number of list items or entries whose time is not after `latest`. `size` is the size
-- of each in bytes.
local function log_count(bytes, size, latest)
  local low, high = 0, #bytes / size
  while low < high do
    local middle = floor((low + high) / 2)
    local time = struct.unpack('>I7', bytes, middle * size + 1)
    if time <= latest then low = middle + 1 else high = middle end
  end
  return low
end

-- Finds the expired entries from index `from` on. Returns the index of the first entry that still
-- counts, the units of the expired entries, and the time of that first entry.
local function log_left(bytes, from, period)
  local index = max_of(from, log_count(bytes, ENTRY, now - period))
  local units = log_units(bytes, from, index)
  if index * ENTRY == #bytes then return index, units end
  return index, units, (log_entry(bytes, index))
end

local function log_lifetime(slot)
  return max_of(1, ceil((slot[4] + slot.period - clock) / 1000)) + linger
end

-- Writes the list if it has changed, and a block if one is passed. Deletes the blocks that were
-- merged or emptied, and at most 16 of the expired blocks.
local function log_write(slot, log, ...)
  if slot[6] == 0 then
    if log.is_changed or #log.left > 0 then redis.call('PEXPIRE', KEYS[slot.extra], 0) end
    log.left, log.gone, log.is_changed = '', {}, false
    return
  end
  local due = min(MOST_DELETED, #log.left / ITEM)
  for index = 0, due - 1 do
    local name = struct.unpack('>I4', log.left, index * ITEM + 17)
    log.gone[#log.gone + 1] = name
  end
  if #log.gone > 0 then
    redis.call('HDEL', KEYS[slot.extra], unpack(log.gone))
    log.left = string.sub(log.left, due * ITEM + 1)
    log.gone, log.is_changed = {}, true
  end
  if log.is_changed then
    redis.call('HSET', KEYS[slot.extra], 'b', log.left .. log.list, ...)
    redis.call('PEXPIRE', KEYS[slot.extra], log_lifetime(slot))
    log.is_changed = false
  end
end

-- Seals the entries of the tail: appends them to the newest block if they fit, or else makes them a
-- new block. Returns the name and the entries of that block.
local function log_seal(slot, log)
  local tail, count = slot.tail, #slot.tail / ENTRY
  local units, last = log_units(tail, 0, count), slot[6] - 1
  log.is_changed, log.oldest = true, nil
  if last >= 0 then
    local first, before, there, name = log_item(log, last)
    local bytes = there + count <= BLOCK and log_block(slot, log, last)
    if bytes then
      local item = struct.pack('>I7I7I2I4', first, before + units, there + count, name)
      log_splice(log, last, 1, item)
      return name, bytes .. tail
    end
  else
    -- The blocks in the hash have expired, or belong to a state that was lost.
    redis.call('PEXPIRE', KEYS[slot.extra], 0)
    log.left, log.gone = '', {}
  end
  local name = slot[7] % 4294967295 + 1
  local first = log_entry(tail, 0)
  log.list = log.list .. struct.pack('>I7I7I2I4', first, units, count, name)
  slot[6], slot[7] = slot[6] + 1, name
  return name, tail
end

-- Finds the entry of the time `when`. Returns the index of its block, the block's entries, the
-- index of the entry in the block, and its units. For an entry in the tail, the index of the block
-- is the number of sealed blocks. Returns nil if there is no such entry.
local function log_find(slot, when)
  local log = slot.log
  if slot[2] == 0 or when + slot.period <= now then return nil end
  local block, bytes = slot[6], slot.tail
  if when < log_entry(bytes, 0) then
    block = log_count(log.list, ITEM, when) - 1
    bytes = block >= 0 and log_block(slot, log, block)
    if not bytes then return nil end
  end
  local index = log_count(bytes, ENTRY, when - 1)
  if index * ENTRY == #bytes then return nil end
  local time, held = log_entry(bytes, index)
  if time == when then return block, bytes, index, held end
end

-- Replaces the tail after a refund from one of its entries. `bytes` are the entries that are left.
-- Returns false if the sealed blocks are damaged.
local function log_lower_tail(slot, log, bytes)
  if bytes == '' then
    -- The newest sealed block becomes the tail.
    local last = slot[6] - 1
    bytes = log_block(slot, log, last)
    if not bytes then return false end
    local _, _, _, name = log_item(log, last)
    log.gone[#log.gone + 1], log.is_changed, slot[6] = name, true, last
    log_splice(log, last, 1, '')
    log_write(slot, log)
  end
  slot.tail, slot[4] = bytes, log_entry(bytes, #bytes / ENTRY - 1)
  return true
end

-- Writes a sealed block after a refund from it. Merges it with a neighbour if both fit into one
-- block.
local function log_lower_block(slot, log, index, bytes, units, is_shorter)
  local first, before, _, name = log_item(log, index)
  before = before - units
  if index == 0 and slot[5] > 0 then
    local left = slot[5]
    before, bytes = before - log_units(bytes, 0, left), string.sub(bytes, left * ENTRY + 1)
    slot[5] = 0
  end
  log.is_changed = true
  if bytes == '' then
    log.gone[#log.gone + 1] = name
    log_splice(log, index, 1, '')
    slot[6] = slot[6] - 1
    return log_write(slot, log)
  end
  local low, count = index, 1
  -- Neighbours are checked only when the number of entries is a multiple of 16, to save time. A
  -- later refund makes a merge that is skipped now.
  local is_due = is_shorter and #bytes % (16 * ENTRY) == 0
  for _, other in ipairs(is_due and { index + 1, index - 1 } or {}) do
    if other >= 0 and other < slot[6] and (other > 0 or slot[5] == 0) then
      local its_first, its_units, its_count, its_name = log_item(log, other)
      local its_bytes = its_count * ENTRY + #bytes <= BLOCK * ENTRY and log_block(slot, log, other)
      if its_bytes then
        bytes = other > index and bytes .. its_bytes or its_bytes .. bytes
        low, count, first = min(index, other), 2, min(first, its_first)
        before, log.gone[#log.gone + 1] = before + its_units, its_name
        slot[6] = slot[6] - 1
        break
      end
    end
  end
  log_splice(log, low, count, struct.pack('>I7I7I2I4', first, before, #bytes / ENTRY, name))
  log_write(slot, log, name, bytes)
end

-- Adds up the units of the entries from the index `from` on, until the sum is at least `units`.
-- Returns the time of the last of these entries, or nil and the units that are still missing.
local function log_leave(bytes, from, units)
  local last = #bytes / ENTRY
  -- Read 32 entries at a time, because the first ones are usually enough.
  for index = from, last - 1, 32 do
    local count = min(32, last - index)
    local read = { struct.unpack('>' .. string.rep(ENTRY_FORMAT, count), bytes, index * ENTRY + 1) }
    for i = 2, 2 * count, 2 do
      if read[i] >= units then return read[i - 1] end
      units = units - read[i]
    end
  end
  return nil, units
end

-- Adds up the units of the entries, oldest first, until the sum is at least `units`. Returns the
-- time of the last of these entries. When that entry expires, `units` units are free again. If
-- blocks are damaged, returns the time of the newest entry of the log.
local function log_leaves_with(slot, log, units)
  local sealed, time = slot[6], nil
  if sealed == 0 then return log_leave(slot.tail, slot[5], units) or slot[4] end
  local bytes = log.oldest or log_block(slot, log, 0)
  if not bytes then return slot[4] end
  -- If no entry of the oldest block has expired, the list contains the units of the whole block. If
  -- these are too few, its entries need not be read.
  local _, of_oldest = log_item(log, 0)
  if slot[5] == 0 and of_oldest < units then
    units = units - of_oldest
  else
    time, units = log_leave(bytes, slot[5], units)
    if time then return time end
  end
  -- Read 32 items at a time, because the first blocks are usually enough.
  for first = 1, sealed - 1, 32 do
    local count = min(32, sealed - first)
    local items = { struct.unpack('>' .. string.rep(ITEM_FORMAT, count), log.list, first * ITEM + 1) }
    for i = 0, count - 1 do
      local its_units = items[4 * i + 2]
      if its_units >= units then
        bytes = log_block(slot, log, first + i)
        return bytes and log_leave(bytes, 0, units) or slot[4]
      end
      units = units - its_units
    end
  end
  return log_leave(slot.tail, 0, units) or slot[4]
end

-- Drops the expired entries. Returns whether the stored entries agree with the cells.
local function log_advance(slot, log)
  local period, sealed, from = slot.period, slot[6], slot[5]
  local dropped, entries, units, oldest = 0, 0, 0, nil
  if sealed > 0 then
    -- If the first entry of a block has expired, all entries of the block before it have expired.
    dropped = max_of(0, log_count(log.list, ITEM, now - period) - 1)
    if log_entry(slot.tail, 0) + period <= now then dropped = sealed end
    if dropped > 0 then
      local items = { struct.unpack('>' .. string.rep(ITEM_FORMAT, dropped), log.list) }
      for i = 2, 4 * dropped, 4 do
        units, entries = units + items[i], entries + items[i + 1]
      end
      if from > 0 then
        local bytes = log_block(slot, log, 0)
        if not bytes then return false end
        units, entries, from = units - log_units(bytes, 0, from), entries - from, 0
      end
    end
    if dropped < sealed then
      local bytes = log_block(slot, log, dropped)
      if not bytes then return false end
      local first, left, time = log_left(bytes, from, period)
      units, entries, from, oldest = units + left, entries + first - from, first, time
      log.oldest = bytes
      if not time then
        dropped, from, log.oldest = dropped + 1, 0, nil
        if dropped < sealed then oldest = log_item(log, dropped) end
      end
    end
    log.left = log.left .. string.sub(log.list, 1, dropped * ITEM)
    log.list = string.sub(log.list, dropped * ITEM + 1)
  end
  if dropped == sealed then
    local first, left, time = log_left(slot.tail, from, period)
    units, entries, from, oldest = units + left, entries + first - from, first, time
  end
  slot[1], slot[2] = slot[1] - units, slot[2] - entries
  slot[3], slot[5], slot[6] = oldest or now, from, sealed - dropped
  return oldest ~= nil and slot[2] > 0 and slot[1] >= slot[2]
end

local sliding_log = {
  -- Takes the tail from a stored value. Returns the position after it.
  read = function(slot, bytes, at)
    local rest = at + slot[8] * ENTRY
    slot.tail = string.sub(bytes, at, rest - 1)
    return rest
  end,

  -- Drops the entries that no longer count. Returns false if the entries do not agree with the
  -- cells.
  open = function(slot)
    local log = { left = '', list = '', gone = {} }
    slot.log = log
    if slot[2] == 0 or slot[4] + slot.period <= now then
      log_clear(slot)
      return true
    end
    local tail, entries = slot.tail, #slot.tail / ENTRY
    if entries < 1 or entries > BLOCK or log_entry(tail, entries - 1) ~= slot[4] then return false end
    if slot[6] > 0 and not log_read_list(slot, log) then return false end
    if slot[3] > slot[4] or slot[1] < slot[2] then return false end
    if slot[6] == 0 and entries - slot[5] ~= slot[2] then return false end
    return slot[3] + slot.period > now or log_advance(slot, log)
  end,

  available = function(slot) return slot.max - slot[1] end,

  charge = function(slot, units)
    units = min(units, MAX_UNITS - slot[1])
    if units == 0 then return end
    local log, count, newest = slot.log, slot[2], slot[4]
    if count == 0 then
      log_clear(slot)
      slot[3] = now
    elseif slot[6] == 0 and slot[5] > 0 then
      slot.tail, slot[5] = string.sub(slot.tail, slot[5] * ENTRY + 1), 0
    end
    slot[1], slot[4] = slot[1] + units, now
    -- A limit of 0 gets an entry too, because units for work that is already done are charged even
    -- beyond a limit.
    if count == 0 or (newest < now and count < slot.max) then
      slot[2] = count + 1
      local entry = struct.pack('>I7I7', now, units)
      if #slot.tail < TAIL * ENTRY then
        slot.tail = slot.tail .. entry
      else
        local name, bytes = log_seal(slot, log)
        slot.tail = entry
        return log_write(slot, log, name, bytes)
      end
    else
      local last = #slot.tail / ENTRY - 1
      local _, taken = log_entry(slot.tail, last)
      slot.tail = string.sub(slot.tail, 1, last * ENTRY) .. struct.pack('>I7I7', now, taken + units)
    end
    log_write(slot, log)
  end,

  refund = function(slot, units, when)
    local block, bytes, index, held = log_find(slot, when)
    if not block then return end
    local log = slot.log
    units = min(units, held)
    local is_gone = units == held
    if is_gone and slot[2] == 1 then return log_clear(slot) end
    bytes = string.sub(bytes, 1, index * ENTRY)
      .. (is_gone and '' or struct.pack('>I7I7', when, held - units))
      .. string.sub(bytes, (index + 1) * ENTRY + 1)
    log.oldest = nil
    if block < slot[6] then
      log_lower_block(slot, log, block, bytes, units, is_gone)
    else
      if slot[6] == 0 then
        bytes, slot[5] = string.sub(bytes, slot[5] * ENTRY + 1), 0
      end
      if not log_lower_tail(slot, log, bytes) then return end
    end
    slot[1] = max_of(0, slot[1] - units)
    if is_gone then slot[2] = slot[2] - 1 end
  end,

  lasts = function(slot) return slot[2] == 0 and 0 or slot[4] + slot.period - now end,

  -- Returns how many of the `units` charged at `when` still count.
  held = function(slot, units, when)
    local _, _, _, held = log_find(slot, when)
    return min(units, held or 0)
  end,

  -- Returns the time at which the required units will be available. It is 0 if they are available
  -- now, or never will be.
  passes_at = function(slot)
    local used, required, max = slot[1], slot.required, slot.max
    if required > max or used + required <= max then return 0 end
    return log_leaves_with(slot, slot.log, used - (max - required)) + slot.period
  end,

  -- Sets the expiry of the sealed blocks if they have lost it. Returns whether they had lost it.
  heal = function(slot)
    if slot[6] == 0 or redis.call('PTTL', KEYS[slot.extra]) ~= -1 then return false end
    redis.call('PEXPIRE', KEYS[slot.extra], log_lifetime(slot))
    return true
  end,

  -- Deletes the sealed blocks. Unlike DEL, an expiry of 0 needs no further permission.
  forget = function(slot) redis.call('PEXPIRE', KEYS[slot.extra], 0) end,
}
for kind = 8, 9 do
  cell_counts[kind] = 8
  algorithms[kind] = function(operation, slot, units, when)
    if operation == 'valid' then return true end
    -- `advance` does nothing, because `open` has already dropped the expired entries.
    if operation ~= 'advance' then return sliding_log[operation](slot, units, when) end
  end
end
