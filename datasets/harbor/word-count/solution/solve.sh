#!/bin/bash
python3 - <<'PYTHON'
import collections, json, pathlib

words = pathlib.Path("/app/text.txt").read_text().lower().split()
counts = collections.Counter(word.rstrip(".,") for word in words)
pathlib.Path("/app/counts.json").write_text(json.dumps(counts))
PYTHON
