"""How many attempts each process keeps in flight: as somebody says, else as the run's boxes allow."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_ageval.discovery import TASK_FILES
from pytest_ageval.errors import ConfigError
from pytest_ageval.inflight.limits import max_sandboxes, workers
from pytest_ageval.job import Job
from pytest_ageval.options import BY_NAME, resolve

#: Attempts that a whole run keeps in flight by default when all of its boxes are elsewhere.
ELSEWHERE = 8

_KEY = pytest.StashKey["Number"]()


@dataclass(frozen=True, slots=True)
class Number:
    """`limit` attempts in each of `processes` processes; `source` says who says so."""

    limit: int
    source: str
    processes: int = 1

    def words(self) -> str:
        """``8 in flight (the default for e2b)``."""
        each = f" in each of {self.processes} processes" if self.processes > 1 else ""
        return f"{self.limit} in flight{each} ({self.source})"


def number(config: pytest.Config, nodeids: Iterable[str]) -> Number:
    """The number for this session, whose items have these ids. Found out once."""
    if _KEY not in config.stash:
        config.stash[_KEY] = _given(config) or _default(config, nodeids)
    return config.stash[_KEY]


def _given(config: pytest.Config) -> Number | None:
    value, source = resolve(config, "in_flight")
    if value is None:
        return None
    option = BY_NAME["in_flight"]
    names = {"cli": "--in-flight", "env": option.env, "ini": option.ini}
    return Number(max(1, int(value)), names[source], workers(config))


def _default(config: pytest.Config, nodeids: Iterable[str]) -> Number:
    """1 if a box takes part that is on this machine, or does not say where it is."""
    job, processes = Job.of(config), workers(config)
    kinds = sorted(box_kinds(job, roots(job, nodeids))) if job.regrading is None else []
    found = [_default_of(job, kind, processes) for kind in kinds]
    source = f"the default for {', '.join(kinds)}" if kinds else "the default"
    return Number(min(found, default=1), source, processes)


def _default_of(job: Job, kind: str, processes: int) -> int:
    try:
        cls = job.registry.box(kind)
    except ConfigError:  # an error of its own; or of a conftest.py that only workers have read
        return 1
    if not cls.elsewhere:
        return 1
    most = max_sandboxes(job).get(kind, cls.at_once)
    return max(1, min(ELSEWHERE, most or ELSEWHERE) // processes)


def box_kinds(job: Job, places: Iterable[Path]) -> list[str]:
    """The kinds that the command line names, else those of the data sets at `places`."""
    chosen = dict.fromkeys(variant.box for variant in job.variants if variant.box)
    if any(variant.box is None for variant in job.variants):
        chosen |= dict.fromkeys(kind for root in places if (kind := _default_box(job, root)))
    return list(chosen)


def roots(job: Job, nodeids: Iterable[str]) -> list[Path]:
    """The data sets that these items belong to."""
    from pytest_ageval.config import find_dataset_root

    # Tasks side by side are of one data set.
    files = dict.fromkeys(Path(nodeid.partition("::")[0]) for nodeid in nodeids)
    homes: dict[tuple[Path, str], Path] = {}
    for file in files:
        if file.name in TASK_FILES:
            homes.setdefault((file.parent.parent, file.name), file)
    found = dict.fromkeys(find_dataset_root(job.config.rootpath / file) for file in homes.values())
    return [root for root in found if root is not None]


def _default_box(job: Job, root: Path) -> str | None:
    """None if the data set is broken, which is reported where its tasks are collected."""
    from pytest_ageval.config import load_profiles

    try:
        return load_profiles(job.dataset(root), job.options.profiles).environment
    except ConfigError:
        return None
