"""Attempts that are interrupted in a certain place, and what is made of them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import kill_kit

from pytest_ageval.attempt import ResumeError, unsettled
from pytest_ageval.evidence import Layout, read_activity
from pytest_ageval.testing.scripted_model import Delay, ScriptedModel, Shell, Text, Turn, When

KILLED = -signal.SIGKILL

Bench = Callable[..., "Try"]


class Try:
    """One data set, one model, one attempt after the other."""

    def __init__(self, place: Path, turns: list[Turn | When], files: dict[str, str]) -> None:
        self.runs = place / "runs"
        self.dataset = place / "dataset"
        self.model = ScriptedModel(turns)
        self.files = files

    def start(self) -> None:
        self.model.__enter__()
        kill_kit.write_dataset(self.dataset, self.model.base_url)
        for name, text in self.files.items():
            self.write(name, text)

    def write(self, name: str, text: str) -> None:
        (self.dataset / "tasks" / "t" / name).write_text(text.replace("{url}", self.model.base_url))

    def begin(self, kill_when: str | None = None, **given: Any) -> int:
        """Start a process at the attempt; its pid."""
        return kill_kit.fork(
            lambda: kill_kit.attempt_once(self.dataset, self.runs, kill_when=kill_when, **given)
        )

    def process(self, kill_when: str | None = None, **given: Any) -> int:
        """One process at the attempt: how it ended."""
        (code,) = kill_kit.wait([self.begin(kill_when, **given)])
        return code

    @property
    def directory(self) -> Path:
        (found,) = self.runs.iterdir()
        return found

    @property
    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.directory / "result.json").read_bytes())
        return found

    def facts(self, name: str) -> list[Any]:
        rows = json.loads((self.directory / "summary.json").read_bytes())["facts"]
        return [row.get("detail") for row in rows if row["name"] == name]

    def asked(self) -> list[str]:
        """The last words of the user in every request."""
        return [request.prompt for request in self.model.requests]


WORDS: list[Turn | When] = [
    When("write more words", [Shell("echo c >> words.txt"), Text("second")]),
    When("write the words", [Shell("echo a >> words.txt"), Shell("echo b >> words.txt"), Text("first")]),
    When("give a hint", [Text("a hint")]),
    When("is it good", [Text("good")]),
]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made: list[Try] = []

    def make(turns: list[Turn | When] = WORDS, **files: str) -> Try:
        named = {name.replace("_py", ".py"): text for name, text in files.items()}
        found = Try(tmp_path / str(len(made)), turns, named)
        found.start()
        made.append(found)
        return found

    yield make
    for each in made:
        each.model.__exit__(None, None, None)


def box_of(directory: Path) -> Path:
    """The work directory of the local box that the step log names."""
    rows = read_activity(Layout(directory).activity)
    handles = [row["payload"]["environment_handle"] for row in rows if row["kind"] == "attempt"]
    return Path([each for each in handles if each][-1]["work_dir"])


def test_a_box_that_is_gone_is_made_anew(bench: Bench) -> None:
    """Its files come from the checkpoints; nothing is asked or run a second time."""
    attempt = bench()
    assert attempt.process("tool_call completed 3") == KILLED
    shutil.rmtree(box_of(attempt.directory))
    assert attempt.process() == 0
    result = attempt.result
    assert (result["status"], result["resumed"]) == ("PASS", 1), result
    assert attempt.facts("attempt_resumed")[0]["box_taken_over"] is False
    assert len(attempt.model.requests) == 7
    assert [fact["kind"] for fact in attempt.facts("environment_started")] == ["local", "local"]
    timing = json.loads((attempt.directory / "summary.json").read_bytes())["phase_timing"]
    assert [row["id"] for row in timing["phases"]][:2] == ["environment", "run"]


def test_a_file_that_no_checkpoint_has_is_missed(bench: Bench) -> None:
    """A new box would lack a file of the agent's: an ERROR that names it, not a work that is judged."""
    attempt = bench(
        [When("write the words", [Shell("head -c 70000000 /dev/zero > big"), Text("first")]), *WORDS]
    )
    assert attempt.process("tool_call completed 1") == KILLED
    shutil.rmtree(box_of(attempt.directory))
    assert attempt.process() == 1
    error = attempt.result["error"]
    assert (error["title"], error["phase"]) == ("resume_incomplete", "environment")
    assert "workspace/big" in error["message"]


