-- What the algorithms stand on: a table of them, and exact arithmetic.
--
-- Each algorithm registers itself under a kind: 0 to 3 fixed windows, 4 sliding window counter,
-- 5 sliding window, 6 generic cell rate algorithm, 7 token bucket with interval refill, 8 sliding
-- log, 9 concurrency; with the functions
--
--   cells(period, extra)                               how many integers its state has
--   available(at, period, max, extra, kind)            units that may be taken now
--   charge(at, period, max, extra, kind, units)        takes units
--   refund(at, period, max, extra, kind, units, when)  gives back units that were taken at `when`
--   expires(at, period, extra, kind, cells)            when the state is as if never used
--
-- Those that keep entries in a key of their own have more (see sliding_log.lua), of which
-- open(at, period, extra) comes before all others.
--
-- `at` is where its cells begin in the table of cells, `state` unless another is given. Times and
-- periods are µs: Lua numbers are doubles and hold integers exactly up to 2^53, and quotients of
-- such integers round down rightly.
local MAX_UNITS = 9007199254740991
local floor, ceil, min, max_of = math.floor, math.ceil, math.min, math.max
local algorithms = {}
local state, clock

-- floor(a * b / c) for b <= c < 2^52, exact although a * b may exceed 2^53: a is taken digit by
-- digit, in a base in which no step does.
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
