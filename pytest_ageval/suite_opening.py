"""The suite runs with which a session begins: new ones, or those that it goes on with."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pytest_ageval.errors import AgevalError, ConfigError
from pytest_ageval.evidence.files import now
from pytest_ageval.recalled import cells, check, kept
from pytest_ageval.suite.places import DIRECTORY, SuiteLayout, find_suite, suites
from pytest_ageval.suite.record import SuiteHeader, read_header
from pytest_ageval.suite.run import SuiteRun
from pytest_ageval.suites import Place

if TYPE_CHECKING:
    from pytest_ageval.job import Job


class Opened(NamedTuple):
    """By root of evidence: the suite runs and where they are; `homes` by node id; roots that were made."""

    runs: dict[Path, SuiteRun]
    places: dict[Path, Place]
    homes: dict[str, SuiteRun]
    made: list[Path]


def open_runs(job: Job, datasets: Mapping[Path, Sequence[str]], workers: int) -> Opened:
    """Open a suite run for every root of evidence. `datasets` are node ids by the root of their data set.

    All new ones of a session have the same id, so that one ``--resume ID`` goes on with all of them.
    Raises AgevalError (``suite_not_found``, ``suite_in_progress``, ...) and OSError; none stays open then.
    """
    roots: dict[Path, list[Path]] = {}
    for dataset in datasets:
        roots.setdefault(job.evidence_root(dataset).absolute(), []).append(dataset)
    found = {evidence: _to_resume(job, evidence, of) for evidence, of in roots.items()}
    _require_one(job, found)
    for there in filter(None, found.values()):
        check(job, read_header(there))
    made = [evidence for evidence in roots if not evidence.exists()]
    new = _new_id(list(roots))
    opened = Opened({}, {}, {}, made)
    try:
        for evidence, of in roots.items():
            slots = [nodeid for dataset in of for nodeid in datasets[dataset]]
            root = found[evidence]
            run = _begin(job, evidence / DIRECTORY / new, of, slots, workers) if root is None else None
            run = run or SuiteRun.resume(evidence / DIRECTORY / root.name, slots, workers)  # type: ignore[union-attr]
            run.at_least(job.options.attempts)
            if job.suites.shared_cache is not None:
                run.also_cache(job.suites.shared_cache)
            opened.runs[evidence] = run
            opened.places[evidence] = Place(run.layout.root, root is not None)
            opened.homes.update(dict.fromkeys(slots, run))
    except BaseException:
        for run in opened.runs.values():
            run.close()
            if run.is_new:
                run.remove()
        raise
    return opened


def _begin(job: Job, root: Path, datasets: Sequence[Path], slots: Sequence[str], workers: int) -> SuiteRun:
    from pytest_ageval.job import run_id

    for dataset in datasets:
        job.runs_dir(dataset)
    sources = () if job.regrading is None else job.regrading.suites(datasets)
    one = _dataset(job, datasets[0]) if len(datasets) == 1 else (None, None)
    header = SuiteHeader(
        suite_run_id=root.name,
        created_at=now(),
        run_id=run_id(job.config),
        dataset_id=one[0],
        dataset_version=one[1],
        rootdir=str(job.config.rootpath),
        arguments=tuple(map(str, job.config.invocation_params.args)),
        n_attempts=job.options.attempts,
        parents=sources,
        options=kept(job, sources),
        cells=cells(job),
    )
    return SuiteRun.begin(root, header, slots, workers)


def _dataset(job: Job, root: Path) -> tuple[str | None, str | None]:
    """Id and version; nothing of a data set that is broken, which is an error of its own."""
    try:
        dataset = job.dataset(root)
    except ConfigError:
        return None, None
    return dataset.dataset_id, dataset.version


def _new_id(roots: Sequence[Path]) -> str:
    while True:
        name = secrets.token_hex(4)
        if not any((root / DIRECTORY / name).exists() for root in roots):
            return name


# -- resume ----------------------------------------------------------------------------------------


def to_resume(job: Job, evidence: Path) -> Path | None:
    """The suite run that ``--resume`` means below a root of evidence; None for a new one."""
    wanted = job.option("resume")
    if wanted is None or (wanted == "last" and not suites(evidence)):
        return None
    return find_suite(_as_path(job, wanted), evidence)


def _to_resume(job: Job, evidence: Path, datasets: Sequence[Path]) -> Path | None:
    """The same, if it is one of these data sets."""
    root = to_resume(job, evidence)
    if root is None:
        return None
    if SuiteLayout(root).evidence.resolve() != evidence.resolve():
        raise ConfigError(
            "suite_elsewhere",
            f"--resume: {root} does not lie below {evidence}, where the evidence of this run goes",
            hint="select the data set that the suite run is of, or give its --ageval-dir",
        )
    was = read_header(root).dataset_id
    ids = [_dataset(job, dataset)[0] for dataset in datasets]
    if was is not None and any(name not in (was, None) for name in ids):
        raise ConfigError(
            "suite_of_another_dataset",
            f"--resume: suite run {root.name} is of the data set {was}, these tasks are of "
            f"{', '.join(name for name in ids if name not in (was, None))}",
            hint="begin a new suite run without --resume",
        )
    return root


def _as_path(job: Job, wanted: str) -> str:
    """A path as pytest was given it; an id stays one."""
    path = job.place("resume")
    return str(path) if path is not None and SuiteLayout(path).header.is_file() else wanted


def _require_one(job: Job, found: Mapping[Path, Path | None]) -> None:
    """``--resume`` alone goes on with what there is, and there must be something."""
    if job.option("resume") is not None and not any(found.values()):
        places = ", ".join(str(evidence / DIRECTORY) for evidence in found)
        raise AgevalError("suite_not_found", f"--resume: there is no suite run below {places}")
