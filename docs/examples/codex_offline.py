"""The real codex at a real task, without a key: a scripted model stands in for the provider.

    python docs/examples/codex_offline.py

codex is installed from npm into a cache the first time. It starts the quickstart's task `fix-parser`,
runs the tests, overwrites the program with the task's own solution and says so, because that is what
the script tells it to; the rest (box, agent, tools, evaluator) is what a paid run has.
"""

import subprocess
import sys
from pathlib import Path

from pytest_ageval.testing.scripted_model import ScriptedModel, Shell, Text, Write

QUICKSTART = Path(__file__).parents[2] / "datasets" / "quickstart"
SOLUTION = QUICKSTART / "tasks" / "fix-parser" / "solution" / "ini2json.py"

SCRIPT = [
    Shell("python3 -m unittest"),
    Write("ini2json.py", SOLUTION.read_text(encoding="utf-8")),
    Text("ini2json.py does all that FORMAT.md says now."),
]


def main() -> int:
    """Run pytest against the scripted model; its arguments are passed on."""
    with ScriptedModel(SCRIPT) as model:
        command = [sys.executable, "-m", "pytest", str(QUICKSTART), "-k", "fix-parser"]
        command += ["--agent", "codex", "--model", "gpt-5.5", "--base-url", model.base_url]
        return subprocess.run([*command, *sys.argv[1:]], check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
