"""Harbor attempts that are killed and continued in the container that they had, or in a new one."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from docker_engine import needs_docker
from support import kill_kit
from test_harbor_run import Tasks
from test_resume import KILLED

from pytest_ageval.evidence import Layout, read_activity

pytestmark = [pytest.mark.docker, needs_docker]

TOML = "[[steps]]\nname = 'one'\nmin_reward = 1\n[[steps]]\nname = 'two'\n"
#: Each step counts how often it was worked on and graded, where no checkpoint reaches.
STEPS = {
    "steps/one/instruction.md": "echo one >> /srv/work; echo 42 > answer",
    "steps/one/tests/test.sh": "echo one >> /srv/graded; echo 1 > /logs/verifier/reward.txt\n",
    "steps/two/instruction.md": "echo two >> /srv/work",
    "steps/two/workdir/setup.sh": "echo two >> /srv/setup\n",
    "steps/two/tests/test.sh": "echo two >> /srv/graded; cp /srv/* /logs/artifacts; "
    'if [ "$(tr "\\n" " " < /srv/work)" = "one two " ] && [ "$(tr "\\n" " " < /srv/graded)" = "one two " ]; '
    "then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n",
    "environment/Dockerfile": "FROM ageval-attempt:base\nUSER root\nRUN chmod 777 /srv\nWORKDIR /app\n",
}


class Steps:
    """A Harbor task of two steps, one process after the other."""

    def __init__(self, place: Path) -> None:
        self.runs = place / "runs"
        self.task = Tasks(place / "set").write("steps", toml=TOML, **STEPS)

    def process(self, kill_when: str | None = None) -> int:
        (code,) = kill_kit.wait(
            [
                kill_kit.fork(
                    lambda: kill_kit.attempt_once(
                        self.task.parent, self.runs, kill_when=kill_when, harbor=self.task
                    )
                )
            ]
        )
        return code

    @property
    def directory(self) -> Path:
        (found,) = self.runs.iterdir()
        return found

    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.directory / "result.json").read_bytes())
        return found

    def facts(self, name: str) -> list[Any]:
        rows = json.loads((self.directory / "summary.json").read_bytes())["facts"]
        return [row.get("detail") for row in rows if row["name"] == name]


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("invoke completed 1", id="agent-of-the-first-step-had-ended"),
        pytest.param("invoke completed 2", id="agent-of-the-last-step-had-ended"),
        pytest.param("phase completed 2", id="run-over"),
        pytest.param("phase completed 3", id="verdict-bound"),
    ],
)
def test_no_step_is_repeated(tmp_path: Path, line: str) -> None:
    """In the container that is still there: no agent works twice, no step is graded twice."""
    steps = Steps(tmp_path)
    assert steps.process(line) == KILLED
    assert steps.process() == 0
    result = steps.result()
    assert (result["status"], result["score"], result["resumed"]) == ("PASS", 1.0, 1), result
    rows = read_activity(Layout(steps.directory).activity)
    done = Counter(
        row["request_id"] for row in rows if (row["kind"], row["status"]) == ("invoke", "completed")
    )
    assert list(done.values()) == [1, 1]


def test_without_its_container_it_begins_again(tmp_path: Path) -> None:
    steps = Steps(tmp_path)
    assert steps.process("session completed 2") == KILLED
    rows = read_activity(Layout(steps.directory).activity)
    handle = [row["payload"]["environment_handle"] for row in rows if row["kind"] == "attempt"][-1]
    from pytest_ageval.box import Box

    registry = kill_kit.Registry([], [])
    kind: type[Box] = registry.box("docker")
    kind.reap({"ageval.attempt": steps.directory.name})
    assert handle["kind"] == "docker"
    assert steps.process() == 0
    result = steps.result()
    assert (result["status"], result["resumed"]) == ("PASS", 1), result
    assert steps.facts("attempt_resumed")[0]["box_taken_over"] is False
    assert len(steps.facts("step_finished")) == 3
