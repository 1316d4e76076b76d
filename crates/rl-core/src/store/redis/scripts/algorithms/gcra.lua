-- Generic cell rate algorithm: the Lua twin of `algorithm/gcra.rs`. Change both.
--
-- A token bucket with greedy refill is counted by GCRA, with its capacity as the burst.
--
-- Cells: the theoretical arrival time in whole µs, its fraction in units of 1 / max µs, and the
-- time since which the limit has been in use without a pause.
--@ cells micros fraction since
--@ constants period max burst

--@ helpers
-- Returns the available units. The arrival time is `ahead` µs plus `fraction` / `max` µs after now.
-- Called only if ahead * max + fraction is at least 2^52. Smaller values need no loop (see
-- `available` below).
local function gcra_available(ahead, fraction, period, max, burst)
  local floor = math.floor
  -- Returns whether the time that `units` units take reaches the arrival time.
  local function covers(units)
    local fractions = units * (period % max)
    local whole, rest = units * floor(period / max) + floor(fractions / max), fractions % max
    return whole > ahead or (whole == ahead and rest >= fraction)
  end
  -- Find the smallest number of units whose time reaches the arrival time. It is near the quotient
  -- below, which may be rounded.
  local used = floor(ahead / period * max)
  if used > burst + 2 then return 0 end
  while used > 0 and covers(used - 1) do used = used - 1 end
  while not covers(used) do used = used + 1 end
  return burst - used
end

--@ valid
if micros_i > MAX_UNITS or fraction_i > MAX_UNITS or since_i > MAX_UNITS then is_ours = false end

--@ advance
if micros_i < now or (micros_i == now and fraction_i == 0) then micros_i, fraction_i, since_i = 0, 0, 0 end

--@ available
available = 0
if max_i > 0 then
  available = burst_i
  local ahead, fraction = micros_i - now, fraction_i
  -- The fraction may have been stored under a larger max, before the limit was lowered.
  if fraction >= max_i then fraction = max_i - 1 end
  if ahead > 0 or (ahead == 0 and fraction > 0) then
    local used = ahead * max_i + fraction
    if used < 4503599627370496 then
      local over = used % period_i
      available = burst_i - (used - over) / period_i
      if over > 0 then available = available - 1 end
    else
      available = gcra_available(ahead, fraction, period_i, max_i, burst_i)
    end
  end
end

--@ exact
-- Charge or refund at most the number of units for which the arithmetic is exact.
if max_i > 0 then
  units = min(units, floor(MAX_UNITS / max_i), floor(4503599627370495 / (floor(period_i / max_i) + 1)))
end

--@ charge
if max_i > 0 then
  if fraction_i >= max_i then fraction_i = max_i - 1 end
  if micros_i < now or (micros_i == now and fraction_i == 0) then
    micros_i, fraction_i, since_i = now, 0, now
  end
  -- The units take the time units * period / max. No product below exceeds 2^53.
  local over = period_i % max_i
  local rest = units * over % max_i
  micros_i = micros_i + units * ((period_i - over) / max_i) + (units * over - rest) / max_i
  if fraction_i >= max_i - rest then
    micros_i, fraction_i = micros_i + 1, fraction_i - (max_i - rest)
  else
    fraction_i = fraction_i + rest
  end
  if micros_i > MAX_UNITS then micros_i = MAX_UNITS end
end

--@ refund
if max_i > 0 then
  if fraction_i >= max_i then fraction_i = max_i - 1 end
  -- Refund nothing if the limit was idle after the charge. The charged units have accrued again
  -- since, so a refund would grant them twice.
  if (micros_i > now or (micros_i == now and fraction_i > 0)) and when >= since_i then
    local over = period_i % max_i
    local rest = units * over % max_i
    micros_i = micros_i - units * ((period_i - over) / max_i) - (units * over - rest) / max_i
    fraction_i = fraction_i - rest
    if fraction_i < 0 then micros_i, fraction_i = micros_i - 1, fraction_i + max_i end
    if micros_i < now or (micros_i == now and fraction_i == 0) then
      micros_i, fraction_i, since_i = 0, 0, 0
    end
  end
end

--@ lasts
lasts = micros_i - now
if fraction_i > 0 then lasts = lasts + 1 end
