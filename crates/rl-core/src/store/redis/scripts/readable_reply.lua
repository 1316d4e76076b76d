-- Returns the decision of readable.lua, in the form of decide.lua. This file runs last, after the
-- time is read.
return struct.pack('>BBI2I7', 0, healed, uncharged, granted) .. reply_states(now)
