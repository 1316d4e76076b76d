"""Asks whether a consumer may make a request: check.py CONSUMER"""
import json
import os
import sys
import urllib.error
import urllib.request

SERVER = os.environ.get("RL_SERVER", "http://127.0.0.1:8080")
TOKEN = os.environ.get("RL_TOKEN")


def check(consumer: str) -> bool:
    """Returns whether the consumer may make the request. Allows it if the server does not answer."""
    body = {"request": {"method": "GET", "path": "/export", "consumer": consumer}}
    request = urllib.request.Request(f"{SERVER}/v1/check", json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    if TOKEN:
        request.add_header("Authorization", f"Bearer {TOKEN}")
    try:
        with urllib.request.urlopen(request, timeout=1) as response:
            return json.load(response)["allowed"]
    except urllib.error.HTTPError as error:
        return error.code != 429
    except OSError:
        return True


if __name__ == "__main__":
    allowed = check(sys.argv[1])
    print("allowed" if allowed else "denied")
    sys.exit(0 if allowed else 1)
