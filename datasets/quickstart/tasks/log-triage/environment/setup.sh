#!/bin/sh
# Make the logs. Only sh, awk and gzip; integer arithmetic, so that every awk writes the same bytes.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
logs=${AGEVAL_WORKSPACE:-/attempt/workspace}/logs
mkdir -p "$logs"
awk -v first=1 -v lines=3000 -f "$here/requests.awk" | gzip -nc > "$logs/access.log.2.gz"
awk -v first=3001 -v lines=3000 -f "$here/requests.awk" | gzip -nc > "$logs/access.log.1.gz"
awk -v first=6001 -v lines=1500 -f "$here/requests.awk" > "$logs/access.log"
# The agent is to find the logs, not how they were made.
rm -f "$here/requests.awk"