def test_an_interrupted_attempt_goes_on(bench: Bench) -> None:
    """After Ctrl-C the box is gone, and no result is there; then the attempt goes on to PASS."""
    turns = [When("write more words", [Delay(1.5), *WORDS[0].turns]), *WORDS[1:]]  # type: ignore[union-attr]
    attempt = bench(turns)
    pid = attempt.begin()
    until = time.monotonic() + 60
    while not any("more words" in prompt for prompt in attempt.asked()):
        assert time.monotonic() < until
        time.sleep(0.02)
    os.kill(pid, signal.SIGINT)
    assert kill_kit.wait([pid]) == [1]
    assert not Layout(attempt.directory).result.exists()
    assert not box_of(attempt.directory).exists()
    found = unsettled(attempt.directory)
    assert found is not None
    assert (found.task_id, found.index, found.resumed, found.steps) == ("t", 1, 0, 2)
    assert attempt.process() == 0
    assert (attempt.result["status"], attempt.result["agent_invocations"]) == ("PASS", 3)
    rows = [json.loads(line) for line in (attempt.directory / "trajectory.jsonl").read_bytes().splitlines()]
    assert [row["args"]["command"] for row in rows if row["type"] == "tool_call"] == [
        "echo a >> words.txt",
        "echo b >> words.txt",
        "echo c >> words.txt",
    ]
    repeated = [prompt for prompt in attempt.asked() if "more words" in prompt]
    assert len(repeated) == 3, "the call that was cut off, the same again, and the one after it"


def test_another_configuration_is_refused(bench: Bench) -> None:
    """The refusal says what changed, and the attempt stays as it is."""
    attempt = bench()
    assert attempt.process("invoke completed 1") == KILLED
    before = (attempt.directory / "activity.jsonl").read_bytes()
    attempt.write("evaluator.py", "def evaluate(inputs):\n    return {'status': 'PASS'}\n")
    told = attempt.dataset / "told"

    def work() -> None:
        try:
            kill_kit.attempt_once(attempt.dataset, attempt.runs)
        except ResumeError as error:
            told.write_text(str(error))

    kill_kit.wait([kill_kit.fork(work)])
    message = told.read_text()
    assert message.startswith("resume_digest_changed: ")
    assert "sha256:" in message
    assert " -> " in message
    assert (attempt.directory / "activity.jsonl").read_bytes() == before


def test_a_live_writer_is_not_disturbed(bench: Bench) -> None:
    """`unsettled` refuses while the process lives, and finds the attempt when it is dead."""
    turns = [When("write the words", [Delay(30), Text("first")]), *WORDS]
    attempt = bench(turns)
    pid = attempt.begin()
    until = time.monotonic() + 60
    while "write the words" not in attempt.asked():
        assert time.monotonic() < until
        time.sleep(0.02)
    with pytest.raises(ResumeError, match=f"resume_busy: .*process {pid}"):
        unsettled(attempt.directory)
    os.kill(pid, signal.SIGKILL)
    assert kill_kit.wait([pid]) == [KILLED]
    assert unsettled(attempt.directory) is not None


ASKS_TIME = """
import datetime, uuid
async def run(ctx):
    async with ctx.agent.session("helper") as helper:
        asked = f"give a hint, now {datetime.datetime.now()} id {uuid.uuid4()} in {ctx.workspace_root}"
        hint = await helper.invoke(asked)
    ctx.publish_json("hint", {"text": hint["text"]})
    async with ctx.agent.session("solver") as solver:
        await solver.invoke("write the words")
"""
ANY = "def evaluate(inputs):\n    return {'status': 'PASS'}\n"


