-- The table of algorithms, and exact arithmetic.
--
-- Each algorithm registers itself under a kind: 0 to 3 fixed windows, 4 sliding window counter,
-- 5 sliding window, 6 generic cell rate algorithm, 7 token bucket with interval refill, 8 sliding
-- log, 9 concurrency. It has these functions:
--
--   cells(period, extra)                               the number of integers of its state
--   available(at, period, max, extra, kind)            the units that may be charged now
--   charge(at, period, max, extra, kind, units)        charges units
--   refund(at, period, max, extra, kind, units, when)  gives back units that were charged at `when`
--   expires(at, period, extra, kind, cells)            when the state is as if never used
--
-- Algorithms that keep entries in a key of their own have more functions (see sliding_log.lua). Of
-- these, open(at, period, extra) is called before all others.
--
-- `at` is the index of the first cell in the table of cells. The table is `state`, unless another
-- is given. Times and periods are in µs. Lua numbers are doubles: they hold integers exactly up to
-- 2^53, and the quotient of two such integers rounds down correctly.
local MAX_UNITS = 9007199254740991
local floor, ceil, min, max_of = math.floor, math.ceil, math.min, math.max
local algorithms = {}
local state, clock

-- Returns floor(a * b / c) for b <= c < 2^52. The result is exact although a * b may exceed 2^53:
-- `a` is processed digit by digit, in a base in which no intermediate result exceeds 2^53.
local function mul_div(a, b, c)
  if a * b < 9007199254740992 then return floor(a * b / c) end
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
