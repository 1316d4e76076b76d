-- Sliding window counter: the Lua twin of `algorithm/sliding_window_counter.rs`. Change both.
--
-- Kind 4. Cells: the beginning of the current window, the units used in it, the units used in the
-- previous window, and the time of the first charge that may count in them.

-- Returns the cells as they are at `now`.
local function counter_windows(at, period)
  local begin = now - now % period
  local since, current, previous, first = state[at], state[at + 1], state[at + 2], state[at + 3]
  if since == begin then return since, current, previous, first end
  if since + period == begin then return begin, 0, current, max_of(first, since) end
  return begin, 0, 0, now
end

algorithms[4] = {
  cells = function() return 4 end,

  available = function(at, period, max)
    local since, current, previous = counter_windows(at, period)
    return max_of(0, max - mul_div(previous, period - (now - since), period) - current)
  end,

  charge = function(at, period, _, _, _, units)
    local since, current, previous, first = counter_windows(at, period)
    state[at], state[at + 1], state[at + 2] = since, min(current + units, MAX_UNITS), previous
    state[at + 3] = first
  end,

  refund = function(at, period, _, _, _, units, when)
    local since = state[at]
    if when < state[at + 3] then return end
    if when >= since and when < since + period then
      state[at + 1] = max_of(0, state[at + 1] - units)
    elseif when < since and when + period >= since then
      state[at + 2] = max_of(0, state[at + 2] - units)
    end
  end,

  expires = function(at, period, _, _, cells)
    if cells[at] == 0 and cells[at + 1] == 0 and cells[at + 2] == 0 then return 0 end
    return cells[at] + 2 * period
  end,
}
