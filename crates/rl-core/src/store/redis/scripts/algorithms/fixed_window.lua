-- Fixed window: the Lua twin of `algorithm/fixed_window/mod.rs`. Change both.
--
-- The kind says where windows begin: 0 with the first charge, 1 at multiples of the period since
-- the epoch, 2 at multiples since a Monday, 3 with the calendar month.
-- Cells: the time of the first charge in the window, and the used units. Both are 0 if no charge is
-- remembered.
local DAY = 86400000000

-- Returns the first day and the length of the calendar month that contains `day`, in days since the
-- epoch. Years begin in March here, so that the leap day comes last.
local function month_of(day)
  local shifted = day + 719468
  local era = floor(shifted / 146097)
  local day_of_era = shifted - era * 146097
  local year_of_era = floor((day_of_era - floor(day_of_era / 1460) + floor(day_of_era / 36524)
    - floor(day_of_era / 146096)) / 365)
  local day_of_year = day_of_era
    - (365 * year_of_era + floor(year_of_era / 4) - floor(year_of_era / 100))
  local month = floor((5 * day_of_year + 2) / 153)
  local days_before = floor((153 * month + 2) / 5)
  local length
  if month == 11 then
    local year = era * 400 + year_of_era + 1
    local is_leap = (year % 4 == 0 and year % 100 ~= 0) or year % 400 == 0
    length = is_leap and 29 or 28
  else
    length = floor((153 * (month + 1) + 2) / 5) - days_before
  end
  return day - (day_of_year - days_before), length
end

-- Returns the end of the window whose first charge was at `since`.
local function window_end(since, period, kind)
  if kind == 0 then return since + period end
  if kind == 3 then
    local first, length = month_of(floor(since / DAY))
    return (first + length) * DAY
  end
  local shift = kind == 2 and 3 * DAY or 0
  return since - (since + shift) % period + period
end

local fixed_window = {
  cells = function() return 2 end,

  available = function(at, period, max, _, kind)
    local used = state[at + 1]
    if now >= window_end(state[at], period, kind) then used = 0 end
    return max_of(0, max - used)
  end,

  charge = function(at, period, _, _, kind, units)
    local since, used = state[at], state[at + 1]
    if (since == 0 and used == 0) or now >= window_end(since, period, kind) then
      since, used = now, 0
    end
    state[at], state[at + 1] = since, min(used + units, MAX_UNITS)
  end,

  refund = function(at, period, _, _, kind, units, when)
    local since = state[at]
    -- A charge before `since` was made to a window that has ended, was reset or was lost.
    if since <= when and when < window_end(since, period, kind) then
      state[at + 1] = max_of(0, state[at + 1] - units)
    end
  end,

  expires = function(at, period, _, kind, cells)
    if cells[at] == 0 and cells[at + 1] == 0 then return 0 end
    return window_end(cells[at], period, kind)
  end,
}
for kind = 0, 3 do algorithms[kind] = fixed_window end
