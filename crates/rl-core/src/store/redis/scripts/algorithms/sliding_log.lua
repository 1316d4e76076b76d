-- Sliding log: the Lua twin of `algorithm/sliding_log.rs`. Change both.
--
-- A sliding log is kind 7. A concurrency limit is kind 8, with its lease as the period. An entry is
-- the time of a charge and its units (7 bytes each, big-endian). The newest entries, oldest first,
-- are in the subject's state: 1 to 36. If there are 36, they are sealed before another entry is
-- added. So a short log has no key of its own.
--
-- The sealed entries are in a hash, as a tree of three levels. `extra` is the index of its key in
-- KEYS. The name of a field is a number of 4 bytes, except for `b`:
--
--   field   value
--   b       the list of pages, oldest first. An item has 11 bytes:
--             7 bytes  a time that is after all entries before the page, and not after its first
--             4 bytes  the name of the page
--   NAME    a page:
--             7 bytes  the units of the page
--             4 bytes  its number of entries
--             and for each of its blocks, at most PAGE, an item of 19 bytes, oldest first:
--             7 bytes  a time that is after all entries before the block, and not after its first
--             7 bytes  the units of the block
--             1 byte   its number of entries
--             4 bytes  the name of the block
--   NAME    a block: at most 36 entries. With the server's header, it just fits into 512 bytes
--
--   b ──┬── page ──┬── block   oldest
--       │          └── block
--       └── page ──┬── block
--                  └── block
--   tail                       newest
--
-- Cells: the units that count, the number of entries that count, the time of the oldest of them,
-- the time of the newest, the number of expired entries in the oldest block (or in the tail), the
-- number of pages, the name that was given last, and the number of entries in the tail.
--
-- However long the log is, a request, a denial and a refund read at most the list, two pages and
-- three blocks. If many entries expire together, or a request has to wait for many of them, the
-- pages in between are read, but not their blocks. Neighbouring pages or blocks that are
-- small are merged, but perhaps only by a later refund. If the hash is deleted, only the tail
-- counts.
--
-- `open` runs before all other functions. From then on, the cells describe the entries that count
-- now. The fields that change are written by `write`, all at once. Expired pages stay at the front
-- of the list. While any page counts, each `write` deletes one expired page with its blocks, so
-- that a log whose entries expire together does not block the server.
--
-- The server's Lua hashes all bytes of every new string, so small pages and blocks are what makes
-- an operation fast.
--
-- Returns the functions. The fast path of a shape creates them only for a log with sealed blocks.
local function log_functions()
local floor, ceil, min, max_of = math.floor, math.ceil, math.min, math.max
local ENTRY, BLOCK, ITEM, HEAD, TOP = 14, 36, 19, 11, 11

local function entry_of(bytes, index) return struct.unpack('>I7I7', bytes, index * ENTRY + 1) end

-- Returns the content of a block's item (see above): the time, the units, the number of entries and
-- the name of the block.
local function item_of(page, index)
  return struct.unpack('>I7I7Bc4', page, HEAD + index * ITEM + 1)
end

-- Returns `bytes`, in which `new` takes the place of the `size` bytes at the offset `from`.
local function replaced(bytes, from, size, new)
  return string.sub(bytes, 1, from) .. new .. string.sub(bytes, from + size + 1)
end

-- Returns the sum of the units of the entries from `first` to the one before `last`.
local function units_of(bytes, first, last)
  local units, count = 0, last - first
  if count <= 0 then return 0 end
  local read = { struct.unpack('>' .. string.rep('I7I7', count), bytes, first * ENTRY + 1) }
  for i = 2, 2 * count, 2 do units = units + read[i] end
  return units
end

