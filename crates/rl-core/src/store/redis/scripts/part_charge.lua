-- Included in parts_shape.lua and parts_batch.lua, which set write = struct.pack. Charges a part
-- if the request is allowed.
--
-- Sets  value: the state as it would be stored
--       lifetime: the time in ms for which it is needed
local cost, last, bucket_size = cost_pPART, last_pPART, BUCKET_SIZE
local longest = 0
if fits then
  --@ each
  do
    local units = COST
    --@ part charge
  end
  --@ end
end
--@ each
do
  local lasts
  --@ part lasts
  if lasts > longest then longest = lasts end
end
--@ end
local value = write(format_pPART, shape_pPART, now, <<cells>>)
-- Round the lifetime up to ms.
local lifetime = now + longest - server_time + 999
lifetime = (lifetime - lifetime % 1000) / 1000 + linger
