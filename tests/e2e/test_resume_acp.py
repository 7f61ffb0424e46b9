"""An attempt that was killed goes on in the session of its ACP agent: its turns are not made again."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import kill_kit

from pytest_ageval.evidence import read_activity
from pytest_ageval.testing.scripted_model import ScriptedModel, Shell, Text, When

AGENT = Path(__file__).parents[1] / "support" / "acp_agents" / "model_agent.py"
KILLED = -signal.SIGKILL


class Trial:
    """The task of `kill_kit`, its solver an agent over ACP that keeps its sessions below its home."""

    def __init__(self, place: Path, model: ScriptedModel) -> None:
        self.runs, self.dataset, self.model = place / "runs", place / "dataset", model
        kill_kit.write_dataset(self.dataset, model.base_url)
        command = json.dumps([sys.executable, "-u", str(AGENT), "{model}"])
        profiles = (self.dataset / "profiles.yaml").read_text()
        solver = f"executor: acp\n    options: {{command: {command}, usage: turn}}\n    api_key: ${{PROBE}}"
        (self.dataset / "profiles.yaml").write_text(profiles.replace("executor: test-loop", solver))

    def process(self, kill_when: str | None = None) -> int:
        work = kill_kit.fork(
            lambda: kill_kit.attempt_once(
                self.dataset, self.runs, kill_when=kill_when, secret=lambda name: "sk-probe-0123456789"
            )
        )
        (code,) = kill_kit.wait([work])
        return code

    @property
    def directory(self) -> Path:
        (found,) = self.runs.iterdir()
        return found

    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.directory / "result.json").read_bytes())
        return found

    def remove_box(self) -> None:
        rows = read_activity(self.directory / "activity.jsonl")
        handles = [row["payload"]["environment_handle"] for row in rows if row["kind"] == "attempt"]
        shutil.rmtree(next(each for each in reversed(handles) if each)["work_dir"])

    def asked(self, words: str) -> list[list[str]]:
        """Of each request whose last prompt begins with `words`: what the user has said in it."""
        return [
            [row["content"] for row in request.body["messages"] if row["role"] == "user"]
            for request in self.model.requests
            if request.prompt.startswith(words)
        ]


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    with ScriptedModel(
        [
            When("write more words", [Shell("echo c >> words.txt"), Text("second"), Text("second")]),
            When("write the words", [Shell("echo a >> words.txt; echo b >> words.txt"), Text("first")]),
            When("give a hint", [Text("a hint")]),
            When("is it good", [Text("good")]),
        ]
    ) as model:
        yield Trial(tmp_path, model)


@pytest.mark.parametrize("gone", [False, True], ids=["box-there", "box-gone"])
@pytest.mark.parametrize("when", ["invoke completed 2", "invoke in_flight 3"])
def test_the_next_turn_is_one_of_the_same_session(trial: Trial, when: str, gone: bool) -> None:
    """The agent loads its session from its home, which a checkpoint has where the box is gone."""
    assert trial.process(when) == KILLED
    before = len(trial.asked("write the words"))
    if gone:
        trial.remove_box()
    assert trial.process() == 0
    result = trial.result()
    assert (result["status"], result["resumed"], result["agent_invocations"]) == ("PASS", 1, 3), result
    assert len(trial.asked("write the words")) == before == 2, "a turn that was done is not made again"
    later = trial.asked("write more words")
    assert later
    assert all(said == ["write the words", "write more words, after first"] for said in later)
    sessions = {
        row["payload"]["native_session_id"]
        for row in read_activity(trial.directory / "activity.jsonl")
        if row["kind"] == "session" and row["payload"]["profile_id"] == "solver"
    }
    assert len(sessions - {None}) == 1


def test_a_session_that_the_agent_has_lost_is_an_error(trial: Trial) -> None:
    """It is no new conversation that begins in the midst of an attempt."""
    assert trial.process("invoke completed 2") == KILLED
    token = trial.directory / "agent" / "sessions"
    for file in token.rglob("*.json"):
        text = file.read_text()
        document = json.loads(text)
        if "solver" in text and (document.get("resume_token") or {}).get("native_session_id"):
            document["resume_token"]["native_session_id"] = "no-such-session"
            file.write_text(json.dumps(document))
    assert trial.process() == 1
    error = trial.result()["error"]
    assert error["phase"] == "run"
    assert not trial.asked("write more words")
