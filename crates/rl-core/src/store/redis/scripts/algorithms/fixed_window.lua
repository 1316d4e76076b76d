-- Fixed window: the Lua twin of `algorithm/fixed_window/mod.rs`. Change both.
--
-- These windows begin with the first request. Those on the clock are in clock_window.lua.
--
-- Cells: the time until the window ends (0 if none is open), and the used units.
--@ cells left used
--@ constants period max

--@ valid
if left_i > period_i then is_ours = false end

--@ advance
left_i = left_i - gone
if left_i <= 0 then left_i, used_i = 0, 0 end

--@ available
available = max_i - used_i

--@ charge
if left_i == 0 then left_i = period_i end
used_i = used_i + units
if used_i > MAX_UNITS then used_i = MAX_UNITS end

--@ refund
-- A charge before the window began belongs to an earlier window, or to a state that was reset or
-- lost.
if when >= now + left_i - period_i then used_i = max_of(0, used_i - units) end

--@ lasts
lasts = left_i
