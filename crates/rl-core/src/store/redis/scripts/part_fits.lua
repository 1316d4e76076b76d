-- Included in parts_shape.lua and parts_batch.lua. Brings the states of a part up to now.
--
-- Sets  fits: false if a limit of the part cannot grant the cost
--       expires_pPART: the time at which the key expires, unless another client has
--                      changed its expiry
do
  local cost, last, bucket_size = cost_pPART, last_pPART, BUCKET_SIZE
  local gone = now - last
  expires_pPART = 0
  do
    local now = last
    --@ each
    do
      local lasts
      --@ part lasts
      if lasts > expires_pPART then expires_pPART = lasts end
    end
    --@ end
    expires_pPART = last + expires_pPART
  end
  --@ each
  do
    --@ part advance
    local available
    --@ part available
    if available < COST then fits = false end
  end
  --@ end
end
