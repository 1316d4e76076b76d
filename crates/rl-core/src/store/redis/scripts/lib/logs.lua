-- Adds sliding logs and concurrency limits to the table of algorithms (see
-- algorithms/sliding_log.lua).
local ENTRY, sliding_log = 14, log_functions()
for kind = 8, 9 do
  cell_counts[kind] = 8
  algorithms[kind] = function(operation, slot, units, when)
    if operation == 'valid' then return true end
    -- `advance` does nothing, because `open` has already dropped the expired entries.
    if operation ~= 'advance' then return sliding_log[operation](slot, units, when) end
  end
end
