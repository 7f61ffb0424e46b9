#!/bin/bash
PATH=/usr/bin:/bin  # the agent may have put programs of its own in front of them
if [ "$(cat /app/numbers.txt)" = "$(printf '1\n3\n5\n7\n9')" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
