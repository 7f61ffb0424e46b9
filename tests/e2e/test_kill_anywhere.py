"""An attempt is killed with SIGKILL at every write into its evidence, and continued.

Every seventh point is tried, another seventh each day; ``AGEVAL_KILL_ANYWHERE=all`` tries them all.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support import kill_kit

from pytest_ageval.evidence import read_activity
from pytest_ageval.testing.scripted_model import ScriptedModel, Shell, Text, When

#: Of so many points one is tried.
STRIDE = 7
#: Trials at once: they wait more than they compute.
SIDE_BY_SIDE = 2

KILLED = -signal.SIGKILL


class Trial:
    """A data set, a model and a directory of its own."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.counter = place / "counter"
        self.runs = place / "runs"
        self.dataset = place / "dataset"
        self.model = ScriptedModel(
            [
                When("write more words", [self._word("c"), Text("second")]),
                When("write the words", [self._word("a"), self._word("b"), Text("first")]),
                When("give a hint", [Text("a hint")]),
                When("is it good", [Text("good")]),
            ]
        )

    def _word(self, word: str) -> Shell:
        """A command with two effects: one in the workspace, one where no checkpoint reaches."""
        return Shell(f"echo {word} >> words.txt; echo {word} >> {self.counter}")

    @classmethod
    @contextlib.contextmanager
    def made(cls) -> Iterator[Trial]:
        place = Path(tempfile.mkdtemp(prefix="ageval-kill-"))
        trial = cls(place)
        try:
            with trial.model:
                kill_kit.write_dataset(trial.dataset, trial.model.base_url)
                yield trial
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def process(self, kill_at: int = 0) -> tuple[int, list[str]]:
        """One process at the attempt: how it ended, and the points that it passed, if it ended itself."""
        told = self.place / "points.json"
        told.unlink(missing_ok=True)
        pid = kill_kit.fork(
            lambda: kill_kit.attempt_once(self.dataset, self.runs, kill_at=kill_at, told=told)
        )
        (code,) = kill_kit.wait([pid])
        return code, json.loads(told.read_text()) if told.exists() else []

    @property
    def directories(self) -> list[Path]:
        return sorted(self.runs.iterdir()) if self.runs.is_dir() else []

    def settled(self) -> bool:
        return any((each / "result.json").exists() for each in self.directories)

    def log(self) -> list[dict[str, Any]]:
        """The whole lines of the step log as they are now."""
        return [row for each in self.directories for row in read_activity(each / "activity.jsonl")]


def completed(rows: Sequence[dict[str, Any]]) -> dict[str, int]:
    """How many steps of the run are complete, by kind."""
    found = Counter(row["kind"] for row in rows if row["status"] == "completed")
    return {kind: found[kind] for kind in ("model_turn", "tool_call", "invoke")}


def check(trial: Trial, before: dict[str, int], seen: Counter[str], kills: int) -> None:
    """What must hold when the attempt has been continued to its end after `kills` kills."""
    directories = [each for each in trial.directories if (each / "activity.jsonl").exists()]
    settled = [each for each in directories if (each / "result.json").exists()]
    assert len(settled) == 1, [str(each) for each in directories]
    (directory,) = settled
    result = json.loads((directory / "result.json").read_bytes())
    assert result["status"] == "PASS", (result["error"], result["metrics"])
    words = Counter(trial.counter.read_text().split())
    assert set(words) == {"a", "b", "c"}
    assert sum(words.values()) - 3 <= kills, f"commands were repeated: {words}"
    asked = Counter(json.dumps(request.body.get("messages")) for request in trial.model.requests)
    assert len(asked) == 7
    assert sum(asked.values()) - 7 <= kills, f"model calls were repeated: {sorted(asked.values())}"
    rows = read_activity(directory / "activity.jsonl")  # whole, and numbered without a gap
    assert [row["kind"] for row in rows].index("attempt") == 0
    headers = [row["payload"] for row in rows if row["kind"] == "attempt"]
    assert len({row["attempt_id"] for row in headers}) == 1
    assert result["resumed"] == max(row["resumed"] for row in headers)
    judges = read_activity(directory / "evaluation" / "private" / "activity.jsonl")
    done = Counter(row["request_id"] for row in [*rows, *judges] if row["kind"] in seen_kinds(row))
    assert set(done.values()) == {1}, {name: count for name, count in done.items() if count > 1}
    assert completed(rows)["model_turn"] == 6
    assert result["agent_invocations"] == 3
    assert result["usage"]["prompt_tokens"] == 6000
    check_usage(result, kills)
    trajectory = [json.loads(line) for line in (directory / "trajectory.jsonl").read_bytes().splitlines()]
    assert [row["content"] for row in trajectory if row.get("role") == "user"] == [
        "give a hint",
        "write the words",
        "write more words, after first",
    ] or kills, trajectory
    assert sum(row["type"] == "tool_call" for row in trajectory) == 3
    assert not (directory / "checkpoints").exists() or seen["late"]


