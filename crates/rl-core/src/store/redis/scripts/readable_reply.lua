-- Replies the decision of readable.lua. It runs after everything else, and after the time is read:
-- a charge must not seem to be older than the window that it opened.
--
-- Returns  as decide.lua
local now_ms, states = math.floor(now / 1000), {}
for i = 1, count do
  states[2 * i - 1] = ttl[i] > 0 and (now_ms + ttl[i] - periods[i]) * 1000 or 0
  states[2 * i] = used[i]
end
return struct.pack('>BBI2I7I7' .. string.rep('I7I7', count), 0, healed, uncharged, granted, now, unpack(states))
