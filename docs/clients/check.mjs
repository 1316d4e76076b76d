// Asks whether a consumer may make a request: node check.mjs CONSUMER
const { RL_SERVER: server = 'http://127.0.0.1:8080', RL_TOKEN: token } = process.env;

/** Returns whether the consumer may make the request. Allows it if the server does not answer. */
async function check(consumer) {
  const headers = { 'content-type': 'application/json' };
  if (token) headers.authorization = `Bearer ${token}`;
  const body = JSON.stringify({ request: { method: 'GET', path: '/export', consumer } });
  try {
    const signal = AbortSignal.timeout(1000);
    const response = await fetch(`${server}/v1/check`, { method: 'POST', headers, body, signal });
    return response.status !== 429;
  } catch {
    return true;
  }
}

const allowed = await check(process.argv[2]);
console.log(allowed ? 'allowed' : 'denied');
process.exitCode = allowed ? 0 : 1;
