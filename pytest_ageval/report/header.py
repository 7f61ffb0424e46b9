"""The line before a run: who tries what, how often, and where the evidence goes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ageval import sequencer
from pytest_ageval.discovery import TASK_FILES
from pytest_ageval.errors import ConfigError
from pytest_ageval.job import Job, run_id

if TYPE_CHECKING:
    from pytest_ageval.config import Variant


def describe(job: Job, nodeids: Iterable[str]) -> str:
    """``codex, pi x local (bubblewrap) x 2 attempts; run ...; evidence in ...``."""
    from pytest_ageval.config.variants import more_axes
    from pytest_ageval.worker import view

    nodeids = list(nodeids)
    roots = _roots(job, nodeids)
    if job.regrading is not None:
        who = job.regrading.describe(nodeids, roots)
    else:
        agents = dict.fromkeys(_agent_words(variant) for variant in job.variants)
        chosen = dict.fromkeys(variant.box for variant in job.variants if variant.box)
        kinds = chosen or dict.fromkeys(kind for root in roots if (kind := _default_box(job, root)))
        boxes = ", ".join(_box_words(job, kind) for kind in kinds) or "no box"
        attempts = job.options.attempts
        auto = "up to " if sequencer.stopping(job.config) is not None else ""
        who = (
            f"{', '.join(agents)} x {boxes}{more_axes(job.options)} x {auto}{attempts} "
            f"attempt{'s' if attempts != 1 else ''}"
        )
    scripts = view.words(bool(job.option("trust_tasks"))) + _tape_words(job)
    places = [os.path.relpath(job.evidence_root(root) / "runs") for root in roots]
    more = f" and {len(places) - 1} more" if len(places) > 1 else ""
    return f"{who}; {scripts}; run {run_id(job.config)[:12]}; evidence in {''.join(places[:1])}{more}"


def _agent_words(variant: Variant) -> str:
    named = [f"{role}={ref}" for role, ref in variant.role_agents]
    who = "+".join([variant.agent, *named] if variant.agent else named) or "agents of profiles.yaml"
    return f"{who} ({variant.model})" if variant.model else who


def _tape_words(job: Job) -> str:
    for option, words in (("record", "model calls recorded into"), ("replay", "model calls replayed from")):
        if (place := job.place(option)) is not None:
            return f"; {words} {os.path.relpath(place)}"
    return ""


def _roots(job: Job, nodeids: Iterable[str]) -> list[Path]:
    from pytest_ageval.config import find_dataset_root

    files = dict.fromkeys(nodeid.partition("::")[0] for nodeid in nodeids)
    tasks = [file for file in files if Path(file).name in TASK_FILES]
    found = dict.fromkeys(find_dataset_root(job.config.rootpath / file) for file in tasks)
    return [root for root in found if root is not None]


def _default_box(job: Job, root: Path) -> str | None:
    """None if the data set is broken, which is reported where its tasks are collected."""
    from pytest_ageval.config import load_profiles

    try:
        return load_profiles(job.dataset(root), job.options.profiles).environment
    except ConfigError:
        return None


def _box_words(job: Job, kind: str) -> str:
    mine = {row.name: row.value for row in job.options.parsed_box_options if row.kind in (None, kind)}
    try:
        cls = job.registry.box(kind)
    except ConfigError:  # of a conftest.py that only the workers of a distributed run have read
        return kind
    return cls.describe(mine)
