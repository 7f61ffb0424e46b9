"""What it costs to keep many attempts in flight, with a model that takes 2 seconds.

python benchmarks/in_flight.py

Every row does the same work: so many attempts, each with one call of the model. ``-n 8`` alone is the way of
pytest-xdist: a process for each attempt in flight.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from measure import run

from datasets import make
from pytest_ageval.testing.scripted_model import Delay, ScriptedModel, Text

ROWS = ("-n 8", "--in-flight 8", "--in-flight 64", "--in-flight 256", "-n 2 --in-flight 64")

RUN = """\
async def run(ctx):
    async with ctx.agent.session("solver", max_turns=1) as session:
        result = await session.invoke("Say done.")
    ctx.publish_json("answer", {"text": result["text"]})
"""

PROFILES = """\
format: ageval.profiles/1
environment: local
agent_profiles:
  solver:
    executor: openai-http
    base_url: {url}
    api_key: ${{AGEVAL_BENCHMARK_KEY}}
    model: {{id: scripted, api: chat}}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attempts", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rows", nargs="*", default=ROWS)
    options = parser.parse_args()
    print(f"{options.attempts} attempts, {options.seconds:g} s each for the model")
    print(f"{'':24}{'wall s':>9}{'CPU s':>9}{'peak MB':>9}{'CPU ms an attempt':>20}")
    script = [Delay(options.seconds), Text("done")]
    with tempfile.TemporaryDirectory() as scratch, ScriptedModel(script) as model:
        for number, row in enumerate(options.rows):
            root = _make(Path(scratch, str(number)), options.attempts, model.base_url)
            argv = [sys.executable, "-m", "pytest", str(root), "-q", "-p", "no:cacheprovider", *row.split()]
            cost = run(argv, cwd=Path(scratch), env={"AGEVAL_BENCHMARK_KEY": "none"})
            each = cost.cpu / options.attempts * 1000
            print(f"{row:24}{cost.wall:9.1f}{cost.cpu:9.1f}{cost.peak_mb:9.1f}{each:20.1f}", flush=True)


def _make(root: Path, attempts: int, url: str) -> Path:
    make(root, attempts)
    (root / "profiles.yaml").write_text(PROFILES.format(url=url))
    for task in (root / "tasks").iterdir():
        (task / "run.py").write_text(RUN)
        with (task / "task.yaml").open("a") as stream:
            stream.write("agent_profiles:\n  - id: solver\n")
    return root


if __name__ == "__main__":
    main()
