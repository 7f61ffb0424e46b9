"""One attempt in a process of its own, which kills itself at a chosen write into the evidence.

``fork`` starts a process from this one, whose imports are done. In it every write is counted: a file of the
attempt that is opened for writing, renamed or removed, and the beginning, the middle and the end of what is
written to a log or a document. At the number that was chosen the process sends itself SIGKILL.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import aiohttp  # noqa: F401 - what a process would import at its first model call
import pluggy

from ageval_executors._loop import LoopExecutor, LoopOptions, Run
from pytest_ageval import hookspecs, portal
from pytest_ageval.attempt import Attempt, AttemptOptions, Identity, defaults, unsettled
from pytest_ageval.attempt.context import as_ageval_error
from pytest_ageval.config import JobOptions, load_dataset, load_task, lock_task, plan_variants
from pytest_ageval.config.harbor.task import load_harbor_task
from pytest_ageval.evidence import activity, checkpoints, files, writer
from pytest_ageval.executor import AgentResult
from pytest_ageval.extensions import find_plugins
from pytest_ageval.registry import BOXES, EXECUTORS, Registry

#: A plugin whose agent is a shell that runs the instruction.
LAB = Path(__file__).parents[2] / "docs" / "examples" / "plugin-directory"

#: What asks a model for commands: the tool that `ScriptedModel` knows as a shell.
TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string"}},
            "required": ["command"],
        },
    },
}


class LoopAgent(LoopExecutor):
    """The smallest loop: it runs what the model asks for until the model asks for nothing."""

    kind: ClassVar[str] = "test-loop"
    resumable: ClassVar[bool] = True
    replays: ClassVar[bool] = True
    Options = LoopOptions

    def resume_token(self) -> dict[str, Any] | None:
        return self.model.resume_token()

    async def resume(self, token: Mapping[str, Any]) -> None:
        await self.open()
        await self.model.resume(token)

    async def work(self, run: Run) -> AgentResult:
        prompt, messages = run.prompt, None
        while True:
            result = await self.ask(run, prompt, tools=[TOOL], messages=messages)
            if not result.tool_calls:
                return AgentResult(text=result.text, stop_reason="done")
            rows = [dict(entry.message) for entry in self.model._history]
            for call in result.tool_calls:
                output = await self._run_command(run, call.id, dict(call.arguments))
                rows.append({"role": "tool", "tool_call_id": call.id, "content": output})
            prompt, messages = "", rows

    async def _run_command(self, run: Run, call_id: str, arguments: dict[str, Any]) -> str:
        recorded = self.recorded_call(call_id, arguments)
        if recorded is not None:
            self.command_started(run, call_id, "bash", arguments, announced=True, replayed=True)
            await self.session.restore(recorded["checkpoint_seq"])
            self.command_ended(call_id, recorded["content"], "ok", 0, replayed=True)
            return str(recorded["content"])
        self.command_started(run, call_id, "bash", arguments, announced=True)
        done = await self.box.exec(["sh", "-c", arguments["command"]], timeout=60)
        checkpoint = await self.session.checkpoint()
        self.command_ended(call_id, done.stdout, "ok", done.exit_code, raw={}, checkpoint=checkpoint)
        return done.stdout


# -- the task --------------------------------------------------------------------------------------

PROFILES = """
format: ageval.profiles/1
environment: local
environment_options: {{isolation: none}}
agent_profiles:
  solver:
    executor: test-loop
    base_url: {url}
    model: {{id: m}}
  helper:
    executor: openai-http
    base_url: {url}
    model: {{id: m}}
  judge:
    executor: openai-http
    base_url: {url}
    model: {{id: m}}
"""

TASK = """
format: ageval.task/1
task_id: t
agent_profiles: [{id: solver}, {id: helper}, {id: judge}]
limits: {agent_invocations: 3, wall_time_seconds: 120}
artifacts:
  publishable:
    - {id: words, path: words.txt}
    - {id: hint, path: hint.json}
"""

RUN = """
async def run(ctx):
    log = ctx.workspace_root / "script.txt"
    with log.open("a") as file:
        file.write("begin\\n")
    async with ctx.agent.session("helper") as helper:
        hint = await helper.invoke("give a hint")
    ctx.publish_json("hint", {"text": hint["text"]})
    async with ctx.agent.session("solver") as solver:
        first = await solver.invoke("write the words")
        with log.open("a") as file:
            file.write(first["text"] + "\\n")
        second = await solver.invoke("write more words, after " + first["text"])
        with log.open("a") as file:
            file.write(second["text"] + "\\n")
"""

EVALUATOR = """
import json, pathlib

async def evaluate(inputs):
    words = pathlib.Path(inputs["artifacts"]["words"]).read_text().split()
    script = (pathlib.Path(inputs["workspace_dir"]) / "script.txt").read_text().split()
    hint = json.loads(pathlib.Path(inputs["artifacts"]["hint"]).read_text())["text"]
    async with inputs["agent"].session("judge") as judge:
        said = await judge.invoke("is it good?")
    found = {"words": words, "script": script, "hint": hint, "judge": said["text"]}
    good = found == {
        "words": ["a", "b", "c"], "script": ["begin", "first", "second"], "hint": "a hint", "judge": "good",
    }
    return {"status": "PASS" if good else "FAIL", "metrics": {"found": json.dumps(found)}}
