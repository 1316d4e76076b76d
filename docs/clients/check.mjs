// Asks whether a consumer may make a request: node check.mjs CONSUMER
// Exit status: 0 allowed, 1 denied, 2 not configured correctly.
const { RL_SERVER: server = 'http://127.0.0.1:8080', RL_TOKEN: token } = process.env;

class WrongToken extends Error {}

/** Returns whether the consumer may make the request. Allows it if the server does not answer. */
async function check(consumer) {
  const headers = { 'content-type': 'application/json' };
  if (token) headers.authorization = `Bearer ${token}`;
  const body = JSON.stringify({ request: { method: 'GET', path: '/export', consumer } });
  const signal = AbortSignal.timeout(1000);
  const request = new Request(`${server}/v1/check`, { method: 'POST', headers, body, signal });
  let status;
  try {
    ({ status } = await fetch(request));
  } catch {
    return true;
  }
  if (status === 401) throw new WrongToken('RL_TOKEN: the server expects another token');
  // 503: not decided, and on_store_failure is reject.
  return status === 200 || (status >= 500 && status !== 503);
}

try {
  const allowed = await check(process.argv[2]);
  console.log(allowed ? 'allowed' : 'denied');
  process.exitCode = allowed ? 0 : 1;
} catch (error) {
  console.error(error.message);
  process.exitCode = 2;
}
