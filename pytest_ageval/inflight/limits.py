"""What a run may use at once: processors and memory of this machine, sandboxes, requests to providers.

Limits are for the whole run. Each of its processes keeps to its share, which is at least 1.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ageval.errors import ConfigError

if TYPE_CHECKING:
    import pytest

    from pytest_ageval.job import Job

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?", re.IGNORECASE)
_FACTORS = {"K": 1 / 1024, "": 1 / 1024**2, "M": 1.0, "G": 1024.0, "T": 1024.0**2}

#: Where Linux says how much memory a container may use.
CGROUP_MEMORY = Path("/sys/fs/cgroup/memory.max")


def workers(config: pytest.Config) -> int:
    """How many processes run attempts of this session."""
    count = getattr(config, "workerinput", {}).get("workercount")
    if count is not None:
        return int(count)
    if not config.pluginmanager.hasplugin("dsession"):
        return 1
    from xdist.workermanage import parse_tx_spec_config

    return len(parse_tx_spec_config(config)) or 1


#: In the input of a worker, where a run has several machines: how many of its processes are on this one.
HERE = "ageval_workers_here"


def workers_here(config: pytest.Config) -> int:
    """How many processes run attempts of this session on this machine."""
    return int(getattr(config, "workerinput", {}).get(HERE, 0)) or workers(config)


def check(job: Job) -> None:
    """All limits can be understood. Raises ConfigError ``invalid_option``."""
    cpus(job)
    memory_mb(job)
    max_sandboxes(job)
    requests_per_minute(job)


def cpus(job: Job) -> float:
    """Processors that attempts in boxes on this machine may ask for, together."""
    given = job.option("cpus")
    if given is None:
        return float(len(os.sched_getaffinity(0)))
    if not given > 0:
        raise ConfigError("invalid_option", "--ageval-cpus must be more than 0")
    return float(given)


def memory_mb(job: Job) -> float:
    """Memory that they may ask for, together, in MB (2^20 bytes)."""
    given = job.option("memory")
    if given is None:
        return _memory_here()
    found = _SIZE.fullmatch(str(given).strip())
    if found is None or not float(found[1]) > 0:
        raise ConfigError("invalid_option", f"--ageval-memory must be like 16G; found {given!r}")
    return float(found[1]) * _FACTORS[found[2].upper()]


def _memory_here() -> float:
    found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1024**2
    with contextlib.suppress(OSError, ValueError):  # "max", or no such limit
        found = min(found, int(CGROUP_MEMORY.read_text()) / 1024**2)
    return found


def max_sandboxes(job: Job) -> Mapping[str, int]:
    """Boxes that may be open at once, by kind, where somebody says so."""
    return {name: int(value) for name, value in _pairs(job, "max_sandboxes", whole=True).items()}


def requests_per_minute(job: Job) -> Mapping[str, float]:
    """Requests to a model that may go out in any minute, by the provider's name."""
    return _pairs(job, "requests_per_minute")


def share(whole: float, processes: int) -> float:
    """What each process may use of a limit."""
    return max(1.0, whole / processes)


def _pairs(job: Job, option: str, *, whole: bool = False) -> dict[str, float]:
    found: dict[str, float] = {}
    for row in _words(job.option(option)):
        name, equals, text = row.rpartition("=")
        try:
            value = int(text) if whole else float(text)
        except ValueError:
            value = 0
        if not (name and equals and 0 < value < float("inf")):
            spelling = f"--ageval-{option.replace('_', '-')}"
            raise ConfigError("invalid_option", f"{spelling} must be NAME=NUMBER, above 0; found {row!r}")
        found[name] = value
    return found


def _words(given: Any) -> Iterable[str]:
    return [word for row in given or () for word in str(row).split()]
