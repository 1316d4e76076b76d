-- The arguments of requests of several parts, in the packed layout. Each part has one argument,
-- because the server takes longer for several short ones.
--
-- ARGV[1]   a byte, the number of parts; the flags of parts.lua; and for each part of each request
--           the index of its key (2 bytes), and its cost (7 bytes)
-- ARGV[2…]  for each part: the first 9 bytes of the plan (see decide.lua), which the fast path skips;
--           the length of its shape in 2 bytes, the shape, the length of its format in 2 bytes, the
--           format, and the rest of the plan
--
-- Sets      flags: the flags of parts.lua
local flags = string.sub(ARGV[1], 2, 1 + string.byte(ARGV[1]))
local function arguments_of(p)
  local plan, shape, format, at = struct.unpack('>c9I2c0I2c0', ARGV[1 + p])
  return { shape, plan .. string.sub(ARGV[1 + p], at), format }
end
