-- Included in parts_shape.lua and parts_batch.lua. Brings the states of a part up to now.
--
-- Sets  fits: false if a limit of the part cannot grant the cost
do
  local cost, last, bucket_size = cost_pPART, last_pPART, BUCKET_SIZE
  local gone = now - last
  --@ each
  do
    --@ part advance
    local available
    --@ part available
    if available < COST then fits = false end
  end
  --@ end
end