def seen_kinds(row: dict[str, Any]) -> tuple[str, ...]:
    return ("model_turn", "tool_call", "invoke") if row["status"] == "completed" else ()


def check_usage(result: dict[str, Any], kills: int) -> None:
    """Whatever call was lost is known to be missing; else nothing is said to be."""
    assert result["usage"].get("partial", False) in (False, kills > 0)


def kill_and_go_on(point: int) -> str:
    """One point: the attempt is killed there, then continued. What happened."""
    with Trial.made() as trial:
        code, _ = trial.process(point)
        if code != KILLED:
            return "not reached"
        late = trial.settled()
        before = completed(trial.log())
        if not late:
            code, _ = trial.process()
            assert code == 0, f"the second process ended with {code}"
        check(trial, before, Counter(late=int(late)), 1)
        return "settled" if late else "survived"


def sweep(points: Sequence[int], answers: Path) -> None:
    """Try `points` one after the other; what came of each goes into a file."""
    found: dict[str, str] = {}
    for point in points:
        try:
            found[str(point)] = kill_and_go_on(point)
        except BaseException as error:  # the next point is tried all the same
            found[str(point)] = f"{type(error).__name__}: {error}"
        answers.write_text(json.dumps(found))


def side_by_side(points: Sequence[int], place: Path) -> dict[str, str]:
    """The answers of all points, tried in several processes."""
    files = [place / f"answers-{number}.json" for number in range(SIDE_BY_SIDE)]

    def part(number: int) -> None:
        sweep(points[number::SIDE_BY_SIDE], files[number])

    pids = [kill_kit.fork(lambda number=number: part(number)) for number in range(SIDE_BY_SIDE)]  # type: ignore[misc]
    assert kill_kit.wait(pids) == [0] * SIDE_BY_SIDE
    return {point: answer for file in files for point, answer in json.loads(file.read_text()).items()}


@pytest.mark.slow
def test_killed_at_any_write_and_continued(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """PASS in the end; no completed model call, command or turn is repeated, but for the one in flight."""
    with Trial.made() as trial:
        code, points = trial.process()
        assert code == 0
        check(trial, completed(trial.log()), Counter(), 0)
    every = os.environ.get("AGEVAL_KILL_ANYWHERE") == "all"
    first = 1 if every else 1 + int(time.time() // 86400) % STRIDE
    tried = range(first, len(points) + 1, 1 if every else STRIDE)
    answers = side_by_side(tried, tmp_path)
    counts = Counter(answer if answer in ("survived", "settled", "not reached") else "lost" for answer in answers.values())
    with capsys.disabled():
        print(f"\nkilled at {len(answers)} of {len(points)} writes: {dict(counts)}", file=sys.stderr)
    lost = {f"{point} ({points[int(point) - 1]})": answers[point] for point in answers if answers[point] not in ("survived", "settled", "not reached")}
    assert not lost, json.dumps(lost, indent=1)
    assert counts["survived"] > len(answers) // 2
