#!/bin/sh
# Runs in the box; the working directory is the workspace.
set -eu
cp "$(dirname "$0")/ini2json.py" ini2json.py
python3 -m unittest -q