def test_times_in_a_prompt_do_not_matter(bench: Bench) -> None:
    """A prompt that differs in times, ids and the box's directory only is the same; the evidence says so."""
    attempt = bench(run_py=ASKS_TIME, evaluator_py=ANY)
    assert attempt.process("invoke completed 1") == KILLED
    shutil.rmtree(box_of(attempt.directory))
    assert attempt.process() == 0
    assert attempt.result["status"] == "PASS"
    assert sum("hint" in prompt for prompt in attempt.asked()) == 1
    assert attempt.facts("session_alignment_volatile") == [
        {"session_id": "sess_helper_default_main_1", "turn": 1, "differ": ["prompt"]}
    ]


DICE = """
import random
async def run(ctx):
    async with ctx.agent.session("helper") as helper:
        await helper.invoke("give a hint about " + "".join(random.sample("abcdefghijkl", 12)))
    async with ctx.agent.session("solver") as solver:
        await solver.invoke("write the words")
"""


def test_another_question_is_an_error(bench: Bench) -> None:
    """What run.py asked cannot be found in what it asks now: an ERROR that shows where they part."""
    attempt = bench(run_py=DICE, evaluator_py=ANY)
    assert attempt.process("invoke completed 1") == KILLED
    assert attempt.process() == 1
    error = attempt.result["error"]
    assert (error["title"], error["phase"]) == ("session_alignment_mismatch", "run")
    assert "give a hint about" in error["message"]
    assert "was recorded" in error["message"]


FORGETS = """
import pathlib
async def run(ctx):
    async with ctx.agent.session("helper") as helper:
        await helper.invoke("give a hint")
        if not pathlib.Path(MARKER).exists():
            await helper.invoke("is it good?")
    async with ctx.agent.session("solver") as solver:
        await solver.invoke("write the words")
"""


def test_a_question_that_is_not_asked_again_is_an_error(bench: Bench, tmp_path: Path) -> None:
    """The agent's answer is part of the work, and nobody knows where it belongs now."""
    marker = tmp_path / "marker"
    attempt = bench(run_py=FORGETS.replace("MARKER", repr(str(marker))), evaluator_py=ANY)
    assert attempt.process("invoke completed 2") == KILLED
    marker.touch()
    assert attempt.process() == 1
    error = attempt.result["error"]
    assert error["title"] == "session_alignment_mismatch"
    assert "turn 2 of sess_helper_default_main_1" in error["message"]


FAN = """
import asyncio
async def run(ctx):
    async def one(number):
        async with ctx.agent.session("helper", actor_id=f"a{number}") as session:
            reply = await session.invoke(f"question {number}")
            return reply["text"]
    said = await asyncio.gather(*(one(number) for number in range(4)))
    ctx.publish_json("hint", {"text": said})
"""
FAN_TASK = """
format: ageval.task/1
task_id: t
agent_profiles: [{id: solver}, {id: helper}, {id: judge}]
limits: {agent_invocations: 4, agent_concurrency: 4}
"""
FAN_JUDGE = """
import json, pathlib
def evaluate(inputs):
    said = json.loads(pathlib.Path(inputs["artifacts"]["hint"]).read_text())["text"]
    return {"status": "PASS" if said == ["answer 0", "answer 1", "answer 2", "answer 3"] else "FAIL"}
"""


def test_sessions_side_by_side_are_told_apart(bench: Bench) -> None:
    """They are known by the order in the script, not by that in which they answered."""
    delays = [1.0, 0.6, 0.3, 0.0]
    turns: list[Turn | When] = [
        When(f"question {n}", [Delay(seconds), Text(f"answer {n}")]) for n, seconds in enumerate(delays)
    ]
    attempt = bench(turns, run_py=FAN, evaluator_py=FAN_JUDGE)
    attempt.write("task.yaml", FAN_TASK)
    assert attempt.process("invoke completed 2") == KILLED
    done = {row["payload"]["text"] for row in read_activity(attempt.directory / "activity.jsonl")
            if (row["kind"], row["status"]) == ("invoke", "completed")}  # fmt: skip
    assert done == {"answer 3", "answer 2"}
    assert attempt.process() == 0
    assert attempt.result["status"] == "PASS"
    asked = sorted(attempt.asked())
    assert asked == ["question 0", "question 0", "question 1", "question 1", "question 2", "question 3"]


