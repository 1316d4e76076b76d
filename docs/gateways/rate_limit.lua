-- Asks the decision server about each request.
--
-- The action rate_limit answers a request that is denied, with the response of the server. It sets
-- txn.rate_limit to allowed, or to undecided if the server does not answer. The action
-- rate_limit_headers adds the rate limit headers to the response.

local URL = 'http://127.0.0.1:8001/decide'
local TIMEOUT = 1000 -- milliseconds: more than haproxy.cfg allows, because HAProxy repeats the call

local function set(list)
  local names = {}
  for _, name in ipairs(list) do
    names[name] = true
  end
  return names
end

-- The headers of a client that do not concern a decision, or that HAProxy sets itself.
local OMITTED = set({
  'connection', 'content-length', 'expect', 'host', 'keep-alive', 'te', 'transfer-encoding', 'upgrade',
})

-- The headers of the server that are no rate limit headers.
local OF_THE_CALL = set({
  'cache-control', 'connection', 'content-length', 'content-type', 'date', 'transfer-encoding',
  'x-answered-by',
})

-- HAProxy cannot send more lines or bytes to the decision server. Such a request is rejected, because
-- a client must not be able to prevent its decision.
local MAX_LINES = 80
local MAX_BYTES = 12000

-- HAProxy counts the values of a header from 0.
local function list(values)
  local lines = {}
  for index = 0, #values do
    lines[#lines + 1] = values[index]
  end
  return lines
end

core.register_action('rate_limit', { 'http-req' }, function(txn)
  local headers = {}
  local count = 0
  local size = #txn.f:pathq()
  for name, values in pairs(txn.http:req_get_headers()) do
    for index = 0, #values do
      count = count + 1
      size = size + #name + #values[index] + 4
    end
    -- A client must not describe itself as another client.
    if not OMITTED[name] and name:sub(1, 12) ~= 'x-forwarded-' and name ~= 'forwarded' then
      headers[name] = list(values)
    end
  end
  if count > MAX_LINES or size > MAX_BYTES then
    txn:done(txn:reply({ status = 431, body = 'the request has too many headers\n' }))
  end
  headers['x-forwarded-method'] = { txn.f:method() }
  headers['x-forwarded-uri'] = { txn.f:pathq() }
  headers['x-forwarded-host'] = { txn.f:req_hdr('host') }
  headers['x-forwarded-for'] = { txn.f:src() }

  local client = core.httpclient()
  local response = client:get({ url = URL, headers = headers, timeout = TIMEOUT })
  local is_answer = response and response.headers and response.headers['x-answered-by']
  -- With 500, the server does not know this gateway, or failed.
  if not is_answer or response.status == 500 then
    txn:set_var('txn.rate_limit', 'undecided')
    return
  end
  local rate_limit_headers = {}
  for name, values in pairs(response.headers) do
    if not OF_THE_CALL[name] then
      rate_limit_headers[name] = list(values)
    end
  end
  if response.status == 200 then
    txn:set_var('txn.rate_limit', 'allowed')
    txn:set_priv(rate_limit_headers)
    return
  end
  local reply = txn:reply({ status = response.status, body = response.body or '' })
  for _, name in ipairs({ 'content-type', 'cache-control' }) do
    rate_limit_headers[name] = response.headers[name] and list(response.headers[name])
  end
  for name, lines in pairs(rate_limit_headers) do
    for _, line in ipairs(lines) do
      reply:add_header(name, line)
    end
  end
  txn:done(reply)
end)

core.register_action('rate_limit_headers', { 'http-res' }, function(txn)
  for name, lines in pairs(txn:get_priv() or {}) do
    txn.http:res_del_header(name)
    for _, line in ipairs(lines) do
      txn.http:res_add_header(name, line)
    end
  end
end)
