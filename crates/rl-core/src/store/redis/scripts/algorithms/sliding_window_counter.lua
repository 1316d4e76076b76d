-- Sliding window counter: the Lua twin of `algorithm/sliding_window_counter.rs`. Change both.
--
-- Cells: the time from the beginning of the previous window to the first charge that may count,
-- plus 1 (0 if none counts), the units used in the current window, and those used in the previous
-- one.
--@ cells first current previous
--@ constants period max

--@ helpers
-- Returns floor(a * b / c) for b <= c < 2^52. The result is exact although a * b may exceed 2^53:
-- `a` is processed digit by digit, in a base in which no intermediate result exceeds 2^53.
local function mul_div(a, b, c)
  local floor = math.floor
  local base = floor(4503599627370496 / c)
  local digits, rest = {}, a
  while rest > 0 do
    digits[#digits + 1] = rest % base
    rest = floor(rest / base)
  end
  local quotient, remainder = 0, 0
  for i = #digits, 1, -1 do
    local value = remainder * base + digits[i] * b
    quotient = quotient * base + floor(value / c)
    remainder = value % c
  end
  return quotient
end

--@ valid
if first_i > 2 * period_i then is_ours = false end

--@ advance
if first_i > 0 then
  local age = last % period_i + gone
  if age >= 2 * period_i or age >= period_i and current_i == 0 then
    first_i, current_i, previous_i = 0, 0, 0
  elseif age >= period_i then
    first_i = first_i > period_i and first_i - period_i or 1
    current_i, previous_i = 0, current_i
  end
end

--@ available
local counted = previous_i
if counted > 0 then
  local rest = period_i - now % period_i
  if counted * rest < 9007199254740992 then
    counted = (counted * rest - counted * rest % period_i) / period_i
  else
    counted = mul_div(counted, rest, period_i)
  end
end
available = max_i - counted - current_i

--@ charge
if first_i == 0 then first_i = period_i + now % period_i + 1 end
current_i = current_i + units
if current_i > MAX_UNITS then current_i = MAX_UNITS end

--@ refund
local begin = now - now % period_i
if first_i > 0 and when >= begin - period_i + first_i - 1 then
  if when >= begin then
    current_i = max_of(0, current_i - units)
  else
    previous_i = max_of(0, previous_i - units)
  end
end

--@ lasts
-- An unused state lasts 0 µs. `advance` moves the units of a window to the previous one, so the end
-- follows from the window that has units.
lasts = 0
if current_i > 0 then
  lasts = 2 * period_i - now % period_i
elseif previous_i > 0 then
  lasts = period_i - now % period_i
end
