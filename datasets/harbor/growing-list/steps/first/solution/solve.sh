#!/bin/bash
printf '1\n3\n5\n7\n9\n' > /app/numbers.txt
