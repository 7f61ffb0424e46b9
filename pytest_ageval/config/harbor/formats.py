"""``task.toml`` as types: the fields of Harbor 0.25 (schema 1.4 and older).

A type says what a field may hold. What we refuse although Harbor reads it is in `refuse`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

Text = Annotated[str, Meta(min_length=1)]
Seconds = Annotated[float, Meta(gt=0, le=1_000_000_000)]
Variables = dict[Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], str]
NetworkMode = Literal["public", "no-network", "allowlist"]
User = str | int
#: A reward, or a map of rewards, that a step must reach.
Threshold = float | dict[str, float]


class Author(Struct, forbid_unknown_fields=True):
    """Who wrote the task."""

    name: str
    email: str | None = None


class TaskTable(Struct, forbid_unknown_fields=True):
    """``[task]``: the identity of the package."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$")]
    version: Text | None = None
    description: str = ""
    authors: list[Author] | None = None
    keywords: list[str] | None = None


class AgentTable(Struct, forbid_unknown_fields=True):
    """``[agent]``."""

    timeout_sec: Seconds | None = None
    user: User | None = None
    network_mode: NetworkMode | None = None
    allowed_hosts: list[Text] | None = None


class McpServer(Struct, forbid_unknown_fields=True):
    """``[[environment.mcp_servers]]``."""

    name: Text
    transport: Literal["stdio", "sse", "streamable-http", "http"] = "sse"
    url: Text | None = None
    command: Text | None = None
    args: list[str] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)


class Healthcheck(Struct, forbid_unknown_fields=True):
    """``[environment.healthcheck]``: a command that must succeed before the agent starts. Seconds."""

    command: Text
    interval_sec: Seconds = 5.0
    timeout_sec: Seconds = 30.0
    start_period_sec: Annotated[float, Meta(ge=0)] = 0.0
    start_interval_sec: Seconds = 5.0
    retries: Annotated[int, Meta(ge=1)] = 3


class EnvironmentTable(Struct, forbid_unknown_fields=True):
    """``[environment]`` and ``[verifier.environment]``."""

    build_timeout_sec: Seconds = 600.0
    docker_image: Text | None = None
    os: str = "linux"
    cpus: Annotated[float, Meta(gt=0)] | None = None
    memory_mb: Annotated[int, Meta(gt=0)] | None = None
    storage_mb: Annotated[int, Meta(gt=0)] | None = None
    gpus: Annotated[int, Meta(ge=0)] | None = None
    gpu_types: list[str] | None = None
    tpu: dict[str, Any] | None = None
    mcp_servers: list[McpServer] | None = None
    env: Variables = field(default_factory=dict)
    skills_dir: Text | None = None
    healthcheck: Healthcheck | None = None
    workdir: Text | None = None
    network_mode: NetworkMode | None = None
    allowed_hosts: list[Text] | None = None
    # Older spellings, migrated by `task`.
    memory: Text | None = None
    storage: Text | None = None
    allow_internet: bool | None = None


class CollectTable(Struct, forbid_unknown_fields=True):
    """``[[verifier.collect]]``: a command that runs before artifacts are taken."""

    command: Text
    service: Text = "main"
    timeout_sec: Seconds = 60.0
    user: User | None = None


class VerifierTable(Struct, forbid_unknown_fields=True):
    """``[verifier]``."""

    timeout_sec: Seconds = 600.0
    env: Variables = field(default_factory=dict)
    user: User | None = None
    environment_mode: Literal["shared", "separate"] | None = None
    environment: EnvironmentTable | None = None
    collect: list[CollectTable] | None = None
    network_mode: NetworkMode | None = None
    allowed_hosts: list[Text] | None = None


class SolutionTable(Struct, forbid_unknown_fields=True):
    """``[solution]``."""

    env: Variables = field(default_factory=dict)


class ArtifactTable(Struct, forbid_unknown_fields=True):
    """A path of the box that is kept."""

    source: Text
    destination: Text | None = None
    exclude: list[Text] = field(default_factory=list)
    service: Text | None = None


class StepTable(Struct, forbid_unknown_fields=True):
    """``[[steps]]``."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][\w.-]*$", max_length=128)]
    agent: AgentTable = field(default_factory=AgentTable)
    verifier: VerifierTable = field(default_factory=VerifierTable)
    min_reward: Threshold | None = None
    healthcheck: Healthcheck | None = None
    artifacts: list[str | ArtifactTable] = field(default_factory=list)


class HarborFile(Struct, forbid_unknown_fields=True):
    """``task.toml``."""

    schema_version: Text | None = None
    version: Text | None = None
    source: str | None = None
    multi_step_reward_strategy: Literal["mean", "final"] | None = None
    artifacts: list[str | ArtifactTable] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    task: TaskTable | None = None
    agent: AgentTable = field(default_factory=AgentTable)
    verifier: VerifierTable = field(default_factory=VerifierTable)
    environment: EnvironmentTable = field(default_factory=EnvironmentTable)
    solution: SolutionTable = field(default_factory=SolutionTable)
    steps: list[StepTable] = field(default_factory=list)
