-- Token bucket: the Lua twin of `algorithm/token_bucket.rs`. Change both.
--
-- With greedy refill it is kind 6: the generic cell rate algorithm with the capacity as the burst.
-- With interval refill it is kind 7, and `extra` is the capacity. Cells: the beginning of the
-- period, the missing tokens, the time at which none will be missing, and the number of periods
-- that have ended since the bucket was full.

-- Returns the beginning of the current period, the missing tokens, and how many periods have ended.
local function bucket_now(at, period, max)
  local since, used = state[at], state[at + 1]
  -- A beginning in the future was not written by these scripts. No period has ended since.
  local periods = max_of(0, floor((now - since) / period))
  if now >= state[at + 2] or periods >= ceil(used / max) then
    return now, 0, 0
  end
  return since + periods * period, used - periods * max, state[at + 3] + periods
end

local function bucket_full_at(since, used, period, max)
  return min(since + ceil(used / max) * period, MAX_UNITS)
end

algorithms[7] = {
  cells = function() return 4 end,

  available = function(at, period, max, capacity)
    if max == 0 then return 0 end
    local _, used = bucket_now(at, period, max)
    return max_of(0, capacity - used)
  end,

  charge = function(at, period, max, _, _, units)
    if max == 0 then return end
    local since, used, ended = bucket_now(at, period, max)
    used = min(used + units, MAX_UNITS)
    state[at], state[at + 1], state[at + 3] = since, used, ended
    state[at + 2] = bucket_full_at(since, used, period, max)
  end,

  refund = function(at, period, max, _, _, units, when)
    if max == 0 then return end
    local since, used, ended = bucket_now(at, period, max)
    -- The bucket was full after the charge: none of its tokens is missing.
    if used == 0 or when < since - ended * period then return end
    used = max_of(0, used - units)
    if used == 0 then
      for cell = at, at + 3 do state[cell] = 0 end
      return
    end
    state[at], state[at + 1], state[at + 3] = since, used, ended
    state[at + 2] = bucket_full_at(since, used, period, max)
  end,

  expires = function(at, _, _, _, cells) return cells[at + 2] end,
}
