"""What a worker is asked to do, and what it came to."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pytest_ageval.worker import view

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pytest_ageval.worker.protocol import ErrorInfo, Launch
    from pytest_ageval.worker.server import Start

#: Variable that marks every process that a worker starts; its value is random for each worker.
COOKIE = "AGEVAL_WORKER_COOKIE"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptSpec:
    """One script to run in a worker. All paths are absolute directories and files of the host.

    `kind` says what the function gets: a `RunContext` ("run") or the evaluator's inputs
    ("evaluate"). `workspace` is the current directory and must exist. `env` is added to the few
    variables that every worker has (PATH, LANG, AGEVAL_*); nothing else of the parent's environment
    is there. `params` are the task's parameters, `inputs` the evaluator's inputs but for ``agent``
    and ``scoring``, which the worker adds. `stdout` and `stderr` are files that are created.
    `contained`: the script sees what `view.plan` says, without `hidden`; else all that the user does.
    `owner` (user and group) has the files of the workspace, where that is not us: only root can say so.
    `start`: the worker is forked from a warm interpreter, or is a new one.
    """

    kind: Literal["run", "evaluate"]
    script: Path
    function: str
    task_root: Path
    dataset_root: Path | None
    workspace: Path
    artifacts: Path
    stdout: Path
    stderr: Path
    attempt_id: str
    trial_id: str = ""
    run_id: str = ""
    evaluation: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)
    deadline_monotonic: float | None = None
    contained: bool = False
    hidden: Sequence[Path] = ()
    owner: tuple[int, int] | None = None
    start: Start = "fork"

    def environment(self, cookie: str) -> dict[str, str]:
        """The whole environment of the worker."""
        found = {
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": os.environ.get("LANG", "C.UTF-8"),
            **self.env,
            "AGEVAL_ATTEMPT_ID": self.attempt_id,
            "AGEVAL_WORKSPACE": str(self.workspace),
            "AGEVAL_ARTIFACTS": str(self.artifacts),
            COOKIE: cookie,
        }
        if self.evaluation is not None:
            found["AGEVAL_EVALUATION"] = str(self.evaluation)
        return found

    def launch(self, cookie: str) -> Launch:
        """The first frame to the worker."""
        inputs = {
            "artifacts": {},
            "artifacts_dir": str(self.artifacts),
            "workspace_dir": str(self.workspace),
            "evaluation_dir": None if self.evaluation is None else str(self.evaluation),
            "inputs": [],
            "parameters": dict(self.params),
            **self.inputs,
        }
        return {
            "kind": self.kind,
            "script": str(self.script),
            "function": self.function,
            "task_root": str(self.task_root),
            "dataset_root": None if self.dataset_root is None else str(self.dataset_root),
            "workspace": str(self.workspace),
            "artifacts": str(self.artifacts),
            "env": self.environment(cookie),
            "params": dict(self.params),
            "attempt_id": self.attempt_id,
            "trial_id": self.trial_id,
            "run_id": self.run_id,
            "deadline_monotonic": self.deadline_monotonic,
            "inputs": inputs if self.kind == "evaluate" else {},
            "view": view.plan(self) if self.contained else None,
        }


#: ``returned``: the function came back. ``raised``: it raised, or returned something that is not
#: JSON. ``exited``: the process ended itself (sys.exit, os._exit), whatever the code. ``killed``: a
#: signal ended it, ours or another. ``lost``: the fork server died, and the worker with it.
Status = Literal["returned", "raised", "exited", "killed", "lost"]


@dataclass(frozen=True, slots=True)
class WorkerOutcome:
    """What a worker came to.

    `value` is, with status ``returned``, the evaluator's return value as it is (any JSON, NaN
    included), or for run.py ``{"terminal": {"kind", "reason"}, "published": {id: path}}``. `error` is
    set with every other status. `exit_code` or `signal` say how the process ended. `leftovers`
    describe the processes that the script left behind and that were ended. `stdout_tail` and
    `stderr_tail` are head and tail of the streams. `cpu_seconds` is processor time, the script's own
    children included.
    """

    status: Status
    value: Any = None
    error: ErrorInfo | None = None
    exit_code: int | None = None
    signal: int | None = None
    stdout_tail: str = ""
    stderr_tail: str = ""
    leftovers: tuple[str, ...] = ()
    cpu_seconds: float | None = None
