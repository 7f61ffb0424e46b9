#!/bin/bash
PATH=/usr/bin:/bin  # the agent may have put programs of its own in front of them
# The reward file decides; the exit code does not.
if [ "$(cat /app/hello.txt)" = "Hello, world!" ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo "found: $(cat /app/hello.txt 2>&1)"
  echo 0 > /logs/verifier/reward.txt
  exit 1
fi
