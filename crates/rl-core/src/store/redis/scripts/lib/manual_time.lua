-- Time prologue of tests: the time comes with the call, so that scripts can be stepped through
-- invented timelines. Keys linger, because real time passes while the invented one stands still.
--
-- ARGV[last]  now, µs since the epoch
-- Sets        now, and linger: the time a key lives beyond its last window, in ms
local now, linger = tonumber(ARGV[#ARGV]), 600000