-- Returns the number of records from the offset `from` on whose time is not after `latest`. Each
-- record has `size` bytes and begins with its time.
local function count_until(bytes, from, size, latest)
  local low, high = 0, (#bytes - from) / size
  while low < high do
    local middle = floor((low + high) / 2)
    if struct.unpack('>I7', bytes, from + middle * size + 1) <= latest then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

-- Sets the state of a log to that of an unused limit.
local function clear(slot)
  for cell = 1, 8 do slot[cell] = 0 end
  slot.tail, slot.log = '', { top = '', fields = {}, changed = {} }
end

local function field_of(slot, name)
  local fields = slot.log.fields
  if fields[name] == nil then fields[name] = redis.call('HGET', KEYS[slot.extra], name) end
  return fields[name]
end

-- Sets a field, or deletes it if `bytes` is nil.
local function set_field(slot, name, bytes)
  slot.log.fields[name], slot.log.changed[name] = bytes or false, true
end

local function set_top(slot, top)
  slot.log.top = top
  set_field(slot, 'b', top)
end

-- Returns the offset of a page's item in the list. Index 0 is the oldest page that counts: before
-- it, the list may contain expired pages.
local function place_of(slot, index) return #slot.log.top - (slot[6] - index) * TOP end

-- Returns a page and its name, or nil if the page is damaged.
local function page_of(slot, index)
  local name = struct.unpack('c4', slot.log.top, place_of(slot, index) + 8)
  local page = field_of(slot, name)
  if page and #page > HEAD and (#page - HEAD) % ITEM == 0 then return page, name end
end

-- Returns the entries of a block, or nil if they do not agree with its page.
local function block_of(slot, page, index)
  local _, _, count, name = item_of(page, index)
  local bytes = field_of(slot, name)
  return bytes and count > 0 and #bytes == count * ENTRY and bytes or nil
end

-- Returns the time of the oldest entry that counts, or nil if the blocks are damaged.
local function oldest_of(slot)
  local bytes = slot.tail
  if slot[6] > 0 then
    local page = page_of(slot, 0)
    bytes = page and block_of(slot, page, 0)
  end
  return bytes and #bytes > slot[5] * ENTRY and entry_of(bytes, slot[5]) or nil
end

-- Merges a page with a neighbour if both fit into one page.
local function merge_page(slot, index, page, name)
  for other = index + 1, index - 1, -2 do
    local its, its_name
    if other >= 0 and other < slot[6] then its, its_name = page_of(slot, other) end
    if its and #its + #page - HEAD <= HEAD + PAGE * ITEM then
      local units, entries = struct.unpack('>I7I4', page)
      local its_units, its_entries = struct.unpack('>I7I4', its)
      local old, new = page, its
      if other < index then old, new, name, its_name = its, page, its_name, name end
      set_field(slot, name, struct.pack('>I7I4', units + its_units, entries + its_entries)
        .. string.sub(old, HEAD + 1) .. string.sub(new, HEAD + 1))
      set_field(slot, its_name)
      set_top(slot, replaced(slot.log.top, place_of(slot, max_of(index, other)), TOP, ''))
      slot[6] = slot[6] - 1
      return
    end
  end
end

-- Replaces `count` items of a page, and subtracts units and entries from its sums. Removes the page
-- if it has no items left.
local function change_page(slot, index, at, count, items, units, entries)
  local page, name = page_of(slot, index)
  local all, number = struct.unpack('>I7I4', page)
  local left = #page - HEAD - count * ITEM + #items
  if left == 0 then
    set_field(slot, name)
    set_top(slot, replaced(slot.log.top, place_of(slot, index), TOP, ''))
    slot[6] = slot[6] - 1
    return
  end
  page = struct.pack('>I7I4', max_of(0, all - units), max_of(0, number - entries))
    .. string.sub(page, HEAD + 1, HEAD + at * ITEM) .. items
    .. string.sub(page, HEAD + (at + count) * ITEM + 1)
  set_field(slot, name, page)
  -- Neighbours are read only when the number of items is a multiple of a quarter of a page, to save
  -- time. A merge may be delayed, because a later refund can do it.
  if #items < count * ITEM and left % (PAGE / 4 * ITEM) == 0 then
    merge_page(slot, index, page, name)
  end
end

-- Returns a name that no field has.
local function new_name(slot)
  slot[7] = slot[7] % 4294967295 + 1
  return struct.pack('>I4', slot[7])
end

-- Seals the entries of the tail: makes them a new block of the newest page, or of a new page.
local function seal(slot)
  local log, tail, count = slot.log, slot.tail, #slot.tail / ENTRY
  local units, first = units_of(tail, 0, count), (entry_of(tail, 0))
  if slot[6] == 0 then
    -- The pages in the hash have expired, or belong to a state that was lost.
    log.top, log.fields, log.changed, log.is_new = '', {}, {}, true
  end
  log.is_longer = true
  local name = new_name(slot)
  set_field(slot, name, tail)
  local item = struct.pack('>I7I7Bc4', first, units, count, name)
  local page
  if slot[6] > 0 then page = page_of(slot, slot[6] - 1) end
  if page and #page < HEAD + PAGE * ITEM then
    return change_page(slot, slot[6] - 1, (#page - HEAD) / ITEM, 0, item, -units, -count)
  end
  name = new_name(slot)
  set_field(slot, name, struct.pack('>I7I4', units, count) .. item)
  set_top(slot, log.top .. struct.pack('>I7c4', first, name))
  slot[6] = slot[6] + 1
end

-- Finds the entry of the time `when`. Returns the index of its page, the index of its block in the
-- page, the block's entries, the index of the entry in the block, and its units. For an entry in
-- the tail, the index of the page is the number of pages. Returns nil if there is no such entry.
local function find(slot, when)
  if slot[2] == 0 or when + slot.period <= now or when < slot[3] then return nil end
  local page, block, bytes = slot[6], 0, slot.tail
  if page > 0 and when < entry_of(bytes, 0) then
    page = count_until(slot.log.top, place_of(slot, 0), TOP, when) - 1
    local items = page >= 0 and page_of(slot, page)
    block = items and count_until(items, HEAD, ITEM, when) - 1 or -1
    bytes = block >= 0 and block_of(slot, items, block)
    if not bytes then return nil end
  end
  local index = count_until(bytes, 0, ENTRY, when - 1)
  if index * ENTRY == #bytes then return nil end
  local time, held = entry_of(bytes, index)
  if time == when then return page, block, bytes, index, held end
end

-- Replaces the tail by `bytes`, the entries that a refund has left in it. Returns false if the
-- sealed blocks are damaged.
local function lower_tail(slot, bytes)
  if bytes == '' then
    -- The newest block becomes the tail.
    local last = slot[6] - 1
    local page = page_of(slot, last)
    if not page then return false end
    local index = (#page - HEAD) / ITEM - 1
    local _, units, count, name = item_of(page, index)
    bytes = block_of(slot, page, index)
    if not bytes then return false end
    set_field(slot, name)
    change_page(slot, last, index, 1, '', units, count)
  end
  slot.tail, slot[4] = bytes, (entry_of(bytes, #bytes / ENTRY - 1))
  return true
end

-- Replaces the entries of a block by `bytes`, those that a refund has left in it. Merges the block
-- with a neighbour if both fit into one block.
local function lower_block(slot, page_index, index, bytes, units, is_gone)
  local page = page_of(slot, page_index)
  local first, before, count, name = item_of(page, index)
  local is_first = page_index == 0 and index == 0
  if is_first and slot[5] > 0 then
    units, bytes = units + units_of(bytes, 0, slot[5]), string.sub(bytes, slot[5] * ENTRY + 1)
    slot[5] = 0
  end
  local entries = count - #bytes / ENTRY
  if bytes == '' then
    set_field(slot, name)
    return change_page(slot, page_index, index, 1, '', units, entries)
  end
  local low, merged, after = index, 1, before - units
  -- To save time, neighbours are read only now and then (see `change_page`).
  local is_due = is_gone and #bytes % (8 * ENTRY) == 0
  for _, other in ipairs(is_due and { index + 1, index - 1 } or {}) do
    if other >= 0 and other < (#page - HEAD) / ITEM
        and (other > 0 or page_index > 0 or slot[5] == 0) then
      local its_first, its_units, its_count, its_name = item_of(page, other)
      local its = its_count + #bytes / ENTRY <= BLOCK and block_of(slot, page, other)
      if its then
        bytes = other > index and bytes .. its or its .. bytes
        low, merged, first = min(index, other), 2, min(first, its_first)
        after = after + its_units
        set_field(slot, its_name)
        break
      end
    end
  end
  set_field(slot, name, bytes)
  local item = struct.pack('>I7I7Bc4', first, max_of(0, after), #bytes / ENTRY, name)
  change_page(slot, page_index, low, merged, item, units, entries)
end

-- Adds up the units of the entries from the index `from` on, until the sum is at least `units`.
-- Returns the time of the last of these entries, or nil and the units that are still missing.
local function leave(bytes, from, units)
  for index = from, #bytes / ENTRY - 1 do
    local time, held = entry_of(bytes, index)
    if held >= units then return time end
    units = units - held
  end
  return nil, units
end

-- Finds the oldest entries that have `units` units together. Returns the time of the newest of
-- them: when it expires, the units are free. If blocks are damaged, returns the time of the newest
-- entry.
local function leaves_with(slot, units)
  if units <= 1 then return slot[3] end
  local from, time = slot[5], nil
  for index = 0, slot[6] - 1 do
    local page = page_of(slot, index)
    if not page then return slot[4] end
    -- The sums of the first page and of its first block also count the expired entries at the
    -- front.
    local of_page = struct.unpack('>I7', page)
    local items = (of_page >= units or from > 0) and (#page - HEAD) / ITEM or 0
    if items == 0 then units = units - of_page end
    for block = 0, items - 1 do
      local _, of_block = item_of(page, block)
      if of_block >= units or from > 0 then
        local bytes = block_of(slot, page, block)
        if not bytes then return slot[4] end
        time, units = leave(bytes, from, units)
        if time then return time end
        from = 0
      else
        units = units - of_block
      end
    end
  end
  return leave(slot.tail, from, units) or slot[4]
end

-- Drops the expired entries. Returns whether the stored entries agree with the cells.
local function advance(slot)
  local expired, from = now - slot.period, slot[5]
  local units, entries, tail = 0, 0, slot.tail
  if slot[6] > 0 then
    local page = page_of(slot, 0)
    local bytes = page and block_of(slot, page, 0)
    if not bytes then return false end
    -- The sums below contain the first `from` entries, which the cells no longer count.
    units, entries = -units_of(bytes, 0, from), -from
    -- If the first entry of a page has expired, all entries of the page before it have expired.
    local pages = count_until(slot.log.top, place_of(slot, 0), TOP, expired) - 1
    if entry_of(tail, 0) <= expired then pages = slot[6] end
    for _ = 1, pages do
      page = page_of(slot, 0)
      if not page then return false end
      local of_page, in_page = struct.unpack('>I7I4', page)
      units, entries, from = units + of_page, entries + in_page, 0
      slot[6] = slot[6] - 1
    end
  end
  if slot[6] > 0 then
    local page, name = page_of(slot, 0)
    if not page then return false end
    local items, gone = (#page - HEAD) / ITEM, max_of(0, count_until(page, HEAD, ITEM, expired) - 1)
    local dropped, count = 0, 0
    for block = 0, gone - 1 do
      local _, of_block, in_block, its_name = item_of(page, block)
      dropped, count, from = dropped + of_block, count + in_block, 0
      set_field(slot, its_name)
    end
    local bytes = block_of(slot, page, gone)
    if not bytes then return false end
    from = max_of(from, count_until(bytes, 0, ENTRY, expired))
    local of_block, in_block = units_of(bytes, 0, from), from
    units, entries = units + dropped + of_block, entries + count + in_block
    if from * ENTRY == #bytes then
      local _, _, _, its_name = item_of(page, gone)
      set_field(slot, its_name)
      dropped, count, gone, from = dropped + of_block, count + in_block, gone + 1, 0
    end
    if gone == items then
      slot[6] = slot[6] - 1
    elseif gone > 0 then
      local of_page, in_page = struct.unpack('>I7I4', page)
      set_field(slot, name, struct.pack('>I7I4', max_of(0, of_page - dropped), max_of(0, in_page - count))
        .. string.sub(page, HEAD + gone * ITEM + 1))
    end
  end
  if slot[6] == 0 then
    local first = max_of(from, count_until(tail, 0, ENTRY, expired))
    units, entries, from = units + units_of(tail, from, first), entries + first - from, first
  end
  slot[1], slot[2], slot[5] = slot[1] - units, slot[2] - entries, from
  local oldest = oldest_of(slot)
  slot[3] = oldest or now
  return oldest ~= nil and slot[2] > 0 and slot[1] >= slot[2]
end

return {
  clear = clear,
  leaves_with = leaves_with,

  -- Takes the tail from a stored value. Returns the position after it.
  read = function(slot, bytes, at)
    local rest = at + slot[8] * ENTRY
    slot.tail = string.sub(bytes, at, rest - 1)
    return rest
  end,

  -- Drops the entries that no longer count. Returns false if the entries do not agree with the
  -- cells.
  open = function(slot)
    if slot[2] == 0 or slot[4] + slot.period <= now then
      clear(slot)
      return true
    end
    slot.log = { top = '', fields = {}, changed = {} }
    local tail, entries = slot.tail, #slot.tail / ENTRY
    if entries < 1 or entries > BLOCK or entry_of(tail, entries - 1) ~= slot[4] then return false end
    if slot[6] > 0 then
      local top = redis.call('HGET', KEYS[slot.extra], 'b')
      if not top then
        -- The hash was deleted, so only the tail counts.
        slot[1], slot[2], slot[3] = units_of(tail, 0, entries), entries, (entry_of(tail, 0))
        slot[5], slot[6] = 0, 0
      elseif #top % TOP > 0 or #top < slot[6] * TOP then
        return false
      else
        slot.log.top = top
      end
    end
    if slot[3] > slot[4] or slot[1] < slot[2] then return false end
    if slot[6] == 0 and entries - slot[5] ~= slot[2] then return false end
    return slot[3] + slot.period > now or advance(slot)
  end,

  available = function(slot) return slot.max - slot[1] end,

  charge = function(slot, units)
    units = min(units, MAX_UNITS - slot[1])
    if units == 0 then return end
    local count, newest = slot[2], slot[4]
    if count == 0 then
      clear(slot)
      slot[3] = now
    elseif slot[6] == 0 and slot[5] > 0 then
      slot.tail, slot[5] = string.sub(slot.tail, slot[5] * ENTRY + 1), 0
    end
    slot[1], slot[4] = slot[1] + units, now
    -- A limit of 0 gets an entry too, because units that were already used may be charged to it.
    if count == 0 or (newest < now and count < slot.max) then
      slot[2] = count + 1
      local entry = struct.pack('>I7I7', now, units)
      if #slot.tail < BLOCK * ENTRY then
        slot.tail = slot.tail .. entry
      else
        seal(slot)
        slot.tail = entry
      end
    else
      local last = #slot.tail / ENTRY - 1
      local time, taken = entry_of(slot.tail, last)
      slot.tail = string.sub(slot.tail, 1, last * ENTRY) .. struct.pack('>I7I7', now, taken + units)
      if time == slot[3] then slot[3] = now end
    end
  end,

  refund = function(slot, units, when)
    local page, block, bytes, index, held = find(slot, when)
    if not page then return end
    units = min(units, held)
    local is_gone = units == held
    if is_gone and slot[2] == 1 then return clear(slot) end
    local left = is_gone and '' or struct.pack('>I7I7', when, held - units)
    bytes = replaced(bytes, index * ENTRY, ENTRY, left)
    if page < slot[6] then
      lower_block(slot, page, block, bytes, units, is_gone)
    else
      if slot[6] == 0 then bytes, slot[5] = string.sub(bytes, slot[5] * ENTRY + 1), 0 end
      if not lower_tail(slot, bytes) then return end
    end
    slot[1] = max_of(0, slot[1] - units)
    if is_gone then
      slot[2] = slot[2] - 1
      if when == slot[3] then slot[3] = oldest_of(slot) or slot[3] end
    end
  end,

  lasts = function(slot) return slot[2] == 0 and 0 or slot[4] + slot.period - now end,

  -- Returns how many of the `units` charged at `when` still count.
  held = function(slot, units, when)
    local _, _, _, _, held = find(slot, when)
    return min(units, held or 0)
  end,

  -- Returns the time at which the required units will be available. It is 0 if they are available
  -- now, or never will be.
  passes_at = function(slot)
    local used, required, max = slot[1], slot.required, slot.max
    if required > max or used + required <= max then return 0 end
    return leaves_with(slot, used - (max - required)) + slot.period
  end,

  -- Sets the expiry of the sealed blocks if they have lost it. Returns whether they had lost it.
  heal = function(slot)
    if slot[6] == 0 or redis.call('PTTL', KEYS[slot.extra]) ~= -1 then return false end
    local lasts = max_of(1, ceil((slot[4] + slot.period - clock) / 1000)) + linger
    redis.call('PEXPIRE', KEYS[slot.extra], lasts)
    return true
  end,

  -- Deletes the sealed blocks. Unlike DEL, an expiry of 0 needs no further permission.
  forget = function(slot)
    redis.call('PEXPIRE', KEYS[slot.extra], 0)
    slot.log = nil
  end,

  -- Writes the fields that have changed. It must run before the cells are stored.
  write = function(slot)
    local log = slot.log
    if not log then return end
    if slot[6] == 0 then
      if log.top ~= '' then
        redis.call('PEXPIRE', KEYS[slot.extra], 0)
        slot.log = { top = '', fields = {}, changed = {} }
      end
      return
    end
    if log.is_new then redis.call('PEXPIRE', KEYS[slot.extra], 0) end
    if #log.top > slot[6] * TOP then
      local name = struct.unpack('c4', log.top, 8)
      local page = field_of(slot, name) or ''
      for block = 0, floor((#page - HEAD) / ITEM) - 1 do
        local _, _, _, its_name = item_of(page, block)
        set_field(slot, its_name)
      end
      set_field(slot, name)
      set_top(slot, string.sub(log.top, TOP + 1))
    end
    local set, gone = {}, {}
    for name in pairs(log.changed) do
      local bytes = log.fields[name]
      if bytes then
        set[#set + 1] = name
        set[#set + 1] = bytes
      else
        gone[#gone + 1] = name
      end
    end
    if #set > 0 then redis.call('HSET', KEYS[slot.extra], (table.unpack or unpack)(set)) end
    if #gone > 0 then redis.call('HDEL', KEYS[slot.extra], (table.unpack or unpack)(gone)) end
    if log.is_longer then
      local lasts = max_of(1, ceil((slot[4] + slot.period - clock) / 1000)) + linger
      redis.call('PEXPIRE', KEYS[slot.extra], lasts)
    end
    log.changed, log.is_new, log.is_longer = {}, nil, nil
  end,
}
end
