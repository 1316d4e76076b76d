-- Returns the decision of readable.lua. This part runs last, after the time is read. Otherwise a
-- charge could seem older than the window that it opened.
--
-- ARGV[3]  shape
-- ARGV[4]  format, the form of the reply (see lib/arguments.lua)
--
-- Returns  a reply in the form of decide.lua
local cells = {}
for i = 1, count do
  cells[2 * i - 1] = ttl[i] > 0 and ttl[i] * 1000 - now % 1000 or 0
  cells[2 * i] = ttl[i] > 0 and used[i] or 0
end
return struct.pack('>BBI2I7', 0, healed, uncharged, granted)
  .. struct.pack(ARGV[4], ARGV[3], now, unpack(cells))
