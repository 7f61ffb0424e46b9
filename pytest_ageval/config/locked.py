"""The locked configuration of one attempt: everything that can change its outcome, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pytest_ageval.accounting.budget import Budget
from pytest_ageval.executor import McpServer, ModelSpec

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pytest_ageval.config.harbor.document import HarborTask


@dataclass(frozen=True, slots=True)
class Limits:
    """Ceilings of one attempt. Seconds; 0 means no limit (but 0 invocations means none allowed)."""

    wall_time_seconds: int = 300
    environment_seconds: int = 600
    evaluate_seconds: int = 600
    agent_invocations: int = 1
    agent_concurrency: int = 1


@dataclass(frozen=True, slots=True)
class Artifact:
    """A declared output of the run: a file or a tree in the workspace."""

    id: str
    path: str
    kind: str = "file"
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EvaluationInput:
    """One row of ``evaluation.inputs``."""

    artifact: str | None = None
    package_path: str | None = None
    target: str | None = None


@dataclass(frozen=True, slots=True)
class Collect:
    """One row of ``evaluation.collect``: a command run, or a path fetched, before the evaluator starts."""

    path: str | None = None
    service: str | None = None
    command: str | None = None
    timeout_sec: float = 60.0
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ScoringBox:
    """One named scoring box of ``evaluation.environments``."""

    dockerfile: str | None = None
    docker_image: str | None = None
    context: str | None = None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How the verdict is found."""

    entrypoint: str = "evaluator:evaluate"
    inputs: tuple[EvaluationInput, ...] = ()
    docker_image: str | None = None
    environments: Mapping[str, ScoringBox] = field(default_factory=dict)
    collect: tuple[Collect, ...] = ()


@dataclass(frozen=True, slots=True)
class Placed:
    """A file or a directory of the host that goes into the box, below HOME or the workspace.

    `shown` is its path as it was written. With `expand` each ``${NAME}`` in a text is replaced.
    """

    source: Path
    dest: str
    root: Literal["home", "workspace"] = "home"
    expand: bool = False
    shown: str = ""


@dataclass(frozen=True, slots=True)
class Equipment:
    """What a role's agent gets besides prompts. `instructions` are joined into one file."""

    files: tuple[Placed, ...] = ()
    skills: tuple[Placed, ...] = ()
    instructions: tuple[Placed, ...] = ()
    mcp_servers: tuple[McpServer, ...] = ()
    #: Directories of skills in the image, and the directory below HOME that each is copied into.
    image_skills: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Binding:
    """Who plays one role. `base_url` is a URL or ``${NAME}``; `api_key` names an environment variable."""

    role: str
    executor: str
    model: ModelSpec = field(default_factory=ModelSpec)
    base_url: str | None = None
    api_key: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    label: str | None = None
    agent: str | None = None
    agent_ref: str | None = None
    overlays: tuple[str, ...] = ()
    #: The package directory that `overlays` are relative to.
    overlay_root: Path | None = None
    extensions: tuple[Mapping[str, Any], ...] = ()
    equipment: Equipment = field(default_factory=Equipment)
    #: env: a key of the environment. keyless: a login file, into boxes on this machine; keyless-remote:
    #: into any box.
    auth: Literal["env", "keyless", "keyless-remote"] = "env"
    #: The login files, below HOME.
    logins: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BoxBinding:
    """Which kind of box, with which options."""

    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Resolution:
    """Where one locked value came from.

    `source` is cli, env, ini, recorded (with --regrade), profiles.yaml, task.yaml,
    ``agent package NAME`` or default.
    """

    pointer: str
    source: str
    value: Any = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class LockedTask:
    """One task with one complete binding.

    `document` is what lock.json holds; `digest` is over ``document["locked"]``.
    """

    dataset_root: Path
    dataset_id: str
    dataset_version: str
    task_id: str
    task_root: Path
    description: str
    tags: tuple[str, ...]
    parameters: Mapping[str, Any]
    requires: frozenset[str]
    limits: Limits
    artifacts: tuple[Artifact, ...]
    evaluation: Evaluation
    roles: tuple[str, ...]
    bindings: Mapping[str, Binding]
    box: BoxBinding
    evaluate_host: Mapping[str, Any]
    eval_digest: str
    digest: str
    resolution: tuple[Resolution, ...]
    document: Mapping[str, Any]
    #: What the agents of the run phase may spend; reaching it is a limit.
    budget: Budget = field(default_factory=Budget)
    #: Where `pytest_ageval.config.resolve_secret` looks after the environment.
    env_files: tuple[Path, ...] = ()
    #: What a task in Harbor's format asks for beyond that.
    harbor: HarborTask | None = None

    def directory(self, name: str) -> Path | None:
        """A directory of the task (``data``, ``evaluation``, ...), if it is there."""
        found = self.task_root / name
        return found if found.is_dir() else None
