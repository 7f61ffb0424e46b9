#!/bin/bash
PATH=/usr/bin:/bin  # the agent may have put programs of its own in front of them
same=$(printf '2\n3\n10\n4')
if [ "$(cat /app/numbers.txt)" = "$(printf '1\n2\n3\n4\n5\n7\n9\n10')" ] && [ "$(cat /app/more.txt)" = "$same" ]
then echo 1; else echo 0; fi > /logs/verifier/reward.txt
