#!/bin/sh
# Asks whether a consumer may make a request: check.sh CONSUMER
# Exit status: 0 allowed, 1 denied, 2 undecided.
server=${RL_SERVER:-http://127.0.0.1:8080}

body=$(printf '{"request":{"method":"GET","path":"/export","consumer":"%s"}}' "$1")
status=$(curl -s -o /dev/null -w '%{http_code}' --max-time 1 \
  -H 'Content-Type: application/json' ${RL_TOKEN:+-H "Authorization: Bearer $RL_TOKEN"} \
  -d "$body" "$server/v1/check")
case $status in
  200) echo allowed ;;
  429) echo denied; exit 1 ;;
  *) echo "undecided: $status"; exit 2 ;;
esac