def test_without_checkpoints_nothing_is_taken_up(bench: Bench) -> None:
    """A turn of an agent in a box cannot be had again; before the first turn nothing was lost."""
    attempt = bench()
    assert attempt.process("invoke in_flight 1", checkpoints="off") == KILLED
    assert unsettled(attempt.directory) is None
    other = bench()
    assert other.process("phase in_flight 2", checkpoints="off") == KILLED
    assert unsettled(other.directory) is not None
    assert other.process(checkpoints="off") == 0
    assert other.result["status"] == "PASS"


def test_commands_within_a_turn_without_steps(bench: Bench) -> None:
    """With checkpoints after turns only, the model is not asked again, and its commands run once more."""
    attempt = bench()
    assert attempt.process("tool_call completed 2", checkpoints="turn") == KILLED
    assert attempt.process(checkpoints="turn") == 0
    assert attempt.result["status"] == "PASS"
    assert len(attempt.model.requests) == 7


def test_time_stays_spent(bench: Bench) -> None:
    """What the first process used of the clock is gone: the work is judged as it is then."""
    turns: list[Turn | When] = [When("write more words", [Delay(60), Text("x")]), *WORDS[1:]]
    attempt = bench(turns, evaluator_py=ANY)
    task = kill_kit.TASK.replace("wall_time_seconds: 120", "wall_time_seconds: 4")
    attempt.write("task.yaml", task)
    pid = attempt.begin()
    time.sleep(3.0)
    os.kill(pid, signal.SIGKILL)
    assert kill_kit.wait([pid]) == [KILLED]
    begun = time.monotonic()
    assert attempt.process() == 0
    assert time.monotonic() - begun < 15
    result = attempt.result
    assert (result["status"], result["limit"], result["agent_status"]) == (
        "PASS",
        "wall_time_seconds",
        "timeout",
    )
    assert result["timing"]["run"] >= 4000


def test_a_secret_is_in_no_checkpoint(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file with the value of a credential is left out, and its loss would be an ERROR."""
    value = "tok-0123456789abcdefghij"
    command = f"printf %s%s {value[:14]} {value[14:]} > env; echo a > words.txt"
    attempt = bench([When("write the words", [Shell(command), Text("first")]), *WORDS], evaluator_py=ANY)
    profiles = (attempt.dataset / "profiles.yaml").read_text()
    keyed = profiles.replace("model: {id: m}", "model: {id: m}\n    api_key: ${PROBE}", 1)
    (attempt.dataset / "profiles.yaml").write_text(keyed)
    monkeypatch.setenv("PROBE", value)
    secret = {"secret": os.environ.get}
    assert attempt.process("tool_call completed 1", **secret) == KILLED
    files = [path for path in (attempt.directory / "checkpoints").rglob("*") if path.is_file()]
    kept = b"".join(path.read_bytes() for path in files)
    assert value.encode() not in kept
    assert b'"reason":"secret"' in kept
    assert (box_of(attempt.directory) / "box" / "workspace" / "env").read_text() == value


def test_what_a_killed_process_was_writing_is_removed(bench: Bench) -> None:
    """Beside artifacts too; a file of the agent's that is called alike stays."""
    attempt = bench()
    assert attempt.process("phase completed 4") == KILLED
    pid = json.loads(Layout(attempt.directory).writer.read_bytes())["pid"]
    artifacts = attempt.directory / "task-artifacts"
    (artifacts / f".words.txt.{pid}.tmp").write_text("half")
    (artifacts / f".words.txt.{pid + 1}.tmp").write_text("the agent's")
    assert attempt.process() == 0
    assert [path.name for path in artifacts.glob(".*")] == [f".words.txt.{pid + 1}.tmp"]
