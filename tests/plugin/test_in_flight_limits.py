"""How many attempts are in flight, which ones begin, and what they wait for."""

from __future__ import annotations

import json
import re
import signal
import time
from itertools import combinations
from typing import TYPE_CHECKING

import pytest

from pytest_ageval.suite import SuiteLayout
from pytest_ageval.testing.scripted_model import HttpError, ScriptedModel, Text

from .attempt_kit import ASK, JUDGE, ONE, PROFILES, ROLES
from .in_flight_kit import most_at_once, sleeping
from .interrupt_kit import start, until
from .suite_kit import document, suite_roots

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import DataSet

CLOUD = """
from ageval_boxes.local import LocalBox

class Cloud(LocalBox):
    kind = "cloud"
    elsewhere = True

def pytest_ageval_box_kinds():
    return {"cloud": Cloud}
"""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--box=local",), "1 in flight (the default for local)"),
        (("--box=cloud",), "8 in flight (the default for cloud)"),
        (("--box=cloud", "--ageval-max-sandboxes=cloud=3"), "3 in flight (the default for cloud)"),
        (("--box=cloud", "--box=local"), "1 in flight (the default for cloud, local)"),
        (("--box=cloud", "-n2"), "4 in flight in each of 2 processes (the default for cloud)"),
        (("--box=cloud", "-o", "ageval_in_flight=2"), "2 in flight (ageval_in_flight)"),
        (("--box=cloud", "-o", "ageval_in_flight=2", "--in-flight=1"), "1 in flight (--in-flight)"),
    ],
)
def test_the_header_says_how_many_and_why(demo: DataSet, arguments: tuple[str, ...], words: str) -> None:
    (demo.pytester.path / "conftest.py").write_text(CLOUD)
    demo.task("one", roles=("solver",))  # nobody plays it: it is skipped
    result = demo.pytest(*arguments)
    result.stdout.fnmatch_lines([f"*; {words.replace('[', '[[]')}; *"])


def test_boxes_elsewhere_are_used_at_once_without_being_asked(demo: DataSet) -> None:
    (demo.pytester.path / "conftest.py").write_text(CLOUD)
    log = sleeping(demo, **{f"t{number}": 2.0 for number in range(4)})
    demo.pytest("--box=cloud").assert_outcomes(passed=4)
    assert most_at_once(log) >= 3


def spans(log: Path) -> dict[str, tuple[float, float]]:
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    return {name: (begun, end) for name, begun, end in rows}


def overlap(log: Path) -> set[frozenset[str]]:
    found = spans(log)
    return {
        frozenset((a, b))
        for a, b in combinations(found, 2)
        if found[a][0] < found[b][1] and found[b][0] < found[a][1]
    }


def test_what_tasks_ask_for_is_there(demo: DataSet) -> None:
    log = sleeping(demo, a=1.0, b=1.0, big=1.0, c=1.0, free=5.0)
    for name, cpus in (("a", 1), ("b", 1), ("big", 9), ("c", 1)):
        with (demo.root / "tasks" / name / "task.yaml").open("a") as stream:
            stream.write(f"parameters: {{cpus: {cpus}}}\n")
    demo.pytest("--in-flight", "5", "--ageval-cpus", "2").assert_outcomes(passed=5)
    found = overlap(log)
    assert frozenset("ab") in found
    assert not {pair for pair in found if "big" in pair and "free" not in pair}, "it goes alone"
    assert spans(log)["big"][0] < spans(log)["c"][0], "and is not passed for ever"
    assert any("free" in pair for pair in found), "who asks for nothing waits for nobody"


def test_so_many_sandboxes_as_are_allowed(demo: DataSet) -> None:
    log = sleeping(demo, **{f"t{number}": 1.0 for number in range(5)})
    demo.pytest("--in-flight", "5", "-o", "ageval_max_sandboxes=local=2 cloud=1").assert_outcomes(passed=5)
    assert most_at_once(log) == 2


@pytest.mark.parametrize("workers", [(), ("-n1",)], ids=["alone", "xdist"])
def test_what_took_longest_begins_first(demo: DataSet, workers: tuple[str, ...]) -> None:
    log = sleeping(demo, a=0.1, b=2.0, c=1.0)
    first = demo.pytest("-v", "--in-flight", "3")
    log.unlink()
    second = demo.pytest("-v", "--in-flight", "2", *workers)
    begun = sorted(spans(log), key=lambda name: spans(log)[name][0])
    assert (set(begun[:2]), begun[2]) == ({"b", "c"}, "a")
    ids = [sorted(re.findall(r"\S+::\w+\[\S+", result.stdout.str())) for result in (first, second)]
    assert set(ids[0]) == set(ids[1])


