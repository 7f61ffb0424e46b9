"""``--regrade``: items for recorded attempts, and the configuration with which their work is judged again."""

from __future__ import annotations

import dataclasses
import json
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pytest_ageval import options
from pytest_ageval.errors import AgevalError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_ageval.attempt.regrade import Source
    from pytest_ageval.collection import TaskFile, TaskItem
    from pytest_ageval.config import Dataset, JobOptions, LockedTask, TaskDocument, Variant
    from pytest_ageval.config.agents import Kinds
    from pytest_ageval.config.overrides import Override
    from pytest_ageval.job import Job
    from pytest_ageval.suite.sources import Recorded

#: Options that would say what is to be run.
EXCLUDED = ("matrix", "record")


def regrading(job: Job) -> Regrading | None:
    """What the session judges again; None when it runs attempts. Raises ConfigError."""
    names = options.resolve(job.config, "regrade")[0]
    return Regrading(job, tuple(names)) if names else None


class Regrading:
    """The recorded attempts of the data sets of one session."""

    def __init__(self, job: Job, names: tuple[str, ...]) -> None:
        self.job = job
        self.names = names
        self._found: dict[Path, list[Recorded]] = {}
        self._unknown: dict[Path, set[str]] = {}
        self._of: dict[tuple[Path, str, str], Recorded] = {}
        for name in EXCLUDED:
            if options.resolve(job.config, name)[1] == "cli":
                raise ConfigError("invalid_option", f"--regrade and --{name} exclude each other")
        if str(options.resolve(job.config, "attempts")[0]).startswith("auto"):
            raise ConfigError("invalid_option", "--regrade and --attempts auto exclude each other")

    def check(self) -> None:
        """ConfigError ``regrade_not_found`` for a name that no data set of the session knows."""
        for name in self.names:
            if self._unknown and all(name in unknown for unknown in self._unknown.values()):
                places = ", ".join(str(self.job.evidence_root(root)) for root in self._unknown)
                raise ConfigError(
                    "regrade_not_found",
                    f"--regrade {name}: neither a suite run nor an attempt below {places}",
                    hint="name a suite run (its id, the beginning of one, last, a path) or an attempt",
                )

    def recorded(self, root: Path) -> list[Recorded]:
        """The attempts below the evidence of a data set. What is wrong becomes the session's usage error."""
        if root not in self._found:
            from pytest_ageval.job import run_id
            from pytest_ageval.suite.sources import find_recorded

            self._found[root] = []
            try:
                found = find_recorded(self.names, self.job.evidence_root(root), run_id(self.job.config))
                self._found[root], self._unknown[root] = found
            except ConfigError as error:
                self.job.usage_error = error
            except AgevalError as error:
                self.job.usage_error = ConfigError(error.title, error.message)
        return self._found[root]

    def suites(self, roots: Iterable[Path]) -> tuple[str, ...]:
        """The ids of the suite runs whose attempts are judged again."""
        found = {row.suite_run_id for root in roots for row in self.recorded(root) if row.suite_run_id}
        return tuple(sorted(found))

    # -- items -----------------------------------------------------------------------------------

    def variants(self, file: TaskFile) -> list[Variant]:
        """One variant for each recorded attempt at the task that the command line does not leave out."""
        root = cast("Path", file.root)
        found = [
            row
            for row in self.recorded(root)
            # Several data sets may keep their evidence in one place.
            if row.task_id == file.task_id and row.dataset_id in (None, file.dataset_id) and self._wanted(row)
        ]
        self._of.update({(root, row.task_id, row.item): row for row in found})
        return [_variant(row) for row in found]

    @cached_property
    def _wants(self) -> dict[str, list[str]]:
        """Agents, models, efforts and boxes that the command line names."""
        found = {}
        for name in ("agent", "model", "effort", "box"):
            value, source = options.resolve(self.job.config, name)
            if source == "cli" and (texts := [text for text in value if name != "agent" or "=" not in text]):
                found[name] = texts
        return found

    def _wanted(self, row: Recorded) -> bool:
        from pytest_ageval.config.agents import agent_name

        for name, texts in self._wants.items():
            named = {*texts, *(map(agent_name, texts) if name == "agent" else ())}
            if getattr(row, name) not in named:
                return False
        attempts, source = options.resolve(self.job.config, "attempts")
        return source != "cli" or row.attempt <= int(attempts)

    def of(self, item: TaskItem) -> Recorded:
        """The recorded attempt that an item judges again."""
        return self._of[cast("Path", item.file.root), item.file.task_id, item.variant.id]

    def source(self, item: TaskItem) -> Source:
        """What the engine has to know of it."""
        from pytest_ageval.attempt.regrade import Source
        from pytest_ageval.suite.sources import error_of_run

        row = self.of(item)
        result = row.result()
        return Source(row.attempt_id, row.directory, row.agent, row.model, error_of_run(result), result)

    # -- the lock --------------------------------------------------------------------------------

    def lock(self, item: TaskItem, dataset: Dataset, registry: Kinds, *, credentials: bool) -> LockedTask:
        """The evaluator's configuration is today's; roles that only ran are played by nobody.

        Raises ConfigError: what `lock_task` refuses, and a judge's key that is not set.
        """
        from pytest_ageval.config import lock_task
        from pytest_ageval.config.hashing import digest_of

        row, task = self.of(item), item.file.task
        variant = _evaluators(row, task, dataset, self.job.options, registry)
        locked = lock_task(
            task,
            dataset,
            variant,
            _options(self.job.options, row),
            registry,
            credentials=credentials,
            keys_of=row.judges_roles(),
        )
        regrade = {
            "of": row.attempt_id,
            "suite_run_id": row.suite_run_id,
            "digest": row.lock().get("digest"),
            **{name: getattr(row, name) for name in ("agent", "model", "effort")},
            "agents_roles": sorted(row.agents_roles()),
        }
        # What is judged is a part of what is locked: the verdict is no answer to any other question.
        inner = {**locked.document["locked"], "regrade": {n: regrade[n] for n in ("of", "digest")}}
        digest = digest_of(inner)
        document = {**locked.document, "locked": inner, "digest": digest, "regrade": regrade}
        return dataclasses.replace(locked, digest=digest, document=document)

    # -- words -----------------------------------------------------------------------------------

    def describe(self, nodeids: Iterable[str], roots: Sequence[Path]) -> str:
        """``regrade of 3f2a9c1d: 8 of 10 recorded attempts``."""
        total = len({row.attempt_id for root in roots for row in self.recorded(root)})
        chosen = sum(nodeid.endswith("]") for nodeid in nodeids)
        return f"regrade of {', '.join(self.names)}: {chosen} of {total} recorded attempts"


