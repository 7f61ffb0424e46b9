"""An attempt is killed with SIGKILL at every write into its evidence, and continued.

Every eleventh point is tried, others each day; ``AGEVAL_KILL_ANYWHERE=all`` tries them all (see
`support.kill_sweep`).
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
from support.kill_sweep import Points, Sweep, name_of

from pytest_ageval.evidence import read_activity
from pytest_ageval.testing.scripted_model import ScriptedModel, Shell, Text, When

#: Of so many points one is tried.
STRIDE = 11
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


def check(trial: Trial, kills: int, *, late: bool = False) -> None:
    """What must hold when the attempt has its result, after `kills` kills; `late`: it had one before."""
    (directory,) = [each for each in trial.directories if (each / "result.json").exists()]
    result = json.loads((directory / "result.json").read_bytes())
    assert result["status"] == "PASS", (result["error"], result["metrics"])
    words = Counter(trial.counter.read_text().split())
    assert set(words) == {"a", "b", "c"}
    assert sum(words.values()) - 3 <= kills, f"commands were repeated: {words}"
    asked = Counter(
        json.dumps(request.body.get("messages"), sort_keys=True) for request in trial.model.requests
    )
    assert len(asked) == 7
    assert sum(asked.values()) - 7 <= kills, f"model calls were repeated: {sorted(asked.values())}"
    rows = read_activity(directory / "activity.jsonl")  # whole, and numbered without a gap
    judges = read_activity(directory / "evaluation" / "private" / "activity.jsonl")
    headers = [row for row in rows if row["kind"] == "attempt"]
    assert rows[0] is headers[0]
    assert len({row["payload"]["attempt_id"] for row in headers}) == 1
    assert result["resumed"] == max(row["payload"]["resumed"] for row in headers)
    steps = [row for row in [*rows, *judges] if row["kind"] in ("model_turn", "tool_call", "invoke")]
    done = Counter(row["request_id"] for row in steps if row["status"] == "completed")
    assert len(done) == 14
    assert set(done.values()) == {1}, [name for name, count in done.items() if count > 1]
    # What was spent is there once, and a call whose answer was lost is known to be missing.
    assert result["agent_invocations"] == 3
    assert result["usage"]["prompt_tokens"] == 6000
    assert result["usage"]["partial"] in (False, kills > 0)
    trajectory = [json.loads(line) for line in (directory / "trajectory.jsonl").read_bytes().splitlines()]
    said = Counter(row["content"] for row in trajectory if row.get("role") == "user")
    assert list(said) == ["give a hint", "write the words", "write more words, after first"]
    assert sum(said.values()) <= 3 + kills
    assert sum(row["type"] == "tool_call" for row in trajectory) == 3
    assert sum(row["type"] == "observation" for row in trajectory) == 3
    facts = Counter(row["name"] for row in json.loads((directory / "summary.json").read_bytes())["facts"])
    assert facts["environment_started"] >= 1
    assert facts["artifacts_harvested"] >= 1
    assert late or not (directory / "checkpoints").exists()
    assert not list(directory.glob("**/.*.tmp"))


def kill_and_go_on(*points: int) -> str:
    """The attempt is killed at each point, one process after the other, then continued. What happened."""
    with Trial.made() as trial:
        kills = 0
        for point in points:
            code, _ = trial.process(point)
            kills += code == KILLED
        if not kills:
            return "not reached"
        late = trial.settled()
        if not late:
            code, _ = trial.process()
            assert code == 0, f"the last process ended with {code}"
        check(trial, kills, late=late)
        return "settled" if late else "survived"


def sweep(points: Sequence[Points], answers: Path) -> None:
    """Try the points one after the other; what came of each goes into a file."""
    found: dict[str, str] = {}
    for point in points:
        name = name_of(point)
        try:
            found[name] = kill_and_go_on(*point)
        except BaseException as error:  # the next point is tried all the same
            found[name] = f"lost: {type(error).__name__}: {error}"
        SWEEP.note(name, found[name])
        answers.write_text(json.dumps(found))


def side_by_side(points: Sequence[Points], place: Path) -> dict[str, str]:
    """The answers of all points of this run's part, those of earlier runs too, tried in several processes."""
    points = SWEEP.share(points)
    known = SWEEP.known()
    answers = {name: known[name] for name in map(name_of, points) if name in known}
    left = [point for point in points if name_of(point) not in known]
    files = [place / f"answers-{number}.json" for number in range(SIDE_BY_SIDE)]

    def part(number: int) -> None:
        sweep(left[number::SIDE_BY_SIDE], files[number])

    pids = [kill_kit.fork(lambda number=number: part(number)) for number in range(SIDE_BY_SIDE)]  # type: ignore[misc]
    assert kill_kit.wait(pids) == [0] * SIDE_BY_SIDE
    for file in files:
        answers.update(json.loads(file.read_text()) if file.exists() else {})
    return answers


def tell(answers: dict[str, str], of: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Print what came of the points, and fail if an attempt was lost."""
    counts = Counter(answer.partition(":")[0] for answer in answers.values())
    with capsys.disabled():
        print(f"\nkilled at {len(answers)} {of}: {dict(counts)}", file=sys.stderr)
    lost = {point: answer for point, answer in answers.items() if answer.startswith("lost")}
    assert not lost, json.dumps(lost, indent=1)
    assert counts["survived"] > len(answers) // 2


SWEEP = Sweep.of(os.environ)
ALL = SWEEP.everything


@pytest.mark.slow
def test_killed_at_any_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """PASS in the end; no completed model call, command or turn is repeated, but for the one in flight."""
    with Trial.made() as trial:
        code, points = trial.process()
        assert code == 0
        check(trial, 0)
    today = 1 + int(time.time() // 86400) % STRIDE
    tried = range(1, len(points) + 1) if ALL else range(today, len(points) + 1, STRIDE)
    answers = side_by_side([(point,) for point in tried], tmp_path)
    tell(answers, f"of {len(points)} writes", capsys)


@pytest.mark.slow
def test_killed_again_while_it_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second and the third process are killed too."""
    step = 37 if ALL else 150
    firsts, seconds = range(40, 400, step), range(12, 260, 17 if ALL else 83)
    pairs: list[Points] = [(one, two) for one in firsts for two in seconds]
    answers = side_by_side([*pairs, (200, 30), (340, 40), (150, 60, 60, 60)], tmp_path)
    tell(answers, "pairs of writes", capsys)