"""


def write_dataset(root: Path, url: str) -> None:
    """The data set with its one task."""
    task = root / "tasks" / "t"
    for path, text in {
        root / "ageval.yaml": 'format: ageval.dataset/1\ndataset_id: demo\nversion: "1"\n',
        root / "profiles.yaml": PROFILES.format(url=url),
        task / "task.yaml": TASK,
        task / "run.py": RUN,
        task / "evaluator.py": EVALUATOR,
        task / "data" / "seed.txt": "seed\n",
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


# -- one process -----------------------------------------------------------------------------------


class Killer:
    """Counts writes into the evidence; at number `at` the process is gone. 0: it only counts."""

    def __init__(self, at: int, root: Path) -> None:
        self.at = at
        self.count = 0
        self.points: list[str] = []
        self._root = str(root)
        self._lock = threading.Lock()

    def point(self, what: str) -> None:
        with self._lock:
            self.count += 1
            self.points.append(what)
            if self.count == self.at:
                os.kill(os.getpid(), signal.SIGKILL)

    def install(self) -> None:
        sys.addaudithook(self._audit)
        original = files.write_all

        def write_all(descriptor: int, data: bytes) -> None:
            self.point("write begins")
            half = len(data) // 2
            original(descriptor, data[:half])
            self.point("write torn")
            original(descriptor, data[half:])
            self.point("write done")

        for module in (files, activity, writer, checkpoints):
            module.write_all = write_all  # type: ignore[attr-defined]

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[2], int):
            if not arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                return
        elif event not in ("os.rename", "os.remove", "os.mkdir", "os.rmdir"):
            return
        path = os.fsdecode(arguments[0]) if isinstance(arguments[0], str | bytes | os.PathLike) else ""
        if path.startswith(self._root):
            self.point(f"{event} {path[len(self._root) :].partition('/')[2]}")


def kill_after(line: str) -> None:
    """End this process with SIGKILL when a line is in a step log: ``"invoke completed 2"`` for the second."""
    kind, status, number = line.split()
    seen = []
    original = activity.ActivityLog.append

    def append(log: Any, *arguments: Any, **more: Any) -> int:
        found = original(log, *arguments, **more)
        if arguments[:2] == (kind, status):
            seen.append(found)
            if len(seen) == int(number):
                os.kill(os.getpid(), signal.SIGKILL)
        return found

    activity.ActivityLog.append = append  # type: ignore[method-assign]


def fork(work: Callable[[], None]) -> int:
    """The pid of a process that does `work` and ends, with exit code 1 and a traceback when it raises."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def attempt_once(
    dataset_root: Path,
    runs: Path,
    *,
    kill_at: int = 0,
    kill_when: str | None = None,
    told: Path | None = None,
    harbor: Path | None = None,
    **given: Any,
) -> None:
    """The attempt in `runs`, from its beginning or from where it was interrupted; `told` gets the points.

    `harbor` is a Harbor task in place of the data set's; its agent is a shell. `given` are further
    `AttemptOptions`.
    """
    killer = Killer(kill_at, runs)
    manager = pluggy.PluginManager("pytest")
    manager.add_hookspecs(hookspecs)
    manager.register(defaults)
    plugins = find_plugins([LAB], {*BOXES, *EXECUTORS, "default"})
    registry = Registry([], [{"test-loop": LoopAgent}], plugins)
    dataset = load_dataset(dataset_root)
    job = JobOptions() if harbor is None else JobOptions(agents=("lab",))
    (variant,) = plan_variants(job)
    task = load_task(dataset_root / "tasks" / "t") if harbor is None else load_harbor_task(harbor)
    locked = lock_task(task, dataset, variant, job, registry)
    parts = {"hooks": manager.hook, "registry": registry, "identity": Identity()}
    options = AttemptOptions(**{"trust_tasks": True, "gateway": "off", **given})
    there = sorted(runs.iterdir()) if runs.is_dir() else []
    if kill_at or told is not None:
        killer.install()
    if kill_when is not None:
        kill_after(kill_when)
    if there and unsettled(there[0]) is not None:
        attempt = Attempt.resume(there[0], locked, options=options, **parts)
    else:
        attempt = Attempt(locked, runs_dir=runs, options=options, **parts)

    try:
        for phase in (attempt.environment, attempt.run, attempt.evaluate):
            portal.run(phase())
    except BaseException as error:
        attempt.fail(as_ageval_error(error, attempt.phase))
        raise
    finally:
        portal.run(attempt.record())
        portal.run(attempt.cleanup())
        if told is not None:
            told.write_text(json.dumps(killer.points))


def wait(pids: Sequence[int]) -> list[int]:
    """How the processes ended: the exit code, or the negative signal."""
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
