-- The arguments of the scripts of the packed layout. Integers are big-endian.
--
-- ARGV[1]   shape: the first bytes of a stored state of the policy (see lib/slots.lua)
-- ARGV[2]   plan: what the script has to do
-- ARGV[3]   format: how struct reads and writes a state of this shape. The shape is its first value
--
-- Times and periods are in µs. Lua numbers are doubles, which hold integers exactly up to 2^53.
-- `floor(a / b)` of two such integers is exact.
--
-- Sets      found: the value under the key, if shape.lua has read it
local found
local clock, shape, plan, format = now, ARGV[1], ARGV[2], ARGV[3]
local MAX_UNITS, LATEST = 9007199254740991, 4503599627370496
