"""One task: ``task.yaml`` and the files that its directory ships."""

from __future__ import annotations

import os
import re
import stat
import unicodedata
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_ageval.box import CAPABILITIES
from pytest_ageval.config.check import Source, check_format, convert
from pytest_ageval.config.dataset import Signature, check_provenance, package_path, signature_of
from pytest_ageval.config.formats import (
    TASK_FORMAT,
    ArtifactRow,
    CollectRow,
    EvaluationTable,
    LimitsTable,
    McpServerRow,
    ProfileRow,
    TaskFile,
    plain,
)
from pytest_ageval.config.locked import (
    Artifact,
    Collect,
    Evaluation,
    EvaluationInput,
    Limits,
    ScoringBox,
)
from pytest_ageval.config.where import did_you_mean, join_pointer, listed, printable
from pytest_ageval.config.yamlio import differently_read, load_yaml
from pytest_ageval.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_ageval.config.harbor.document import HarborTask

T = TypeVar("T")

TASK_FILE = "task.yaml"
RUN_FILE = "run.py"
EVALUATOR_FILE = "evaluator.py"

#: Keys of older formats, and what took their place.
_RETIRED = {
    "harness": "the logic of a task is written in run.py",
    "provider": "the box is chosen by profiles.yaml (environment) or --box",
    "assurance": "a task states what it needs in requires.environment",
    "environment": "the box is chosen by profiles.yaml or --box; recipes live in environment/",
}
_BINDING_KEYS = frozenset(ProfileRow.__struct_fields__)
#: What the directory may ship, by the name under which the lock records it.
_SHIPPED = {
    "environment_dockerfile": "environment/Dockerfile",
    "environment_evaluate_dockerfile": "environment/evaluate.Dockerfile",
    "environment_compose": "environment/compose.yaml",
    "environment_setup": "environment/setup.sh",
    "seed_dir": "data",
    "evaluation_dir": "evaluation",
    "solution_dir": "solution",
}
_BIDI = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
#: An id that nothing is wrong with: almost all are.
_PLAIN_ID = re.compile(r"[A-Za-z0-9._-]+")
_ID_RULE = "an id is the directory's name: no '/', '::', '[', ']', control or direction characters"


