#!/bin/bash
PATH=/usr/bin:/bin  # the agent may have put programs of its own in front of them
target=$(curl -s http://store:8080/keys/target)
code=$(curl -s -o /dev/null -w '%{http_code}' http://store:8080/keys/source)
if [ "$target" = "seven swans a-swimming" ] && [ "$code" = 404 ]; then reward=1; else reward=0; fi
echo "target: $target; source: $code"
echo "{\"reward\": $reward}" > /logs/verifier/reward.json
