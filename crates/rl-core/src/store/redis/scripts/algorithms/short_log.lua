-- The fast path of a sliding log or a concurrency limit. sliding_log.lua describes the format, and
-- does the same for every log. Change both.
--
-- Operations that need only the newest entries, the tail, are written out here. For the others, the
-- functions of sliding_log.lua run on a slot made of the cells, and need the key of the sealed
-- blocks. LOG_KEY is the index of this key in KEYS. A call of several subjects has no such keys. If
-- a subject needs one of these functions there, it is not decided, and the client sends it again in
-- a call of its own.
--@ cells total count oldest newest left sealed name entries
--@ constants period max

--@ helpers
local functions_of_logs

-- Returns a slot for the functions of sliding_log.lua, without the expired entries. Returns nothing
-- if the entries do not agree with the cells.
local function open_log(time, extra, period, max, tail, ...)
  functions_of_logs, now = functions_of_logs or log_functions(), time
  local log = { ... }
  log.extra, log.period, log.max, log.tail = extra, period, max, tail
  return functions_of_logs.open(log) and log or nil
end

-- Returns the tail and the cells of a slot, without the last cell, the number of entries.
local function state_of_log(log)
  return log.tail, log[1], log[2], log[3], log[4], log[5], log[6], log[7]
end

-- Drops the entries up to the time `expired`. Returns whether the entries agree with the cells, and
-- `total`, `count`, `oldest` and `left` without these entries.
local function drop_expired(tail, expired, total, count, oldest, newest, left, sealed)
  local entries = #tail / 14
  local is_ours = entries > 0 and entries < 37 and struct.unpack('>I7', tail, #tail - 13) == newest
    and oldest <= newest and total >= count and (sealed > 0 or entries == left + count)
  if not is_ours or oldest > expired then return is_ours, total, count, oldest, left end
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
local tail_i, waits_i, log_i = '', 0, nil
if entries_i > 0 then
  tail_i = string.sub(stored, rest, rest + entries_i * 14 - 1)
  rest = rest + entries_i * 14
end

--@ valid
is_ours = is_ours and #tail_i == entries_i * 14
if is_ours then
  if count_i == 0 or newest_i + period_i <= now then
    tail_i, total_i, count_i, oldest_i, newest_i, left_i, sealed_i, name_i = '', 0, 0, 0, 0, 0, 0, 0
  elseif sealed_i > 0 and oldest_i + period_i <= now
      or entries_i == 36 and count_i < max_i and not is_refund then
    -- Sealed entries have expired, or the charge may have to seal the tail. The slot is made before
    -- anything is written, because blocks may be damaged, and a script is not rolled back.
    if subjects == 1 then
      log_i = open_log(now, LOG_KEY, period_i, max_i, tail_i,
        total_i, count_i, oldest_i, newest_i, left_i, sealed_i, name_i)
    end
    is_ours = log_i ~= nil
    if log_i then
      tail_i, total_i, count_i, oldest_i, newest_i, left_i, sealed_i, name_i = state_of_log(log_i)
    end
  else
    is_ours, total_i, count_i, oldest_i, left_i =
      drop_expired(tail_i, now - period_i, total_i, count_i, oldest_i, newest_i, left_i, sealed_i)
  end
end

--@ available
available = max_i - total_i

--@ denied
local required = total_i + COST * (allowed + 1) - max_i
if COST <= max_i and required > 0 then
  local time = now
  if required == 1 and count_i > 0 then
    time = oldest_i
  elseif sealed_i == 0 then
    time = leaves_with(tail_i, left_i, required) or now
  elseif required <= total_i then
    if subjects == 1 then
      log_i = log_i or open_log(now, LOG_KEY, period_i, max_i, tail_i,
        total_i, count_i, oldest_i, newest_i, left_i, sealed_i, name_i)
    end
    if log_i then time = functions_of_logs.leaves_with(log_i, required) else is_ours = false end
  end
  waits_i = period_i + time
end

--@ charge
if log_i then
  functions_of_logs.charge(log_i, units)
  functions_of_logs.write(log_i)
  tail_i, total_i, count_i, oldest_i, newest_i, left_i, sealed_i, name_i = state_of_log(log_i)
else
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
    if oldest_i == newest_i then oldest_i = now end
  end
  total_i, newest_i = total_i + units, now
end

--@ heal
if sealed_i > 0 and subjects == 1 and redis.call('PTTL', KEYS[LOG_KEY]) == -1 then
  redis.call('PEXPIRE', KEYS[LOG_KEY], lifetime > 0 and lifetime or 1)
  healed = healed + 1
end

--@ join
entries_i = #tail_i / 14
tails = tails .. tail_i

--@ lasts
lasts = count_i > 0 and newest_i + period_i - now or 0

--@ wait
waits = waits .. struct.pack('>I7', waits_i)

--@ refundable
if is_ours and sealed_i > 0 and not log_i and struct.unpack('>I7', charges, at + step * INDEX) > 0
    and (entries_i == 1 or when < struct.unpack('>I7', tail_i)) then
  if subjects == 1 then
    log_i = open_log(now, LOG_KEY, period_i, max_i, tail_i,
      total_i, count_i, oldest_i, newest_i, left_i, sealed_i, name_i)
  end
  is_ours = log_i ~= nil
end

--@ refund
-- Nothing is refunded to an expired entry, because it no longer counts.
if log_i then
  functions_of_logs.refund(log_i, units, when)
  tail_i, total_i, count_i, oldest_i, newest_i, left_i, sealed_i, name_i = state_of_log(log_i)
elseif count_i > 0 and when > now - period_i then
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
        if sealed_i == 0 then oldest_i = struct.unpack('>I7', tail_i) end
      end
      break
    end
  end
end

--@ write
if log_i then functions_of_logs.write(log_i) end
