"""The line before a run: who tries what, how often, and where the evidence goes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pytest_ageval import sequencer
from pytest_ageval.errors import ConfigError
from pytest_ageval.job import Job, run_id

if TYPE_CHECKING:
    from pytest_ageval.config import Variant


def describe(job: Job, nodeids: Iterable[str]) -> str:
    """``codex, pi x local (bubblewrap) x 2 attempts; run ...; evidence in ...``."""
    from pytest_ageval.config.variants import more_axes
    from pytest_ageval.inflight.number import box_kinds, number, roots
    from pytest_ageval.worker import view

    nodeids = list(nodeids)
    places = roots(job, nodeids)
    if job.regrading is not None:
        who = job.regrading.describe(nodeids, places)
    else:
        agents = dict.fromkeys(_agent_words(variant) for variant in job.variants)
        boxes = ", ".join(_box_words(job, kind) for kind in box_kinds(job, places)) or "no box"
        attempts = job.options.attempts
        auto = "up to " if sequencer.stopping(job.config) is not None else ""
        who = (
            f"{', '.join(agents)} x {boxes}{more_axes(job.options)} x {auto}{attempts} "
            f"attempt{'s' if attempts != 1 else ''}"
        )
    scripts = view.words(bool(job.option("trust_tasks"))) + _tape_words(job)
    evidence = [os.path.relpath(job.evidence_root(root) / "runs") for root in places]
    more = f" and {len(evidence) - 1} more" if len(evidence) > 1 else ""
    ahead = number(job.config, nodeids).words()
    return (
        f"{who}; {ahead}; {scripts}; run {run_id(job.config)[:12]}; evidence in {''.join(evidence[:1])}{more}"
    )


def _agent_words(variant: Variant) -> str:
    named = [f"{role}={ref}" for role, ref in variant.role_agents]
    who = "+".join([variant.agent, *named] if variant.agent else named) or "agents of profiles.yaml"
    return f"{who} ({variant.model})" if variant.model else who


def _tape_words(job: Job) -> str:
    for option, words in (("record", "model calls recorded into"), ("replay", "model calls replayed from")):
        if (place := job.place(option)) is not None:
            return f"; {words} {os.path.relpath(place)}"
    return ""


def _box_words(job: Job, kind: str) -> str:
    mine = {row.name: row.value for row in job.options.parsed_box_options if row.kind in (None, kind)}
    try:
        cls = job.registry.box(kind)
    except ConfigError:  # of a conftest.py that only the workers of a distributed run have read
        return kind
    return cls.describe(mine)
