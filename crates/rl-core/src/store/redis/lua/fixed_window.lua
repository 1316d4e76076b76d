-- Fixed window: the Lua twin of `algorithm/fixed_window.rs`. Change both.
--
-- A limit is (grid, period µs, max); its state is (since µs, used), both 0 while no window is open.
-- grid says where windows begin: 0 with the first charge, 1 at multiples of the period since the
-- epoch, 2 the same counted from a Monday, 3 with the calendar month.
--
-- Times are µs: Lua numbers are doubles and hold integers exactly up to 2^53.
local DAY = 86400000000
local MAX_UNITS = 9007199254740991
local floor = math.floor

-- The first day and the length of the calendar month that holds `day`, in days since the epoch.
-- Years begin in March here, so that the leap day comes last.
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

-- Where a window that is charged first at `now` begins.
local function window_begin(grid, period)
  if grid == 0 then return now end
  if grid == 3 then return (month_of(floor(now / DAY))) * DAY end
  local shift = grid == 2 and 3 * DAY or 0
  return math.max(0, now - (now + shift) % period)
end

-- Where the window that began at `since` ends; 0 if none is open.
local function window_end(since, used, grid, period)
  if since == 0 and used == 0 then return 0 end
  if grid == 0 then return since + period end
  if grid == 3 then
    local first, length = month_of(floor(since / DAY))
    return (first + length) * DAY
  end
  local shift = grid == 2 and 3 * DAY or 0
  return since - (since + shift) % period + period
end
