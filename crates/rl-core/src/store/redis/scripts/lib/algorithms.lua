-- The table of algorithms, by kind: 0 fixed window from the first request; 1 to 3 fixed window on the clock,
-- at multiples of the period, from a Monday, in the calendar month; 4 sliding window counter; 5 sliding
-- window; 6 generic cell rate algorithm; 7 token bucket with interval refill; 8 sliding log; 9 concurrency.
--
-- An algorithm is a function of an operation, a slot (see slots.lua), units and a time. `composer.rs` makes it
-- of the parts of its file. A log has functions of its own in addition.
--
--   valid       returns whether the cells were written by these scripts
--   advance     brings the cells from the time `last` to `now`
--   available   returns the units that may be charged now; it may be negative
--   charge      charges units
--   refund      gives back units that were charged at the time
--   lasts       returns in how many µs the state is as if never used
local floor, ceil, min, max_of = math.floor, math.ceil, math.min, math.max
local algorithms, cell_counts = {}, {}
local last, gone = 0, 0
