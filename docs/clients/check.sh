#!/bin/sh
# Asks whether a consumer may make a request: check.sh CONSUMER
# Exit status: 0 allowed, 1 denied, 2 not configured correctly.
server=${RL_SERVER:-http://127.0.0.1:8080}

# These characters need no escape in JSON.
LC_ALL=C
case $1 in
  '' | *[!A-Za-z0-9._@+-]*)
    echo "CONSUMER: expected letters, digits and ._@+-" >&2
    exit 2 ;;
esac
body="{\"request\":{\"method\":\"GET\",\"path\":\"/export\",\"consumer\":\"$1\"}}"
# The header is read from standard input, because other users see the arguments of a program.
status=$(printf '%s\n' "${RL_TOKEN:+Authorization: Bearer $RL_TOKEN}" |
  curl -s -o /dev/null -w '%{http_code}' --max-time 1 -H @- \
    -H 'Content-Type: application/json' -d "$body" "$server/v1/check")
case $status in
  200) echo allowed ;;
  401) echo "RL_TOKEN: the server expects another token" >&2; exit 2 ;;
  503) echo denied; exit 1 ;; # not decided, and on_store_failure is reject
  000 | 5*) echo allowed ;; # the server does not answer
  *) echo denied; exit 1 ;;
esac
