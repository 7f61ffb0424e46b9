"""Reads a Harbor task into the document that every task becomes."""

from __future__ import annotations

import math
import re
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_ageval.config.check import convert
from pytest_ageval.config.dataset import Signature, signature_of
from pytest_ageval.config.formats import McpServerRow
from pytest_ageval.config.harbor import compose, network, refuse
from pytest_ageval.config.harbor.document import (
    HarborArtifact,
    HarborCollect,
    HarborHealthcheck,
    HarborStep,
    HarborTask,
    HarborVerifier,
)
from pytest_ageval.config.harbor.formats import (
    AgentTable,
    ArtifactTable,
    EnvironmentTable,
    HarborFile,
    Healthcheck,
    McpServer,
    StepTable,
    VerifierTable,
)
from pytest_ageval.config.harbor.toml import TomlSource, load_toml
from pytest_ageval.config.locked import Limits
from pytest_ageval.config.tasks import TaskDocument, check_directory_name
from pytest_ageval.config.yamlio import read_text
from pytest_ageval.errors import ConfigError

TASK_TOML = "task.toml"
INSTRUCTION = "instruction.md"
FORMAT = "harbor.task/1"
#: The one role of a Harbor task.
ROLE = "agent"
#: What only a box of containers has: the image's own paths and users.
REQUIRES = frozenset({"exec", "upload", "download", "uid_gid", "path_views"})

_CANARY = re.compile(r"^\s*(?:<!--.*canary.*-->|#.*canary.*)\s*$", re.IGNORECASE)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT])i?B?", re.IGNORECASE)
_FACTORS = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024 * 1024}

_tasks: dict[tuple[Path, bool], tuple[Signature, TaskDocument]] = {}


def load_harbor_task(path: Path, *, strict: bool = True) -> TaskDocument:
    """The task at `path` (its ``task.toml`` or its directory). Parsed once while the file does not change.

    Not `strict`: unknown keys become notes. Raises ConfigError with file, pointer and line.
    """
    if path.name != TASK_TOML:
        path = path / TASK_TOML
    signature = signature_of(path)
    if signature is None:
        raise ConfigError("invalid_package", f"there is no {TASK_TOML}", file=TomlSource(path.parent).shown)
    cached = _tasks.get((path, strict))
    if cached is None or cached[0] != signature:
        cached = _tasks[path, strict] = (signature, _read(path, strict))
    return cached[1]


def _read(path: Path, strict: bool) -> TaskDocument:
    source = TomlSource(path)
    data = load_toml(path)
    file, notes = _convert(data, source, strict)
    root = path.parent
    check_directory_name(root, source)
    file = _migrated(file, source)
    refuse.check(file, root, source)
    steps = _steps(file, root, source)
    environment = file.environment
    main = compose.main_service(root / "environment")
    harbor = HarborTask(
        package=file.task.name if file.task else None,
        steps=steps,
        strategy=file.multi_step_reward_strategy or "mean",
        multi_step=bool(file.steps),
        image=_image(environment, main, root),
        dockerfile=main.dockerfile,
        platform=main.platform,
        workdir=environment.workdir or main.workdir,
        user=main.user,
        env={**main.environment, **environment.env},
        compose_variables=compose.variables(root / "environment"),
        network=network.of(environment) or network.PUBLIC,
        healthcheck=_healthcheck(environment.healthcheck),
        solution_env=file.solution.env,
        skills_dir=environment.skills_dir,
        metadata=file.metadata,
    )
    return TaskDocument(
        format=FORMAT,
        task_id=unicodedata.normalize("NFC", root.absolute().name),
        path=path,
        root=root,
        description=file.task.description if file.task else "",
        tags=_tags(file),
        parameters=resources(environment),
        roles=(ROLE,),
        requires=_requires(file, root),
        limits=_limits(file, steps),
        limits_set=frozenset({"wall_time_seconds", "evaluate_seconds", "environment_seconds"}),
        notes=tuple(notes),
        mcp_servers=tuple(map(_server, environment.mcp_servers or ())),
        harbor=harbor,
    )


def _convert(data: dict[str, Any], source: TomlSource, strict: bool) -> tuple[HarborFile, list[str]]:
    """The document; each unknown key an error, or left out with a note."""
    notes: list[str] = []
    while True:
        try:
            return convert(data, HarborFile, source), notes
        except ConfigError as error:
            if strict or not error.message.startswith("unknown key") or error.pointer is None:
                raise
            notes.append(f"{error.location}: {error.message}")
            _drop(data, error.pointer)


