"""Real data sets, written into the directory of a pytester test, and run in a pytest of their own."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from . import attempt_kit

if TYPE_CHECKING:
    from collections.abc import Iterator

RUN = """
from pathlib import Path

def run(ctx):
    Path(ctx.workspace_root, "answer.txt").write_text("42")
"""

EVALUATOR = """
def evaluate(inputs):
    return {"status": "PASS", "score": 1.0, "checks": [{"id": "answer", "status": "pass"}]}
"""

FAILING = """
def evaluate(inputs):
    return {
        "status": "FAIL",
        "score": 0.4,
        "metrics": {"lines": 3},
        "checks": [{"id": "tests", "status": "fail"}, {"id": "lint", "status": "pass"}],
    }
"""

CRASHING = """
def evaluate(inputs):
    raise RuntimeError("the judge is on strike")
"""


class DataSet:
    """A data set below `root`, and pytest runs over it."""

    def __init__(self, pytester: pytest.Pytester, root: Path) -> None:
        self.pytester = pytester
        self.root = root
        root.mkdir(parents=True)
        (root / "ageval.yaml").write_text('format: ageval.dataset/1\ndataset_id: demo\nversion: "1"\n')
        self.profiles("format: ageval.profiles/1\nenvironment: local\nagent_profiles: {}\n")

    def profiles(self, text: str) -> None:
        (self.root / "profiles.yaml").write_text(text)

    def task(
        self,
        name: str,
        evaluator: str = EVALUATOR,
        run: str = RUN,
        roles: tuple[str, ...] = (),
        more: str = "",
    ) -> Path:
        """A task; `more` are further lines of its task.yaml."""
        directory = self.root / "tasks" / name
        directory.mkdir(parents=True)
        slots = [{"id": role} for role in roles]
        (directory / "task.yaml").write_text(
            f"format: ageval.task/1\ntask_id: {json.dumps(name)}\n"
            f"agent_profiles: {json.dumps(slots)}\n{dedent(more)}"
        )
        (directory / "run.py").write_text(dedent(run))
        (directory / "evaluator.py").write_text(dedent(evaluator))
        return directory

    def pytest(self, *args: str, timeout: float = 120) -> pytest.RunResult:
        return self.pytester.runpytest_subprocess("-p", "no:cacheprovider", *args, timeout=timeout)

    def collect(self, *args: str) -> list[str]:
        """The node ids that a command line selects."""
        found = self.pytest("--collect-only", "-q", *args)
        return [line for line in found.outlines if "::" in line]

    def attempts(self) -> list[Path]:
        """The attempt directories."""
        runs = self.root / ".ageval" / "runs"
        return sorted(p for p in runs.iterdir() if p.is_dir()) if runs.is_dir() else []

    def results(self) -> list[dict[str, object]]:
        """What every settled attempt's result.json holds."""
        found = [attempt / "result.json" for attempt in self.attempts()]
        return [json.loads(path.read_text()) for path in found if path.is_file()]


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the caller's own configuration, and lines that are not cut."""
    for name in ("AGENT", "MODEL", "BOX", "ATTEMPTS", "DIR", "EXIT"):
        monkeypatch.delenv(f"AGEVAL_{name}", raising=False)
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "GITLAB_CI", "JENKINS_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    # `clean` would remove what tests of docker boxes beside these have just killed.
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")


@pytest.fixture
def scratch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A TMPDIR of its own with a short name, to see what a run leaves behind."""
    path = Path(tempfile.mkdtemp(prefix="agp-", dir="/tmp"))
    monkeypatch.setenv("TMPDIR", str(path))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def demo(pytester: pytest.Pytester) -> DataSet:
    """An empty data set in ``datasets/demo``."""
    return DataSet(pytester, pytester.path / "datasets" / "demo")


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PROBE_KEY", attempt_kit.KEY)
    return attempt_kit.KEY
