"""Asks whether a consumer may make a request: check.py CONSUMER

Exit status: 0 allowed, 1 denied, 2 not configured correctly.
"""
import http.client
import json
import os
import sys
import urllib.error
import urllib.request

SERVER = os.environ.get("RL_SERVER", "http://127.0.0.1:8080")
TOKEN = os.environ.get("RL_TOKEN")


class WrongToken(Exception):
    """The server expects another token."""


def check(consumer: str) -> bool:
    """Returns whether the consumer may make the request. Allows it if the server does not answer."""
    body = {"request": {"method": "GET", "path": "/export", "consumer": consumer}}
    request = urllib.request.Request(f"{SERVER}/v1/check", json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    if TOKEN:
        request.add_header("Authorization", f"Bearer {TOKEN}")
    try:
        with urllib.request.urlopen(request, timeout=1) as response:
            return response.status == 200
    except urllib.error.HTTPError as error:
        if error.code == 401:
            raise WrongToken("RL_TOKEN: the server expects another token") from error
        # 503: not decided, and on_store_failure is reject.
        return error.code >= 500 and error.code != 503
    except (OSError, http.client.HTTPException):
        return True


if __name__ == "__main__":
    try:
        allowed = check(sys.argv[1])
    except WrongToken as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    print("allowed" if allowed else "denied")
    sys.exit(0 if allowed else 1)
