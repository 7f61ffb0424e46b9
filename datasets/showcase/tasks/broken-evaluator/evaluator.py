"""An evaluator with a fault, on purpose."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def evaluate(inputs: dict[str, Any]) -> dict[str, Any]:
    """Compare the reply with the accepted words."""
    gold = json.loads(Path(inputs["evaluation_dir"], "words.json").read_text(encoding="utf-8"))
    reply = json.loads(Path(inputs["artifacts"]["reply"]).read_text(encoding="utf-8"))
    passed = reply["text"].strip(" .!").lower() in gold["accepted_words"]  # the key is "accepted"
    return {"status": "PASS" if passed else "FAIL", "score": float(passed), "metrics": {}}
