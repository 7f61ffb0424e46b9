"""Harbor tasks for tests on a real engine; the agent ``lab`` is a shell that runs the instruction."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LAB = ROOT / "docs" / "examples" / "plugin-directory"
GRADE = 'if [ "$(cat /app/answer)" = 42 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n'


class Tasks:
    """Tasks below a directory, and one run over all of them."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, name: str, script: str = "true", toml: str = "", **files: str) -> Path:
        root = self.root / name
        files = {
            "task.toml": textwrap.dedent(toml),
            "instruction.md": textwrap.dedent(script),
            "environment/Dockerfile": "FROM ageval-attempt:base\nUSER root\nWORKDIR /app\n",
            "tests/test.sh": GRADE,
            **{path.replace("__", "/"): text for path, text in files.items()},
        }
        for path, text in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        return root

    def run(self, *arguments: str, agent: str = "lab") -> dict[str, dict[str, Any]]:
        """result.json of each task, by its id; `output` has what pytest printed."""
        command = [sys.executable, "-m", "pytest", str(self.root), "-p", "no:cacheprovider", "-n", "2"]
        command += [f"--agent={agent}", f"--ageval-plugins={LAB}", *arguments]
        done = subprocess.run(command, cwd=self.root, capture_output=True, text=True, timeout=400)
        self.output = done.stdout + done.stderr
        self.evidence: dict[str, Path] = {}
        found = {}
        for path in (self.root / ".ageval" / "runs").glob("*/result.json"):
            result = json.loads(path.read_text())
            found[result["task_id"]] = result
            self.evidence[result["task_id"]] = path.parent
        return found

    def facts(self, task: str, name: str) -> list[Any]:
        rows = json.loads((self.evidence[task] / "summary.json").read_text())["facts"]
        return [row.get("detail") for row in rows if row["name"] == name]


def title(result: dict[str, Any]) -> str:
    return result["error"]["title"] if result["error"] else result["status"]
