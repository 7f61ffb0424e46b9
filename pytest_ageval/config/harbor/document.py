"""What a Harbor task asks for, after its file was checked: plain values, nothing of TOML left."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pytest_ageval.config.harbor.network import PUBLIC, Network

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Paths in the box.
LOGS = "/logs"
AGENT_LOGS = "/logs/agent"
VERIFIER_LOGS = "/logs/verifier"
ARTIFACTS = "/logs/artifacts"
TESTS = "/tests"
SOLUTION = "/solution"

#: The service that is the task's own container, in which a path may be any absolute one.
MAIN = "main"


@dataclass(frozen=True, slots=True)
class HarborArtifact:
    """A path of the box that is kept. `destination` is relative to the attempt's artifacts."""

    source: str
    destination: str | None = None
    exclude: tuple[str, ...] = ()
    service: str | None = None


@dataclass(frozen=True, slots=True)
class HarborCollect:
    """A command that runs in a service before the artifacts are taken."""

    command: str
    service: str = MAIN
    timeout_sec: float = 60.0
    user: str | None = None


@dataclass(frozen=True, slots=True)
class HarborHealthcheck:
    """As Docker's: `retries` failures in a row, after `start_period_sec`, are one. Seconds."""

    command: str
    interval_sec: float = 5.0
    timeout_sec: float = 30.0
    start_period_sec: float = 0.0
    start_interval_sec: float = 5.0
    retries: int = 3


@dataclass(frozen=True, slots=True)
class HarborVerifier:
    """Who grades, and where.

    `tests` is the directory of the task with ``test.sh``, relative to it. `separate`: in a box of its own,
    made of `image` or of the recipe in `recipe` (a directory); when both are None, of the agent's image.
    `bundled`: that image holds the tests itself. `env` may hold ``${NAME}``.
    """

    tests: str = "tests"
    timeout_sec: float = 600.0
    env: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    separate: bool = False
    image: str | None = None
    recipe: str | None = None
    bundled: bool = False
    workdir: str | None = None
    healthcheck: HarborHealthcheck | None = None
    resources: Mapping[str, Any] = field(default_factory=dict)
    #: Of its own box; in the agent's box while it works. None: that of the environment.
    network: Network | None = None
    collect: tuple[HarborCollect, ...] = ()


@dataclass(frozen=True, slots=True)
class HarborStep:
    """One instruction, its agent phase and its verifier. `directory` is relative to the task."""

    name: str
    instruction: str
    agent_timeout_sec: float | None = None
    agent_user: str | None = None
    #: While the agent works; None: that of the environment.
    network: Network | None = None
    verifier: HarborVerifier = field(default_factory=HarborVerifier)
    min_reward: float | Mapping[str, float] | None = None
    healthcheck: HarborHealthcheck | None = None
    artifacts: tuple[HarborArtifact, ...] = ()
    directory: str | None = None


@dataclass(frozen=True, slots=True)
class HarborTask:
    """The whole task. A single-step task has one step without a directory.

    `strategy` is how the rewards of several steps become one. `env` of the environment may hold
    ``${NAME}``; so may `solution_env`.
    """

    package: str | None
    steps: tuple[HarborStep, ...]
    strategy: Literal["mean", "final"] = "mean"
    multi_step: bool = False
    image: str | None = None
    #: The recipe in ``environment/``, where there is no `image`.
    dockerfile: str = "Dockerfile"
    platform: str | None = None
    workdir: str | None = None
    #: Of the box, where a step names none.
    user: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    network: Network = PUBLIC
    healthcheck: HarborHealthcheck | None = None
    solution_env: Mapping[str, str] = field(default_factory=dict)
    #: Variables of the host that the compose file names, and whether it needs them.
    compose_variables: Mapping[str, bool] = field(default_factory=dict)
    skills_dir: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    #: The reward that decides, and from where on it passes; of the command line.
    reward_key: str | None = None
    pass_threshold: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """For the lock: all of it but what is for people."""
        found = asdict(self)
        del found["metadata"]
        return found
