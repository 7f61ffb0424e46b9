"""Task scripts and profiles that the tests of the phases share, and how they read the evidence."""

from __future__ import annotations

import json
from typing import Any

ROLES = "solver"
PROFILES = """
format: ageval.profiles/1
environment: local
agent_profiles:
  "*":
    executor: openai-http
    base_url: {url}
    api_key: ${{PROBE_KEY}}
    model: {{id: scripted}}
    options: {{upstream_stall_seconds: {stall}}}
"""
KEY = "sk-probe-0123456789abcdef"

ASK = """
async def run(ctx):
    session = ctx.agent.session("solver")
    reply = await session.invoke("What is 6 times 7?")
    ctx.publish_json("reply", {"text": reply["text"], "ok": reply["ok"], "error": reply["error"]})
"""
JUDGE = """
import json, pathlib
def evaluate(inputs):
    reply = json.loads(pathlib.Path(inputs["artifacts"]["reply"]).read_text())
    passed = "42" in reply["text"]
    return {"status": "PASS" if passed else "FAIL", "score": float(passed)}
"""
ONE = "artifacts: {publishable: [{id: reply, path: reply.json}]}\n"


def only(demo: Any) -> dict[str, Any]:
    (found,) = demo.results()
    return found


def facts(demo: Any) -> dict[str, list[Any]]:
    (attempt,) = demo.attempts()
    found: dict[str, list[Any]] = {}
    for row in json.loads((attempt / "summary.json").read_text())["facts"]:
        found.setdefault(row["name"], []).append(row.get("detail"))
    return found
