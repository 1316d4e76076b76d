-- The table of algorithms, by kind:
--
--   0  fixed window from the first request      5  generic cell rate algorithm
--   1  fixed window at multiples of the period  6  token bucket with interval refill
--   2  fixed window in the calendar month       7  sliding log
--   3  sliding window counter                   8  concurrency
--   4  sliding window
--
-- An algorithm is a function of an operation, a slot (see slots.lua), units and a time.
-- `composer.rs` composes it from the parts of its file, and inserts it at the marker below. Logs
-- have further functions (see algorithms/sliding_log.lua).
--
--   valid       returns whether the cells were written by these scripts
--   advance     brings the cells from the time `last` to `now`
--   available   returns the units that may be charged now; it may be negative
--   charge      charges units
--   refund      refunds units that were charged at the given time
--   lasts       returns the time in µs after which the state equals an unused one
local floor, ceil, min, max_of = math.floor, math.ceil, math.min, math.max
local algorithms, cell_counts = {}, {}
local last, gone = 0, 0
-- The number of bytes of an older bucket of a sliding window. slots.lua sets it.
local bucket_size

--@ table

-- Sliding logs and concurrency limits.
local ENTRY, sliding_log = 14, log_functions()
for kind = 7, 8 do
  cell_counts[kind] = 8
  algorithms[kind] = function(operation, slot, units, when)
    if operation == 'valid' then return true end
    -- `advance` does nothing, because `open` has already dropped the expired entries.
    if operation ~= 'advance' then return sliding_log[operation](slot, units, when) end
  end
end
