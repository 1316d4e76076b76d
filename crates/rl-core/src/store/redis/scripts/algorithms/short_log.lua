-- The fast path of a sliding log or a concurrency limit, for operations that need only its newest
-- entries, the tail. sliding_log.lua describes the format, and does the same for every log. Change
-- both.
--
-- An operation that has to read sealed blocks, or to seal a block, is left to sliding_log.lua.
--@ cells total count oldest newest left sealed name entries
--@ constants period max

--@ helpers
-- Drops the entries up to the time `expired`. Returns whether this fast path can do so, and
-- `total`, `count`, `oldest` and `left` without these entries.
local function drop_expired(tail, expired, total, count, oldest, newest, left, sealed)
  local entries = #tail / 14
  local is_ours = entries > 0 and entries < 32 and struct.unpack('>I7', tail, #tail - 13) == newest
    and oldest <= newest and total >= count and (sealed > 0 or entries == left + count)
  if not is_ours or oldest > expired then return is_ours, total, count, oldest, left end
  if sealed > 0 then return false end
  while true do
    local time, units = struct.unpack('>I7I7', tail, left * 14 + 1)
    if time > expired then return total >= count, total, count, time, left end
    total, count, left = total - units, count - 1, left + 1
  end
end

-- Adds up the units of the entries, oldest first, until the sum is at least `units`. Returns the
-- time of the last of these entries, or nothing if all entries together have fewer units.
local function leaves_with(tail, left, units)
  for at = left * 14 + 1, #tail, 14 do
    local time, held = struct.unpack('>I7I7', tail, at)
    if held >= units then return time end
    units = units - held
  end
end

--@ declare
local tail_i, waits_i = '', 0
if entries_i > 0 then
  tail_i = string.sub(stored, rest, rest + entries_i * 14 - 1)
  rest = rest + entries_i * 14
end

--@ valid
is_ours = is_ours and #tail_i == entries_i * 14
if is_ours then
  if count_i == 0 or newest_i + period_i <= now then
    tail_i, total_i, count_i, oldest_i, newest_i, left_i, sealed_i, name_i = '', 0, 0, 0, 0, 0, 0, 0
  else
    is_ours, total_i, count_i, oldest_i, left_i =
      drop_expired(tail_i, now - period_i, total_i, count_i, oldest_i, newest_i, left_i, sealed_i)
  end
end

--@ available
available = max_i - total_i

--@ denied
local required = total_i + COST * (allowed + 1) - max_i
if sealed_i > 0 then is_ours = false end
if COST <= max_i and required > 0 then
  waits_i = period_i + (leaves_with(tail_i, left_i, required) or now)
end

--@ charge
if count_i == 0 then
  tail_i, oldest_i = '', now
elseif sealed_i == 0 and left_i > 0 then
  tail_i, left_i = string.sub(tail_i, left_i * 14 + 1), 0
end
if count_i == 0 or (newest_i < now and count_i < max_i) then
  tail_i, count_i = tail_i .. struct.pack('>I7I7', now, units), count_i + 1
else
  local held = struct.unpack('>I7', tail_i, #tail_i - 6)
  tail_i = string.sub(tail_i, 1, #tail_i - 14) .. struct.pack('>I7I7', now, held + units)
end
total_i, newest_i = total_i + units, now

--@ join
entries_i = #tail_i / 14
tails = tails .. tail_i

--@ lasts
lasts = count_i > 0 and newest_i + period_i - now or 0

--@ wait
waits = waits .. struct.pack('>I7', waits_i)

--@ refundable
if is_ours and sealed_i > 0 and struct.unpack('>I7', charges, at + 7 * INDEX) > 0
    and (entries_i == 1 or when < struct.unpack('>I7', tail_i)) then
  is_ours = false
end

--@ refund
-- Nothing is refunded to an expired entry, because it no longer counts.
if count_i > 0 and when > now - period_i then
  local first = sealed_i == 0 and left_i * 14 or 0
  for at = first + 1, #tail_i, 14 do
    local time, held = struct.unpack('>I7I7', tail_i, at)
    if time == when then
      units = min(units, held)
      total_i = total_i - units
      local entry = ''
      if units < held then
        entry = struct.pack('>I7I7', when, held - units)
      else
        count_i = count_i - 1
      end
      if sealed_i == 0 then left_i = 0 end
      if count_i == 0 then
        tail_i, total_i, oldest_i, newest_i, name_i = '', 0, 0, 0, 0
      else
        tail_i = string.sub(tail_i, first + 1, at - 1) .. entry .. string.sub(tail_i, at + 14)
        newest_i = struct.unpack('>I7', tail_i, #tail_i - 13)
      end
      break
    end
  end
end