def _variant(row: Recorded) -> Variant:
    """For the item: who worked."""
    from pytest_ageval.config import Variant
    from pytest_ageval.config.overrides import make_override

    return Variant(
        agent=row.agent,
        model=row.model,
        box=row.box,
        attempt=row.attempt,
        id=row.item,
        effort=row.effort,
        name=row.name,
        overrides=tuple(
            make_override(f"/parameters/{name}", value, "--regrade") for name, value in row.parameters.items()
        ),
    )


def _evaluators(
    row: Recorded, task: TaskDocument, dataset: Dataset, job: JobOptions, registry: Kinds
) -> Variant:
    """For the lock: judges as they are configured, or as they were; no agents."""
    from pytest_ageval.config import Variant, load_agent
    from pytest_ageval.config.matrix import agent_axes
    from pytest_ageval.config.profiles import load_profiles

    judges, ran = row.judges_roles(), row.agents_roles()
    named = {role: refs[0] for role, refs in agent_axes(job.agents).items() if role}
    before = (row.lock().get("job_overlay") or {}).get("agent_profiles") or {}
    profiles = load_profiles(dataset, job.profiles)
    players: dict[str, str] = {}
    for role in task.roles:
        bound = profiles.row_for(role)
        if (ref := named.get(role)) is not None:
            players[role] = ref
        elif role in judges:
            if (agent := (before.get(role) or {}).get("agent")) is None:
                continue
            try:
                load_agent(str(agent), registry)
            except ConfigError:
                continue  # a package that was given by its path: the profiles must bind the judge
            players[role] = str(agent)
        elif role in ran or bound is None or bound[1].get("executor") is None:
            players[role] = "nop"
    return Variant(
        role_agents=tuple(players.items()),
        box=row.box,
        attempt=row.attempt,
        id=row.item,
        name=row.name,
        overrides=tuple(_overrides(row, job, judges - named.keys())),
    )


def _overrides(row: Recorded, job: JobOptions, judges: Iterable[str]) -> Iterable[Override]:
    """Parameters, and settings of the judges, that the command line of the recorded attempt gave."""
    from pytest_ageval.config.overrides import make_override

    given = {override.pointer for override in job.overrides}
    places = ("/parameters/", *(f"/agent_profiles/{role}/" for role in judges))
    for pointer, value in row.asked_for().items():
        if pointer.startswith(places) and pointer not in given:
            yield make_override(pointer, value, "--regrade")


def _options(job: JobOptions, row: Recorded) -> JobOptions:
    """`job` without what says who works, and with the recorded attempt's own options of the box."""
    at = "/environment_options/"
    given = {option.name for option in job.parsed_box_options if option.kind in (None, row.box)}
    asked: dict[str, Any] = {p.removeprefix(at): v for p, v in row.asked_for().items() if p.startswith(at)}
    more = tuple(f"{row.box}:{name}={json.dumps(v)}" for name, v in asked.items() if name not in given)
    return dataclasses.replace(
        job, agents=(), models=(), efforts=(), boxes=(), matrix=(), box_options=(*job.box_options, *more)
    )
