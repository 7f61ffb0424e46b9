"""The executors ``oracle`` (the task's own solution) and ``nop`` (nothing): the two ends of the scale.

A sound task passes with the oracle and fails with nop. Neither calls a model: their usage has no
figures, its source is ``none``, and no cost can be added up from them.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import msgspec
import yaml

from ageval_executors._text import mend
from pytest_ageval.box import SOLUTION, WORKSPACE, Box
from pytest_ageval.errors import ExecutorError
from pytest_ageval.executor import AgentResult, Executor, ToolCall, Usage

if TYPE_CHECKING:
    from pytest_ageval.executor import Session, Solution

#: No model was called.
NO_USAGE = Usage(source="none", unavailable="not_reported")

#: Characters of a script's output that are given back.
TAIL = 8000

#: The container of the task itself, where a path may be any absolute one.
MAIN = "main"

#: Bytes of ``turns.yaml`` that are read.
MAX_SCRIPT = 4 * 1024 * 1024


class ScriptedCall(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A call of one of the task's tools."""

    name: str
    arguments: dict[str, Any] = {}


class ScriptedTurn(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What the oracle does when it is invoked: run something, say something, call tools."""

    text: str | None = None
    tool_calls: list[ScriptedCall] = []
    #: A script below ``solution/``, or a shell command.
    run: str | None = None


class _BoxState:
    """What the sessions of one box share: the solution is in it for one script at a time."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        #: ``solve.sh`` runs once an attempt, whichever role asks first.
        self.solved = False


_states: weakref.WeakKeyDictionary[Box, _BoxState] = weakref.WeakKeyDictionary()


class OracleExecutor(Executor):
    """Plays the solution that the task brings along.

    ``solution/turns.yaml`` maps a role (``solver``), one actor of a role (``solver/alice``) or ``*`` to a
    list of turns; each session goes through its list and says nothing when it is over::

        solver:
          - run: patch.sh                     # below solution/, or a command line
            text: The bug is fixed.
        customer:
          - text: My order has not arrived.
          - tool_calls: [{name: rate, arguments: {stars: 5}}]

    Without it ``solution/solve.sh`` is run in the workspace at the first invoke. In both cases the
    directory is in the box only while a script of it runs, which finds it at ``$SOLUTION_DIR``.
    """

    kind = "oracle"
    requires_box = frozenset({"exec", "upload"})
    calls_model = False
    plays_solution = True

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        given = session.solution
        self.solution = session.task_root / "solution" if given is None else given.directory
        self._turns: list[ScriptedTurn] | None = None
        self._next = 0

    async def open(self) -> None:
        """Read the script. Raises ExecutorError ``oracle_missing`` or ``oracle_invalid``."""
        script, solve = self.solution / "turns.yaml", self.solution / "solve.sh"
        if self.session.solution is not None:
            solve = self.solution / self.session.solution.script
            if not solve.is_file():
                raise ExecutorError("oracle_missing", f"there is no {solve}")
        elif script.is_file():
            rows = await asyncio.to_thread(read_turns, script)
            self._turns = _turns_of(rows, self.session.role, self.session.actor)
        elif not solve.is_file():
            raise ExecutorError("oracle_missing", f"there is neither {script} nor {solve}")

    def resume_token(self) -> dict[str, Any] | None:
        """How far the script has been played."""
        state = _states.get(self.session.box) if self.session.box is not None else None
        solved = state is not None and state.solved
        return {"turns": self._next, "solved": solved} if self._next or solved else None

    async def resume(self, token: Mapping[str, Any]) -> None:
        """Go on in the script. ExecutorError ``resume_unsupported`` for a token of anybody else."""
        turns = token.get("turns")
        if not isinstance(turns, int) or "solved" not in token:
            raise ExecutorError("resume_unsupported", "the token says nothing of a script of the oracle")
        await self.open()
        self._next = turns
        _states.setdefault(self._box(), _BoxState()).solved |= bool(token["solved"])

    async def invoke(
        self,
        prompt: str,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        messages: Sequence[Mapping[str, Any]] | None = None,
    ) -> AgentResult:
        """The next turn of the script, whatever was asked."""
        del prompt, tools, messages
        if self.session.solution is not None:
            return await self._reference(self.session.solution)
        if self._turns is None:
            return await self._solve()
        if self._next >= len(self._turns):
            return self._said("")
        turn = self._turns[self._next]
        self._next += 1
        return await self._play(turn)

    async def _solve(self) -> AgentResult:
        box = self._box()
        state = _states.setdefault(box, _BoxState())
        async with state.lock:
            if state.solved:
                return self._said("")
            state.solved = True
            return await self._script(box, "solve.sh")

    async def _reference(self, solution: Solution) -> AgentResult:
        """Run the script of another format at its own place. How it ends is noted and decides nothing."""
        box = self._box()
        await box.upload(solution.directory, solution.target, service=MAIN)
        try:
            command = ["bash", f"{solution.target}/{solution.script}"]
            done = await box.exec(command, cwd=WORKSPACE, env=solution.env, timeout=self.session.remaining())
        finally:
            await asyncio.shield(box.exec(["rm", "-rf", solution.target], user="root", timeout=60))
        said = self._said(mend(done.stdout[-TAIL:]))
        return replace(said, metadata={"exit_code": done.exit_code, "stderr": mend(done.stderr[-TAIL:])})

    async def _play(self, turn: ScriptedTurn) -> AgentResult:
        text = turn.text or ""
        if turn.run is not None:
            ran = await self._run(turn.run)
            if not ran.ok:
                return ran
            text = ran.text if turn.text is None else text
        calls = [
            ToolCall(f"oracle_{self._next}_{index}", call.name, call.arguments)
            for index, call in enumerate(turn.tool_calls)
        ]
        return self._said(text, calls)

    async def _run(self, run: str) -> AgentResult:
        box, path = self._box(), PurePosixPath(run)
        inside = "\0" not in run and not path.is_absolute() and ".." not in path.parts
        if len(run) < 256 and inside and (self.solution / path).is_file():
            async with _states.setdefault(box, _BoxState()).lock:
                return await self._script(box, run)
        return await self._command(box, ["sh", "-c", run], run)

    async def _script(self, box: Box, name: str) -> AgentResult:
        """Run a script of ``solution/`` in the box. The directory is taken away again."""
        await box.upload(self.solution, SOLUTION)
        try:
            path = box.visible_path(f"{SOLUTION}/{name}")
            # Scripts may lack their mode bit in a checkout; bash is preferred, sh is always there.
            run = 'if command -v bash >/dev/null; then exec bash "$0"; else exec sh "$0"; fi'
            return await self._command(box, ["sh", "-c", run, path], f"solution/{name}")
        finally:
            # Whatever came: the next one in the box must not find the solution.
            await asyncio.shield(self._take_away(box))

    async def _take_away(self, box: Box) -> None:
        # The directory itself may be a mount, which stays; what matters is what is in it.
        script = 'find "$0" -mindepth 1 -delete && { rmdir "$0" 2>/dev/null; true; }'
        done = await box.exec(["sh", "-c", script, box.visible_path(SOLUTION)], timeout=60)
        if not done.ok:
            raise ExecutorError("oracle_left_behind", f"{SOLUTION} stays in the box: {done.stderr}")

    async def _command(self, box: Box, argv: list[str], name: str) -> AgentResult:
        env = {"SOLUTION_DIR": box.visible_path(SOLUTION)}
        done = await box.exec(argv, cwd=WORKSPACE, env=env, timeout=self.session.remaining())
        if done.ok:
            return self._said(mend(done.stdout[-TAIL:]))
        tail = mend((done.stderr or done.stdout)[-TAIL:])
        return AgentResult(
            text=mend(done.stdout[-TAIL:]),
            ok=False,
            error="oracle_failed",
            usage=NO_USAGE,
            status="timeout" if done.timed_out else "crashed",
            infrastructure=True,
            repeatable=False,
            metadata={
                "exit_code": done.exit_code,
                "message": f"{name} ended with exit code {done.exit_code}: {tail.strip()}",
            },
        )

    def _said(self, text: str, calls: Sequence[ToolCall] = ()) -> AgentResult:
        if text:
            self.session.emit({"kind": "text", "channel": "assistant", "text": text})
        for call in calls:
            self.session.emit(
                {
                    "kind": "tool",
                    "phase": "start",
                    "tool_call_id": call.id,
                    "function_name": call.name,
                    "args": dict(call.arguments),
                    "status": "pending",
                }
            )
        return AgentResult(text=text, tool_calls=calls, usage=NO_USAGE)

    def _box(self) -> Box:
        if self.session.box is None:
            raise ExecutorError("oracle_no_box", f"role {self.session.role!r} has no box")
        return self.session.box


def read_turns(path: Path) -> dict[str, list[ScriptedTurn]]:
    """The turns of each role in a ``turns.yaml``. Raises ExecutorError ``oracle_invalid``."""
    with path.open("rb") as stream:
        raw = stream.read(MAX_SCRIPT + 1)
    try:
        if len(raw) > MAX_SCRIPT:
            raise ValueError(f"more than {MAX_SCRIPT} bytes")
        found = yaml.load(raw, _StrictLoader)  # noqa: S506 - a SafeLoader, see below
        return msgspec.convert(found, dict[str, list[ScriptedTurn]])
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ExecutorError("oracle_invalid", f"{path}: {error}") from error


class _StrictLoader(yaml.SafeLoader):
    """YAML in which a key may stand once only: of two lists for one role, one would be lost."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A mapping, unless a key stands in it twice."""
        found: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = {repr(key) for key in keys if keys.count(key) > 1}
        if twice:
            raise yaml.constructor.ConstructorError(
                None, None, f"the key {', '.join(sorted(twice))} stands twice", node.start_mark
            )
        return found


def _turns_of(rows: Mapping[str, list[ScriptedTurn]], role: str, actor: str | None) -> list[ScriptedTurn]:
    """The list for an actor, else for its role, else for everyone, else an empty one."""
    names = [f"{role}/{actor}"] if actor else []
    for name in (*names, role, "*"):
        if name in rows:
            return rows[name]
    return []
