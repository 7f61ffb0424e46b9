"""What Harbor requires of a job directory: by a list of the fields, and by Harbor itself where it is."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import atif

#: Fields without a default in Harbor 0.25 and 0.26.
_TRIAL = ("task_name", "trial_name", "trial_uri", "task_id", "task_checksum", "config", "agent_info")
_JOB = ("id", "started_at", "n_total_trials", "stats")
_COUNTS = ("n_completed_trials", "n_errored_trials", "n_running_trials", "n_pending_trials", "evals")
_EXCEPTION = ("exception_type", "exception_message", "exception_traceback", "occurred_at")
_ENTRY = ("source", "destination", "type", "status")


def check_job(job: Path) -> int:
    """Check the files of a job and of its trials; how many trials there are."""
    whole = _load(job / "result.json")
    _has(whole, _JOB)
    _has(whole["stats"], _COUNTS)
    uuid.UUID(whole["id"])
    _times(whole, "started_at", "finished_at")
    config = _load(job / "config.json")
    assert config["job_name"] == job.name
    trials = [path for path in job.iterdir() if path.is_dir()]
    for trial in trials:
        _check_trial(trial, whole["id"])
    assert len(trials) == whole["n_total_trials"]
    return len(trials)


def _check_trial(trial: Path, job_id: str) -> None:
    found = _load(trial / "result.json")
    _has(found, _TRIAL)
    uuid.UUID(found["id"])
    assert found["trial_name"] == trial.name
    assert found["task_id"] == {"path": found["config"]["task"]["path"]}
    assert found["config"] == _load(trial / "config.json")
    assert found["config"]["job_id"] == job_id
    _has(found["agent_info"], ("name", "version"))
    _times(found, "started_at", "finished_at")
    steps = found["step_results"] or []
    for info in (found["exception_info"], *(step["exception_info"] for step in steps)):
        if info is not None:
            _has(info, _EXCEPTION)
    for verified in (found["verifier_result"], *(step["verifier_result"] for step in steps)):
        assert verified is None or all(type(value) is float for value in verified["rewards"].values())
    places = [trial / "steps" / step["step_name"] for step in steps] or [trial]
    for place in places:
        assert (place / "agent").is_dir()
        assert (place / "verifier").is_dir()
        for row in json.loads((place / "artifacts" / "manifest.json").read_text()):
            _has(row, _ENTRY)
            assert row["type"] in ("file", "directory")
            assert row["status"] in ("ok", "failed", "empty", "skipped")
            if row["status"] == "ok":
                assert (place / row["destination"]).exists()
        for path in (place / "agent").glob("trajectory*.json"):
            document = json.loads(path.read_text())
            document.pop("notes", None)
            atif.read(json.dumps(document))


def _load(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def _has(row: dict[str, Any], names: tuple[str, ...]) -> None:
    assert all(row.get(name) is not None for name in names), [n for n in names if row.get(n) is None]


def _times(row: dict[str, Any], *names: str) -> None:
    for name in names:
        assert datetime.fromisoformat(row[name]).tzinfo is not None


# -- Harbor itself ---------------------------------------------------------------------------------

_VALIDATE = """
import json, pathlib, sys
from harbor.models.job.config import JobConfig
from harbor.models.job.result import JobResult
from harbor.models.trajectories import Trajectory
from harbor.models.trial.artifact_manifest import ArtifactManifestEntry
from harbor.models.trial.config import TrialConfig
from harbor.models.trial.result import TrialResult
trials = 0
for job in pathlib.Path(sys.argv[1]).iterdir():
    JobConfig.model_validate_json((job / "config.json").read_text())
    JobResult.model_validate_json((job / "result.json").read_text())
    for trial in (path for path in job.iterdir() if path.is_dir()):
        TrialConfig.model_validate_json((trial / "config.json").read_text())
        TrialResult.model_validate_json((trial / "result.json").read_text())
        for path in trial.rglob("agent/trajectory*.json"):
            Trajectory.model_validate_json(path.read_text())
        for path in trial.rglob("artifacts/manifest.json"):
            [ArtifactManifestEntry.model_validate(row) for row in json.loads(path.read_text())]
        trials += 1
print(trials)
"""


def validate_with_harbor(jobs: Path) -> int:
    """Have Harbor's own models read every file; how many trials there were."""
    command = [os.environ["AGEVAL_HARBOR_PYTHON"], "-c", _VALIDATE, str(jobs)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(done.stdout)


@contextlib.contextmanager
def viewer(jobs: Path) -> Iterator[Callable[[str], Any]]:
    """``harbor view`` on loopback; gives a function that asks its API."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = Path(os.environ["AGEVAL_HARBOR_PYTHON"]).with_name("harbor")
    server = subprocess.Popen(
        [program, "view", jobs, "--port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HARBOR_TELEMETRY": "0"},
    )

    def ask(path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return json.load(answer)

    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                ask("/api/jobs")
                break
            except urllib.error.URLError:
                assert server.poll() is None, "harbor view ended"
                assert time.monotonic() < deadline, "harbor view does not answer"
                time.sleep(0.2)
        yield ask
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(timeout=30)
