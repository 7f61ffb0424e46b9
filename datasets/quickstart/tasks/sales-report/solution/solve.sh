#!/bin/sh
# Runs in the box; the working directory is the workspace.
set -eu
python3 "$(dirname "$0")/report.py"