def test_progress_lists_all_that_is_under_way(demo: DataSet) -> None:
    sleeping(demo, one=60.0, two=60.0, three=60.0, four=60.0)
    process = start(demo, "--in-flight", "3")

    def running() -> set[str]:
        try:
            (root,) = suite_roots(demo)
            return {row["task_id"] for row in json.loads(SuiteLayout(root).progress.read_text())["running"]}
        except (OSError, ValueError):
            return set()

    try:
        assert until(lambda: running() == {"one", "two", "three"} or len(running()) == 3)
    finally:
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    assert "3 attempts in flight were cancelled, 1 were not begun" in out
    assert document(demo, "summary")["inflight_peak"] == 3
    assert running() == set()


# -- providers -------------------------------------------------------------------------------------

#: A minute of 12 seconds, longer than the time limit of the tasks.
SHORT = """
import functools
from pytest_ageval import pacing
pacing.Pace = functools.partial(pacing.Pace, window=12.0)
"""


def asking(demo: DataSet, model: ScriptedModel, tasks: int, stall: int = 0) -> None:
    demo.profiles(PROFILES.format(url=model.base_url, stall=stall))
    for number in range(tasks):
        more = f"{ONE}limits: {{wall_time_seconds: 10}}\n"
        demo.task(f"t{number}", run=ASK, evaluator=JUDGE, roles=(ROLES,), more=more)


@pytest.mark.usefixtures("key")
def test_requests_wait_for_what_the_provider_allows_and_that_is_nobodys_time(demo: DataSet) -> None:
    (demo.pytester.path / "conftest.py").write_text(SHORT)
    times: list[float] = []

    def answer(_: object) -> Text:
        times.append(time.monotonic())
        return Text("42")

    with ScriptedModel(by=answer) as model:
        asking(demo, model, 3)
        result = demo.pytest("--in-flight", "3", "--ageval-requests-per-minute", "127.0.0.1=2")
    result.assert_outcomes(passed=3)
    assert times[2] - times[0] > 6, "12 s, less what the first one needed to arrive"
    held = 0.0
    for attempt in demo.attempts():
        facts = json.loads((attempt / "summary.json").read_text())["facts"]
        held += sum(row["detail"]["seconds"] for row in facts if row["name"] == "model_calls_held_back")
        assert json.loads((attempt / "result.json").read_text())["timing"]["run"] < 10_000
    assert held > 6, "one of them"


#: Those but the first begin when it was told to stay away.
LATER = """
import time
from pathlib import Path

def pytest_ageval_before_environment(attempt):
    while attempt.task_id != "t0" and not Path(MARK).exists():
        time.sleep(0.05)
"""


@pytest.mark.usefixtures("key")
def test_a_pause_that_one_is_asked_for_is_kept_by_all(demo: DataSet) -> None:
    mark = demo.root / "told"
    (demo.root / "conftest.py").write_text(f"MARK = {str(mark)!r}\n{LATER}")
    times: list[float] = []

    def answer(_: object) -> Text | HttpError:
        times.append(time.monotonic())
        mark.touch()
        return HttpError(429, "slow down", retry_after=12) if len(times) == 1 else Text("42")

    with ScriptedModel(by=answer) as model:
        asking(demo, model, 3, stall=60)
        demo.pytest("--in-flight", "3").assert_outcomes(passed=3)
    assert len(times) == 4
    assert times[1] - times[0] > 11.9, "nobody called meanwhile"


@pytest.mark.usefixtures("key")
def test_a_budget_that_is_used_up_stops_what_is_queued(demo: DataSet) -> None:
    with ScriptedModel(by=lambda _: Text("42")) as model:
        asking(demo, model, 6)
        result = demo.pytest("--in-flight", "2", "--max-tokens", "1500", "-rs")
    begun = len(demo.attempts())
    assert 2 <= begun <= 4, "what ran when it was used up, and no more"
    assert result.parseoutcomes()["skipped"] == 6 - begun
    assert "not run, the budget is used up" in result.stdout.str()


def test_maxfail_stops_after_so_many(demo: DataSet) -> None:
    from .conftest import FAILING

    sleeping(demo, **{f"t{number}": 20.0 for number in range(4)})
    for name in ("a", "b"):
        demo.task(name, evaluator=FAILING)
    result = demo.pytest("--maxfail=2", "--in-flight", "4")
    result.assert_outcomes(failed=2)
    result.stdout.re_match_lines([r"ageval: \d attempts in flight were cancelled, \d were not begun"])
