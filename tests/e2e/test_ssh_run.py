"""The quickstart data set on a host that shares no files with us: a real sshd on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("paramiko")

from tests.support.sshd import MISSING, Sshd, sshd  # noqa: E402

pytestmark = [pytest.mark.ssh, pytest.mark.skipif(MISSING is not None, reason=str(MISSING))]

QUICKSTART = Path(__file__).parents[2] / "datasets" / "quickstart"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with sshd(tmp_path_factory.mktemp("sshd")) as running:
        yield running


def run(server: Sshd, dataset: Path, directory: Path, *arguments: str) -> dict[str, dict[str, Any]]:
    """Run a data set over ssh; result.json of each task."""
    evidence = directory / "evidence"
    options = [f"--box-option={name}={value}" for name, value in server.options.items()]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("AGEVAL_", "PYTEST_"))
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", str(dataset), "-q", "-p", "no:cacheprovider", f"--ageval-dir={evidence}"]
        + ["--box=ssh", *options, *arguments],
        cwd=directory,
        env={**environment, "XDG_CACHE_HOME": str(directory / "cache")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    results = [json.loads(path.read_text()) for path in evidence.rglob("result.json")]
    assert results, done.stdout + done.stderr
    assert server.roots() == []
    assert list((directory / "cache" / "pytest-ageval" / "ssh").iterdir()) == []
    return {result["task_id"]: {**result, "output": done.stdout} for result in results}


def test_every_solution_passes(server: Sshd, tmp_path: Path) -> None:
    for task, result in run(server, QUICKSTART, tmp_path, "--agent=oracle").items():
        assert (task, result["status"], result["score"]) == (task, "PASS", 1.0), result["output"]


def test_doing_nothing_fails_and_is_not_an_error(server: Sshd, tmp_path: Path) -> None:
    for task, result in run(server, QUICKSTART, tmp_path, "--agent=nop").items():
        assert (task, result["status"], result["score"]) == (task, "FAIL", 0.0), result["output"]
