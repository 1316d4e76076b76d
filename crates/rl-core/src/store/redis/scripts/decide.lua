-- Decides for all limits of one subject: charges all of them or none.
--
-- KEYS      see lib/slots.lua
-- ARGV      see lib/arguments.lua. The plan, which lib/limits.lua reads:
--             1 byte   mode: 0 check, 1 check up to, 2 peek, 3 charge
--             2 bytes  the set of limits in shadow: the first limit is the lowest bit
--             2 bytes  the set of limits that count requests
--             2 bytes  the number of calls, which are decided one after the other; 0 if their
--                      costs differ
--             2 bytes  the least number of calls: if fewer would be allowed, none is
--             7 bytes  the cost of each call
--             2 bytes  the length of a stored state of this shape
--             and for each limit its constants, in the order of its algorithm (7 bytes each)
-- ARGV[4]   the cost of each call (7 bytes each), if the number of calls is 0
--
-- Returns   for several calls of one cost, if no limit is in shadow:
--             1 byte   1
--             1 byte   healed: the number of keys that had lost their expiry
--             2 bytes  the number of allowed calls; these are the first ones
--             and the states after the last call, as below
--           otherwise:
--             1 byte   0
--             1 byte   healed
--             and for each call; if all have one cost, up to the first that is granted nothing:
--             2 bytes  the set of limits in shadow that would have denied the call; they are not
--                      charged
--             7 bytes  the granted units
--             the states as they would be stored
--             7 bytes  for each log, the time at which the units that the call lacks will be
--                      available; 0 if they are available now, or never will be
--           In both cases the time of the server follows (7 bytes) if the state was changed more
--           than 1 ms after it, because the server's clock has stepped back.
--
-- Without logs, the script runs at most four commands: TIME, GET, and then SET, or PTTL for a
-- denial. If a charge does not change the expiry of the key, PTTL and SETRANGE take the place of
-- SET. There are two exceptions: PEXPIRE follows if a denial finds that a key has lost its expiry,
-- and a second GET if the fast path could not decide the call. A denial changes no state.
local costs
if times == 0 then
  times = #ARGV[4] / 7
  costs = { struct.unpack('>' .. string.rep('I7', times), ARGV[4]) }
end

-- The number of allowed calls of one cost is computed by one division. Evaluating each call of a
-- large lease would block the server.
local together = mode == 0 and cost > 0 and times > 1 and shadow == 0 and not costs
local allowed = 0

-- The parts of the reply are collected and joined once at the end. The server's Lua hashes all
-- bytes of every new string, so a reply that grew with each call would be hashed again and again.
local replies, any_granted = { '' }, false
for call = 1, together and 1 or times do
  if costs then cost = costs[call] end
  local available, calls = available_units()

  local granted = 0
  if together then
    allowed = calls < least and 0 or calls
    granted = allowed * cost
  elseif mode == 3 or mode < 2 and cost <= available then
    granted = cost
  elseif mode == 1 then
    granted = available
  end

  -- The charge would need too many states. The error comes before any write. If a state of another
  -- policy were dropped instead, a client could reset its limits.
  if granted > 0 and #foreign > 16 then
    return redis.error_reply('RLFULL states of other policies still count for this subject')
  end

  local required = 0
  if together and allowed < times then required = cost end
  if granted == 0 and mode < 3 then required = mode == 1 and min(cost, 1) or cost end
  local uncharged = charge_limits(granted, together and allowed or 1, required)
  any_granted = any_granted or granted > 0
  if not together then replies[#replies + 1] = struct.pack('>I2I7', uncharged, granted) end
  replies[#replies + 1] = reply_states()
  -- A denial changes nothing, so the next calls of the same cost are denied as well.
  if granted == 0 and not costs then break end
end

local healed = save_or_heal(any_granted)
replies[1] = struct.pack('>BB', 0, healed)
if together then replies[1] = struct.pack('>BBI2', 1, healed, allowed) end
if now - clock > 1000 then replies[#replies + 1] = struct.pack('>I7', clock) end
return table.concat(replies)
