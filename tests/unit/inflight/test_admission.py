"""Admission by resources, and the limits that it keeps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_ageval.errors import ConfigError
from pytest_ageval.inflight import limits
from pytest_ageval.inflight.admission import Admission, Need


class Config:
    """As much of a pytest.Config as says how many processes there are."""

    def __init__(self, processes: int = 1) -> None:
        self.workerinput = {"workercount": processes}


class Job:
    """As much of a job as limits ask for. Kinds: `here`, and `cloud`, which allows 3 boxes."""

    def __init__(self, processes: int = 1, **options: Any) -> None:
        self.config = Config(processes)
        self.options = options
        kinds = {
            "here": SimpleNamespace(elsewhere=False, at_once=None),
            "cloud": SimpleNamespace(elsewhere=True, at_once=3),
        }
        self.registry = SimpleNamespace(box=kinds.__getitem__)

    def option(self, name: str) -> Any:
        return self.options.get(name)


def admission(processes: int = 1, **options: Any) -> Admission:
    return Admission(cast("Any", Job(processes, **options)))


def need(made: Admission, kind: str = "here", **parameters: Any) -> Need:
    return made.need_of(cast("Any", SimpleNamespace(box=SimpleNamespace(kind=kind), parameters=parameters)))


def admitted(made: Admission, wanted: Need) -> int:
    """How many such attempts may run at once."""
    count = 0
    while not made.short_of(wanted) and count < 100:
        made.enter(wanted)
        count += 1
    return count


def test_processors_are_shared_by_the_processes_of_their_machine() -> None:
    made = Job(8, cpus=8.0, max_sandboxes=["cloud=16"])
    made.config.workerinput[limits.HERE] = 2
    there = Admission(cast("Any", made))
    assert admitted(there, need(there, cpus=1)) == 4
    assert admitted(there, need(there, "cloud")) == 2


@pytest.mark.parametrize(
    ("options", "parameters", "count"),
    [
        ({"cpus": 8.0}, {"cpus": 2}, 4),
        ({"cpus": 8.0}, {"cpus": 2.5}, 3),
        ({"memory": "4G"}, {"memory_mb": 1024}, 4),
        ({"cpus": 8.0, "memory": "4G"}, {"cpus": 1, "memory_mb": 2048}, 2),
        ({"cpus": 8.0}, {"cpus": 9}, 1),
        ({"cpus": 8.0, "processes": 4}, {"cpus": 1}, 2),
        ({"cpus": 2.0, "processes": 4}, {"cpus": 1}, 1),
        ({"cpus": 1.0}, {}, 100),
        ({"max_sandboxes": ["here=5 cloud=2"]}, {}, 5),
        ({"max_sandboxes": ["here=5"], "processes": 2}, {}, 2),
    ],
)
def test_how_many_fit(options: dict[str, Any], parameters: dict[str, Any], count: int) -> None:
    made = admission(options.pop("processes", 1), **options)
    wanted = need(made, **parameters)
    assert admitted(made, wanted) == count
    made.leave(wanted)
    assert not made.short_of(wanted)


def test_a_kind_says_how_many_it_allows_and_takes_nothing_of_this_machine() -> None:
    made = admission(cpus=1.0)
    assert admitted(made, need(made, "cloud", cpus=4)) == 3
    made = admission(max_sandboxes=["cloud=7"])
    assert admitted(made, need(made, "cloud")) == 7


def test_one_that_asks_for_all_waits_for_all() -> None:
    made = admission(cpus=4.0)
    small, big = need(made, cpus=1), need(made, cpus=16)
    made.enter(small)
    assert made.short_of(big) == {"cpus"}
    made.leave(small)
    assert not made.short_of(big)
    made.enter(big)
    assert made.short_of(small) == {"cpus"}


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("cpus", 0.0),
        ("memory", "much"),
        ("memory", "0G"),
        ("max_sandboxes", ["e2b"]),
        ("max_sandboxes", ["e2b=1.5"]),
        ("max_sandboxes", ["e2b=0"]),
        ("requests_per_minute", ["openai=fast"]),
        ("requests_per_minute", ["=3"]),
    ],
)
def test_limits_that_cannot_be_meant(option: str, value: Any) -> None:
    with pytest.raises(ConfigError) as refused:
        limits.check(cast("Any", Job(**{option: value})))
    assert f"--ageval-{option.replace('_', '-')}" in str(refused.value)


def test_sizes() -> None:
    found = [limits.memory_mb(cast("Any", Job(memory=text))) for text in ("2G", "512 MiB", "1.5gb", "1T")]
    assert found == [2048, 512, 1536, 1024**2]
    assert limits.memory_mb(cast("Any", Job())) > 64
    assert limits.cpus(cast("Any", Job())) >= 1