def _drop(data: Any, pointer: str) -> None:
    *above, last = [token.replace("~1", "/").replace("~0", "~") for token in pointer.split("/")[1:]]
    for token in above:
        data = data[int(token)] if isinstance(data, list) else data[token]
    del data[last]


# -- older spellings -----------------------------------------------------------------------------


def _migrated(file: HarborFile, source: TomlSource) -> HarborFile:
    _migrate_environment(file.environment, source, "/environment")
    if file.verifier.environment is not None:
        _migrate_environment(file.verifier.environment, source, "/verifier/environment")
    for index, step in enumerate(file.steps):
        if step.verifier.environment is not None:
            at = f"/steps/{index}/verifier/environment"
            _migrate_environment(step.verifier.environment, source, at)
    return file


def _migrate_environment(table: EnvironmentTable, source: TomlSource, at: str) -> None:
    for old, new in (("memory", "memory_mb"), ("storage", "storage_mb")):
        text = getattr(table, old)
        if text is None:
            continue
        found = _SIZE.fullmatch(text.strip())
        if found is None:
            raise source.error("invalid_schema", f"{old} must be like 2G; found {text!r}", f"{at}/{old}")
        size = max(1, math.ceil(float(found[1]) * _FACTORS[found[2].upper()]))
        if getattr(table, new) not in (None, size):
            raise source.error("invalid_schema", f"{old} and {new} differ", f"{at}/{old}", f"keep {new}")
        setattr(table, new, size)
    if table.allow_internet is not None and table.network_mode is None and table.allowed_hosts is None:
        table.network_mode = "public" if table.allow_internet else "no-network"
    if table.allowed_hosts is not None and table.network_mode is None:
        table.network_mode = "allowlist"


def _image(table: EnvironmentTable, main: compose.Main, root: Path) -> str | None:
    """A prebuilt image: the task's, else that of the compose file where nothing is built."""
    if table.docker_image is not None:
        return table.docker_image
    return None if (root / "environment" / main.dockerfile).is_file() else main.image


# -- parts ---------------------------------------------------------------------------------------


def resources(table: EnvironmentTable) -> dict[str, Any]:
    """What the environment may use, by the names that boxes know."""
    found = {name: getattr(table, name) for name in ("cpus", "memory_mb", "storage_mb", "gpus", "gpu_types")}
    return {name: value for name, value in found.items() if value not in (None, 0, [])}


def _tags(file: HarborFile) -> tuple[str, ...]:
    """Keywords, and the tags, the category and the difficulty that authors write into ``metadata``."""
    words = list((file.task.keywords if file.task else None) or ())
    listed = file.metadata.get("tags")
    words += [tag for tag in listed if isinstance(tag, str)] if isinstance(listed, list) else []
    for key in ("category", "difficulty"):
        value = file.metadata.get(key)
        words += [value] if isinstance(value, str) else []
    return tuple(dict.fromkeys(word for word in words if word.strip()))


def _requires(file: HarborFile, root: Path) -> frozenset[str]:
    return REQUIRES | ({"compose"} if compose.find(root / "environment") is not None else set())


def _limits(file: HarborFile, steps: tuple[HarborStep, ...]) -> Limits:
    """No limit where Harbor has none; the limits of several steps are added."""

    def seconds(values: list[float | None]) -> int:
        return 0 if None in values else math.ceil(sum(v for v in values if v is not None))

    return Limits(
        wall_time_seconds=seconds([step.agent_timeout_sec for step in steps]),
        environment_seconds=math.ceil(file.environment.build_timeout_sec) + 600,
        evaluate_seconds=seconds([step.verifier.timeout_sec for step in steps]),
        agent_invocations=len(steps),
    )


def _steps(file: HarborFile, root: Path, source: TomlSource) -> tuple[HarborStep, ...]:
    artifacts = tuple(_artifact(row) for row in file.artifacts)
    if not file.steps:
        text = _instruction(root / INSTRUCTION, source)
        step = _step("main", text, file.agent, _verifier(file.verifier, root, "tests", file), file)
        return (replace(step, artifacts=artifacts),)
    found = []
    for index, row in enumerate(file.steps):
        directory = f"steps/{row.name}"
        if not (root / directory).is_dir():
            raise source.error(
                "missing_reference", f"there is no directory {directory}", f"/steps/{index}/name"
            )
        text = _instruction(root / directory / INSTRUCTION, source)
        tests = f"{directory}/tests" if (root / directory / "tests").is_dir() else "tests"
        verifier = _verifier(_merged(row.verifier, file.verifier), root, tests, file)
        step = _step(row.name, text, _merged_agent(row, file), verifier, file)
        found.append(
            replace(
                step,
                min_reward=row.min_reward,
                healthcheck=_healthcheck(row.healthcheck),
                artifacts=(*artifacts, *(_artifact(a) for a in row.artifacts)),
                directory=directory,
            )
        )
    return tuple(found)


