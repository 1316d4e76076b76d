-- Sliding window: the Lua twin of `algorithm/sliding_window.rs`. Change both.
--
-- Kind 5. `extra` is the precision. Cells: the number of the newest bucket, the time of the first
-- charge since the state was empty, then the units of each bucket, newest first.
local function bucket_leaves(number, period, precision)
  return (number + 1) * precision + period
end

local function buckets_of(period, precision)
  return ceil(period / precision) + 1
end

algorithms[5] = {
  cells = function(period, precision) return 2 + buckets_of(period, precision) end,

  available = function(at, period, max, precision)
    -- No call in the loop: a policy may have hundreds of buckets.
    local newest, used = state[at], 0
    local counting = newest - floor((now - period) / precision)
    local oldest = min(buckets_of(period, precision) - 1, newest, counting)
    for cell = at + 2, at + 2 + oldest do used = used + state[cell] end
    return max_of(0, max - used)
  end,

  charge = function(at, period, _, precision, _, units)
    local size, number = buckets_of(period, precision), floor(now / precision)
    local age = min(number - state[at], size)
    if age > 0 then
      for i = size - 1, age, -1 do state[at + 2 + i] = state[at + 2 + i - age] end
      for i = 0, age - 1 do state[at + 2 + i] = 0 end
    end
    if state[at + 1] == 0 then state[at + 1] = now end
    state[at] = number
    state[at + 2] = min(state[at + 2] + units, MAX_UNITS)
  end,

  refund = function(at, period, _, precision, _, units, when)
    if when < state[at + 1] then return end
    local age = state[at] - floor(when / precision)
    if age >= 0 and age < buckets_of(period, precision) then
      state[at + 2 + age] = max_of(0, state[at + 2 + age] - units)
    end
  end,

  expires = function(at, period, precision, _, cells)
    if cells[at + 1] == 0 then return 0 end
    return bucket_leaves(cells[at], period, precision)
  end,
}
