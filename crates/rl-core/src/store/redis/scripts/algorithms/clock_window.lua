-- Fixed window on the clock: the Lua twin of `algorithm/fixed_window/mod.rs`. Change both.
--
-- WINDOW_END stands for the end of the window that contains now. For kind 1, windows begin at
-- multiples of the period, counted from `alignment` before the epoch. For kind 2, they begin
-- `alignment` after the beginning of each calendar month.
--
-- Cells: the time until the window ends (0 if it is unused), the used units, and the time of the
-- first charge in the window.
--@ cells left used since
--@ constants period max alignment

--@ month
-- Returns the end of the calendar month that contains the time. Years begin in March here, so that
-- the leap day comes last.
local function month_end(time)
  local floor, day_length = math.floor, 86400000000
  local day = floor(time / day_length)
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
  return (day - (day_of_year - days_before) + length) * day_length
end

--@ valid
-- Reject a window that ends too late. A month is at most a day longer than its period of 30 days.
if left_i > period_i + 86400000000 or since_i > last then is_ours = false end

--@ advance
left_i = left_i - gone
if left_i <= 0 then left_i, used_i, since_i = 0, 0, 0 end

--@ available
available = max_i - used_i

--@ charge
if left_i == 0 then left_i, since_i = WINDOW_END - now, now end
used_i = used_i + units
if used_i > MAX_UNITS then used_i = MAX_UNITS end

--@ refund
-- A charge before the first one of the window belongs to an earlier window, or to a state that was
-- reset or lost.
if when >= since_i then used_i = max_of(0, used_i - units) end

--@ lasts
lasts = left_i
