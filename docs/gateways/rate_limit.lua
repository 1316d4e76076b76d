-- Asks the decision server about each request, and leaves its decision in variables:
--
--   txn.rate_limit    allowed, denied, or undecided if the server does not answer
--   txn.rl_limit, txn.rl_remaining, txn.rl_reset, txn.rl_retry_after    its headers
--   txn.rl_type, txn.rl_body    the body of a denial

local URL = 'http://127.0.0.1:8080/decide'
local TIMEOUT = 200 -- milliseconds

-- The headers of a client that do not concern a decision, or that HAProxy sets itself.
local OMITTED = {
  ['connection'] = true, ['content-length'] = true, ['expect'] = true, ['host'] = true,
  ['transfer-encoding'] = true, ['upgrade'] = true, ['te'] = true, ['keep-alive'] = true,
}

local VARIABLES = {
  ['x-rate-limit-limit'] = 'txn.rl_limit',
  ['x-rate-limit-remaining'] = 'txn.rl_remaining',
  ['x-rate-limit-reset'] = 'txn.rl_reset',
  ['retry-after'] = 'txn.rl_retry_after',
  ['content-type'] = 'txn.rl_type',
}

core.register_action('rate_limit', { 'http-req' }, function(txn)
  local headers = {}
  for name, values in pairs(txn.http:req_get_headers()) do
    -- A client must not describe itself as another client.
    if not OMITTED[name] and name:sub(1, 12) ~= 'x-forwarded-' and name ~= 'forwarded' then
      local list = {}
      -- HAProxy counts the values from 0.
      for index = 0, #values do
        list[#list + 1] = values[index]
      end
      headers[name] = list
    end
  end
  headers['x-forwarded-method'] = { txn.f:method() }
  headers['x-forwarded-uri'] = { txn.f:pathq() }
  headers['x-forwarded-host'] = { txn.f:req_hdr('host') }
  headers['x-forwarded-for'] = { txn.f:src() }

  local client = core.httpclient()
  local response = client:get({ url = URL, headers = headers, timeout = TIMEOUT })
  local status = response and response.status or 0
  if status >= 500 or status == 0 then
    txn:set_var('txn.rate_limit', 'undecided')
    return
  end
  for name, variable in pairs(VARIABLES) do
    local values = response.headers[name]
    if values then
      txn:set_var(variable, values[0])
    end
  end
  if status < 300 then
    txn:set_var('txn.rate_limit', 'allowed')
  else
    txn:set_var('txn.rate_limit', 'denied')
    txn:set_var('txn.rl_body', response.body or '')
  end
end)
