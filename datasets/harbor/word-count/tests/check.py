"""Grades the artifact: the share of words whose count is right, and nothing for a wrong set of words."""

import json
import pathlib

EXPECTED = {
    "the": 7, "cat": 2, "saw": 4, "dog": 2, "and": 2, "a": 1, "bird": 2, "both": 2, "sky": 1, "sea": 1,
}  # fmt: skip

try:
    found = json.loads(pathlib.Path("/app/counts.json").read_text())
except (OSError, ValueError) as error:
    print(f"counts.json: {error}")
    found = None
words = isinstance(found, dict) and set(found) == set(EXPECTED)
right = sum(found[word] == count for word, count in EXPECTED.items()) / len(EXPECTED) if words else 0.0
pathlib.Path("/logs/verifier/reward.json").write_text(json.dumps({"reward": right, "words": float(words)}))