@dataclass(frozen=True, slots=True)
class TaskDocument:
    """What a task says about itself. `path` is its file, `root` its directory.

    `limits` has the defaults filled in; `limits_set` names those that the file sets. `references`
    are the files that the directory ships, by role.
    """

    format: str
    task_id: str
    path: Path
    root: Path
    description: str = ""
    tags: tuple[str, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    roles: tuple[str, ...] = ()
    requires: frozenset[str] = frozenset()
    limits: Limits = field(default_factory=Limits)
    limits_set: frozenset[str] = frozenset()
    artifacts: tuple[Artifact, ...] = ()
    evaluation: Evaluation = field(default_factory=Evaluation)
    provenance: Mapping[str, Any] | None = None
    mcp_servers: tuple[McpServerRow, ...] = ()
    #: Directories and a file below `root`.
    skills: tuple[str, ...] = ()
    instructions: str | None = None
    #: What a reader of the file should know; nothing is wrong.
    notes: tuple[str, ...] = ()
    #: What a task in Harbor's format asks for beyond that.
    harbor: HarborTask | None = None

    @property
    def source(self) -> Source:
        """For error messages."""
        return Source(self.path)

    def references(self) -> dict[str, str]:
        """The files and directories that are there, by the name under which the lock records them."""
        if self.harbor is not None:
            return {}
        module = self.evaluation.entrypoint.partition(":")[0].replace(".", "/")
        found = {
            "run_entrypoint": "run:run",
            "run_module_file": RUN_FILE,
            "evaluation_entrypoint": self.evaluation.entrypoint,
            "evaluation_module_file": f"{module}.py",
        }
        shipped = {name: path for name, path in _SHIPPED.items() if (self.root / path).exists()}
        return {**found, **shipped}


_tasks: dict[Path, tuple[Signature, TaskDocument]] = {}
_shared: dict[Any, Any] = {}


def _same(value: T) -> T:
    """The first object that is equal to `value`: the tasks of a data set say mostly the same."""
    found: T = _shared.setdefault(value, value)
    return found


def load_task(path: Path) -> TaskDocument:
    """The task at `path` (its ``task.yaml`` or its directory). Parsed once while the file does not change.

    Raises ConfigError with file, pointer and line.
    """
    if path.name != TASK_FILE:
        path = path / TASK_FILE
    signature = signature_of(path)
    if signature is None:
        raise ConfigError("invalid_package", f"there is no {TASK_FILE}", file=Source(path.parent).shown)
    cached = _tasks.get(path)
    if cached is None or cached[0] != signature:
        cached = _tasks[path] = (signature, _read(path))
    task = cached[1]
    _check_scripts(task)
    return task


def readings() -> dict[Path, tuple[Signature, TaskDocument]]:
    """What was read so far, by the file's path."""
    return dict(_tasks)


def adopt(found: Mapping[Path, tuple[Signature, TaskDocument]]) -> None:
    """Take over what another process has read; a file that changes is read again as ever."""
    _tasks.update(found)


def _read(path: Path) -> TaskDocument:
    source = Source(path)
    data = load_yaml(path)
    check_format(data, TASK_FORMAT, source)
    _refuse_retired(data, source)
    file = convert(_whole_limits(data, source), TaskFile, source)
    check_task_id(file.task_id, path.parent, source)
    artifacts = _same(_artifacts(file, source))
    task = TaskDocument(
        format=TASK_FORMAT,
        task_id=unicodedata.normalize("NFC", file.task_id),
        path=path,
        root=path.parent,
        description=file.description or "",
        tags=_same(tuple(file.tags or ())),
        parameters=file.parameters or {},
        roles=_same(_roles(file, source)),
        requires=_same(_requires(file, source)),
        limits=_same(_limits(file.limits)),
        limits_set=_same(frozenset(plain(file.limits) if file.limits else ())),
        artifacts=artifacts,
        evaluation=_evaluation(file.evaluation, artifacts, source),
        provenance=check_provenance(file.provenance, source),
        mcp_servers=tuple(file.mcp_servers or ()),
        skills=tuple(file.skills or ()),
        instructions=file.instructions,
        notes=tuple(
            f"{source.shown}:{line}: {text} is the text {text!r} here, YAML 1.1 reads another type; "
            "write it in quotes, or as true, false or a plain number"
            for line, text in differently_read(path, "/parameters", file.parameters)
        ),
    )
    check_active_profile(task.parameters, task.roles, source)
    return task


def _refuse_retired(data: Mapping[str, Any], source: Source) -> None:
    for key, instead in _RETIRED.items():
        if key in data:
            raise source.error(
                "invalid_schema",
                f"the key {key!r} is not part of {TASK_FORMAT}",
                f"/{key}",
                instead,
            )
    slots = data.get("agent_profiles")
    for index, slot in enumerate(slots if isinstance(slots, list) else ()):
        bound = sorted(_BINDING_KEYS & slot.keys()) if isinstance(slot, dict) else ()
        if bound:
            raise source.error(
                "invalid_schema",
                f"a task declares roles only; {listed(bound)} belongs in profiles.yaml",
                join_pointer("agent_profiles", index, bound[0]),
            )


def _whole_limits(data: dict[str, Any], source: Source) -> dict[str, Any]:
    """`data` with limits such as 360.0 as integers; a limit without a figure is refused, not defaulted."""
    limits = data.get("limits")
    if not isinstance(limits, dict):
        return data
    for name, value in limits.items():
        if value is None:
            raise source.error(
                "invalid_schema",
                f"limits.{name} must be an integer; found nothing",
                join_pointer("limits", name),
                "leave the key out for the default",
            )
    whole = {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in limits.items()
    }
    return {**data, "limits": whole}


def check_task_id(task_id: str, directory: Path, source: Source) -> None:
    """ConfigError unless `task_id` can be an id and is the name of `directory` (after NFC)."""
    name = directory.name or directory.absolute().name  # "." has none
    if _PLAIN_ID.fullmatch(task_id) and task_id == name and task_id not in (".", ".."):
        return
    bad = next(
        (c for c in task_id if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")), None
    ) or _BIDI.search(task_id)
    if bad is not None:
        raise source.error(
            "invalid_schema", f"task_id {task_id!a} has a character that is refused", "/task_id", _ID_RULE
        )  # fmt: skip
    wrong = [part for part in ("/", "::", "[", "]") if part in task_id]
    if wrong or task_id in ("", ".", "..") or task_id != task_id.strip():
        what = f"contains {wrong[0]!r}" if wrong else "is empty, a dot name, or has spaces around it"
        raise source.error("invalid_schema", f"task_id {task_id!r} {what}", "/task_id", _ID_RULE)
    name = unicodedata.normalize("NFC", directory.absolute().name)
    if unicodedata.normalize("NFC", task_id) != name:
        raise source.error(
            "unknown_task",
            f"task_id is {task_id!r}, but the directory is {printable(directory.absolute().name)!r}",
            "/task_id",
            "rename one of them",
        )
    if not name.isascii():
        _refuse_twins(name, directory, source)


def check_directory_name(directory: Path, source: Source) -> None:
    """ConfigError unless the name of `directory` can be an id, where the file itself names none."""
    check_task_id(unicodedata.normalize("NFC", directory.absolute().name), directory, source)


def _refuse_twins(name: str, directory: Path, source: Source) -> None:
    """Two directories whose names differ only in Unicode normalisation are one id twice."""
    twins = sorted(
        entry.name
        for entry in directory.absolute().parent.iterdir()
        if unicodedata.normalize("NFC", entry.name) == name and entry.is_dir()
    )
    if len(twins) > 1:
        forms = " and ".join(repr(os.fsencode(twin)) for twin in twins)
        raise source.error("duplicate_task", f"two directories have the id {name!r}: {forms}", "/task_id")


def _roles(file: TaskFile, source: Source) -> tuple[str, ...]:
    roles: list[str] = []
    for index, slot in enumerate(file.agent_profiles or ()):
        if slot.id in roles:
            raise source.error(
                "invalid_schema",
                f"the role {slot.id!r} is declared twice",
                join_pointer("agent_profiles", index, "id"),
            )
        roles.append(slot.id)
    return tuple(roles)


def check_active_profile(parameters: Mapping[str, Any], roles: tuple[str, ...], source: Source) -> None:
    """ConfigError ``unknown_profile`` unless ``parameters.active_profile`` names a declared role."""
    active = parameters.get("active_profile")
    if active is not None and active not in roles:
        raise source.error(
            "unknown_profile",
            f"active_profile is {active!r}, declared roles are: {listed(roles)}",
            "/parameters/active_profile",
            did_you_mean(str(active), roles),
        )


def _requires(file: TaskFile, source: Source) -> frozenset[str]:
    names = (file.requires.environment if file.requires else None) or []
    for index, name in enumerate(names):
        if name not in CAPABILITIES:
            raise source.error(
                "unsupported_capability",
                f"unknown capability {name!r}; known: {listed(CAPABILITIES)}",
                join_pointer("requires", "environment", index),
                did_you_mean(name, CAPABILITIES),
            )
    return frozenset(names)


def _limits(table: LimitsTable | None) -> Limits:
    return Limits(**plain(table)) if table is not None else Limits()


def _artifacts(file: TaskFile, source: Source) -> tuple[Artifact, ...]:
    rows = (file.artifacts.publishable if file.artifacts else None) or []
    seen: dict[str, int] = {}
    found: list[Artifact] = []
    for index, row in enumerate(rows):
        at = join_pointer("artifacts", "publishable", index)
        if row.id in seen:
            raise source.error(
                "invalid_schema",
                f"the artifact id {row.id!r} is declared twice, in rows {seen[row.id]} and {index}",
                f"{at}/id",
            )
        seen[row.id] = index
        found.append(_artifact(row, source, at))
    return tuple(found)


def _artifact(row: ArtifactRow, source: Source, at: str) -> Artifact:
    if "/" in row.id or "\0" in row.id or row.id in (".", ".."):
        raise source.error(
            "invalid_schema",
            f"the artifact id {row.id!r} must be usable as a file name",
            f"{at}/id",
        )
    if row.exclude is not None and row.kind != "tree":
        raise source.error("invalid_schema", "exclude is for kind: tree", f"{at}/exclude")
    path = package_path(row.path, source, f"{at}/path")
    return Artifact(row.id, path, row.kind, tuple(row.exclude or ()))


def _evaluation(table: EvaluationTable | None, artifacts: tuple[Artifact, ...], source: Source) -> Evaluation:
    if table is None:
        return Evaluation()
    ids = [artifact.id for artifact in artifacts]
    inputs: list[EvaluationInput] = []
    for index, row in enumerate(table.inputs or ()):
        at = join_pointer("evaluation", "inputs", index)
        if row.artifact is not None and row.artifact not in ids:
            raise source.error(
                "missing_reference",
                f"the artifact {row.artifact!r} is not declared; declared: {listed(ids)}",
                f"{at}/artifact",
                did_you_mean(row.artifact, ids),
            )
        where = row.package_path
        if where is not None:
            where = package_path(where, source, f"{at}/package_path")
        inputs.append(EvaluationInput(row.artifact, where, row.target))
    return Evaluation(
        entrypoint=table.entrypoint,
        inputs=_same(tuple(inputs)),
        docker_image=table.docker_image,
        environments=_scoring_boxes(table, source),
        collect=tuple(
            _collect(row, source, join_pointer("evaluation", "collect", index))
            for index, row in enumerate(table.collect or ())
        ),
    )


def _collect(row: CollectRow, source: Source, at: str) -> Collect:
    if row.path is None and row.command is None:
        raise source.error("invalid_schema", "a collect row needs path or command", at)
    if row.exclude is not None and row.path is None:
        raise source.error("invalid_schema", "exclude needs path", f"{at}/exclude")
    path = row.path
    if path is not None:
        found = PurePosixPath(path.strip())
        if not found.is_absolute() or ".." in found.parts or "\\" in path:
            raise source.error(
                "invalid_schema",
                f"path must be absolute in the box and without '..'; found {path!r}",
                f"{at}/path",
            )
        path = str(found)
    return Collect(path, row.service, row.command, row.timeout_sec, tuple(row.exclude or ()))


def _scoring_boxes(table: EvaluationTable, source: Source) -> dict[str, ScoringBox]:
    found: dict[str, ScoringBox] = {}
    root = source.path.parent if source.path is not None else Path()
    for name, row in (table.environments or {}).items():
        at = join_pointer("evaluation", "environments", name)
        if row.dockerfile is None and row.docker_image is None:
            raise source.error("invalid_schema", "needs dockerfile or docker_image", at)
        context = row.context and package_path(row.context, source, f"{at}/context")
        dockerfile = row.dockerfile and package_path(row.dockerfile, source, f"{at}/dockerfile")
        if dockerfile is not None:
            if dockerfile.startswith("evaluation/"):
                raise source.error("invalid_schema", "must not lie under evaluation/", f"{at}/dockerfile")
            if not (root / dockerfile).is_file():
                raise source.error("missing_reference", f"{dockerfile} is not there", f"{at}/dockerfile")
            if context and not PurePosixPath(dockerfile).is_relative_to(context):
                raise source.error(
                    "invalid_schema", "the dockerfile must lie inside context", f"{at}/context"
                )
        found[name] = ScoringBox(dockerfile, row.docker_image, context)
    return found


def _check_scripts(task: TaskDocument) -> None:
    """run.py and evaluator.py may come and go while task.yaml stays, so they are looked for each time."""
    module = task.evaluation.entrypoint.partition(":")[0].replace(".", "/")
    root = os.fspath(task.root)
    wanted = {
        RUN_FILE: "it is what the run phase runs",
        EVALUATOR_FILE: "only an evaluator can decide a task",
    }
    wanted.setdefault(f"{module}.py", "evaluation.entrypoint names it")
    for name, why in wanted.items():
        if not _is_file(f"{root}/{name}") and not (
            name != RUN_FILE and _is_file(f"{root}/{module}/__init__.py")
        ):
            raise ConfigError("missing_reference", f"{name} is missing: {why}", file=task.source.shown)


def _is_file(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)  # noqa: PTH116 - of ten thousand tasks the detour is seen
    except (OSError, ValueError):
        return False
