-- Generic cell rate algorithm: the Lua twin of `algorithm/gcra.rs`. Change both.
--
-- Kind 6. `extra` is the burst. Cells: the theoretical arrival time in whole µs, its fraction in units
-- of 1 / max µs, and the time since which the limit has been in use without a pause.

-- Returns how long `units` take: units * period / max, in whole µs and a fraction.
local function gcra_time(units, period, max)
  local fractions = units * (period % max)
  return units * floor(period / max) + floor(fractions / max), fractions % max
end

-- Returns how many of `units` can be charged at once. More would not be exact.
local function gcra_chargeable(units, period, max)
  return min(units, floor(MAX_UNITS / max), floor(4503599627370495 / (floor(period / max) + 1)))
end

-- Returns whether the time of `units` is at least `ahead` µs and the fraction.
local function gcra_covers(units, period, max, ahead, fraction)
  local whole, rest = gcra_time(units, period, max)
  return whole > ahead or (whole == ahead and rest >= fraction)
end

-- Returns the arrival time, or now if it has passed, and the time since which the limit has been in use.
local function gcra_arrival(at, max)
  local micros, fraction = state[at], min(state[at + 1], max - 1)
  if micros < now or (micros == now and fraction == 0) then return now, 0, now end
  return micros, fraction, state[at + 2]
end

algorithms[6] = {
  cells = function() return 3 end,

  available = function(at, period, max, burst)
    if max == 0 then return 0 end
    local micros, fraction = gcra_arrival(at, max)
    local ahead = micros - now
    if ahead == 0 and fraction == 0 then return burst end
    -- Find the fewest units whose time covers `ahead`. They are near the quotient, which may be rounded.
    local used = floor(ahead / period * max)
    if used > burst + 2 then return 0 end
    while used > 0 and gcra_covers(used - 1, period, max, ahead, fraction) do used = used - 1 end
    while not gcra_covers(used, period, max, ahead, fraction) do used = used + 1 end
    return max_of(0, burst - used)
  end,

  charge = function(at, period, max, _, _, units)
    if max == 0 then return end
    local micros, fraction, since = gcra_arrival(at, max)
    local whole, rest = gcra_time(gcra_chargeable(units, period, max), period, max)
    fraction = fraction + rest
    state[at] = min(micros + whole + floor(fraction / max), MAX_UNITS)
    state[at + 1], state[at + 2] = fraction % max, since
  end,

  refund = function(at, period, max, _, _, units, when)
    if max == 0 then return end
    local micros, fraction, since = gcra_arrival(at, max)
    if micros == now and fraction == 0 then return end
    -- The limit was idle after the charge: units that accrued since would be granted twice.
    if when < since then return end
    local whole, rest = gcra_time(gcra_chargeable(units, period, max), period, max)
    fraction = fraction - rest
    if fraction < 0 then whole, fraction = whole + 1, fraction + max end
    micros = micros - whole
    if micros < now or (micros == now and fraction == 0) then micros, fraction, since = 0, 0, 0 end
    state[at], state[at + 1], state[at + 2] = micros, fraction, since
  end,

  expires = function(at, _, _, _, cells)
    return cells[at] + (cells[at + 1] > 0 and 1 or 0)
  end,
}