def _step(
    name: str, instruction: str, agent: AgentTable, verifier: HarborVerifier, file: HarborFile
) -> HarborStep:
    return HarborStep(
        name=name,
        instruction=instruction,
        agent_timeout_sec=agent.timeout_sec,
        agent_user=_user(agent.user),
        network=network.of(agent),
        verifier=verifier,
    )


def _merged_agent(row: StepTable, file: HarborFile) -> AgentTable:
    own, base = row.agent, file.agent
    net = own if network.of(own) is not None else base
    return AgentTable(
        network_mode=net.network_mode,
        allowed_hosts=net.allowed_hosts,
        timeout_sec=own.timeout_sec if own.timeout_sec is not None else base.timeout_sec,
        user=own.user if own.user is not None else base.user,
    )


def _merged(own: VerifierTable, base: VerifierTable) -> VerifierTable:
    """A step's verifier, with what it leaves out taken from the task's."""
    default = VerifierTable()
    net = own if network.of(own) is not None else base
    return VerifierTable(
        network_mode=net.network_mode,
        allowed_hosts=net.allowed_hosts,
        timeout_sec=own.timeout_sec if own.timeout_sec != default.timeout_sec else base.timeout_sec,
        env={**base.env, **own.env},
        user=own.user if own.user is not None else base.user,
        environment_mode=own.environment_mode or base.environment_mode,
        environment=own.environment if own.environment is not None else base.environment,
        collect=own.collect if own.collect is not None else base.collect,
    )


def _verifier(table: VerifierTable, root: Path, tests: str, file: HarborFile) -> HarborVerifier:
    own = table.environment
    separate = table.environment_mode == "separate" or own is not None
    recipe = tests if (root / tests / "Dockerfile").is_file() else None
    image = own.docker_image if own is not None else None
    # A box of its own that says nothing of itself is a second one of the environment.
    environment = own if own is not None else file.environment if separate else None
    base = network.of(environment) if environment is not None else None
    if own is not None:
        base = base or network.PUBLIC
    found = HarborVerifier(
        tests=tests,
        timeout_sec=table.timeout_sec,
        env={**(environment.env if environment is not None else {}), **table.env},
        user=_user(table.user),
        separate=separate,
        network=network.of(table) or base,
        collect=tuple(
            HarborCollect(row.command, row.service, row.timeout_sec, _user(row.user))
            for row in table.collect or ()
        ),
    )
    if environment is None:
        return found
    return replace(
        found,
        image=image,
        recipe=recipe if image is None else None,
        bundled=image is not None or recipe is not None,
        workdir=environment.workdir,
        healthcheck=_healthcheck(environment.healthcheck),
        resources=resources(environment),
    )


def _healthcheck(table: Healthcheck | None) -> HarborHealthcheck | None:
    if table is None:
        return None
    return HarborHealthcheck(
        table.command,
        table.interval_sec,
        table.timeout_sec,
        table.start_period_sec,
        table.start_interval_sec,
        table.retries,
    )


def _server(row: McpServer) -> McpServerRow:
    """The row as profiles have it, which the lock checks against what the agent takes."""
    stdio = row.transport == "stdio"
    return McpServerRow(
        name=row.name,
        transport=row.transport,
        command=row.command,
        args=row.args if stdio else None,
        url=row.url,
        headers=None if stdio else row.headers,
    )


def _artifact(row: str | ArtifactTable) -> HarborArtifact:
    if isinstance(row, str):
        return HarborArtifact(row)
    return HarborArtifact(row.source, row.destination, tuple(row.exclude), row.service)


def _user(user: str | int | None) -> str | None:
    return None if user is None else str(user)


def _instruction(path: Path, source: TomlSource) -> str:
    """The text as it is, without the canary lines at its head."""
    if not path.is_file():
        raise ConfigError(
            "missing_reference",
            f"{path.name} is missing: it is what the agent is told",
            file=TomlSource(path.parent).shown,
        )
    lines = read_text(path).splitlines(keepends=True)
    start = 0
    while start < len(lines) and _CANARY.match(lines[start]):
        start += 1
    if start:
        while start < len(lines) and not lines[start].strip():
            start += 1
    return "".join(lines[start:])
