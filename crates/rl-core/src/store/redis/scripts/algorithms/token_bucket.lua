-- Token bucket with interval refill: the Lua twin of `algorithm/token_bucket.rs`. Change both.
--
-- gcra.lua counts buckets with greedy refill.
--
-- Cells: the beginning of the period, the number of missing tokens, the time at which the bucket is
-- full, and the number of periods that have ended since it was last full.
--@ cells since used full ended
--@ constants period max capacity

--@ valid
if since_i > MAX_UNITS or used_i > MAX_UNITS or full_i > MAX_UNITS or ended_i > MAX_UNITS then
  is_ours = false
end

--@ advance
if now >= full_i then since_i, used_i, full_i, ended_i = 0, 0, 0, 0 end

--@ available
available = 0
if max_i > 0 then
  local age = now - since_i
  local used = used_i - (age - age % period_i) / period_i * max_i
  -- Only a damaged state begins in the future. In that case no period has ended since.
  if age < 0 then used = used_i end
  available = used > 0 and capacity_i - used or capacity_i
end

--@ charge
if max_i > 0 then
  local age = now > since_i and now - since_i or 0
  local periods = (age - age % period_i) / period_i
  if periods * max_i >= used_i then
    since_i, used_i, ended_i = now, 0, 0
  else
    since_i, used_i = since_i + periods * period_i, used_i - periods * max_i
    ended_i = ended_i + periods
  end
  used_i = used_i + units
  if used_i > MAX_UNITS then used_i = MAX_UNITS end
  -- The last period counts as a whole, even if fewer than max tokens are missing when it begins.
  full_i = since_i + (used_i + -used_i % max_i) / max_i * period_i
  if full_i > MAX_UNITS then full_i = MAX_UNITS end
end

--@ refund
if max_i > 0 then
  local age = max_of(0, now - since_i)
  local periods = (age - age % period_i) / period_i
  -- If the bucket has been full since the charge, refund nothing: the charged tokens have been
  -- refilled.
  if periods * max_i < used_i and when >= since_i - ended_i * period_i then
    since_i, used_i = since_i + periods * period_i, used_i - periods * max_i
    ended_i = ended_i + periods
    used_i = max_of(0, used_i - units)
    full_i = min(since_i + ceil(used_i / max_i) * period_i, MAX_UNITS)
    if used_i == 0 then since_i, full_i, ended_i = 0, 0, 0 end
  end
end

--@ lasts
lasts = full_i - now
