"""Commands in one container: run to their end, attached, ended, counted."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import PurePosixPath

from ageval_boxes._processes import COOKIE
from ageval_boxes.docker_box import _sweep
from ageval_boxes.docker_box._engine import Engine, call
from ageval_boxes.docker_box._options import USER
from ageval_boxes.docker_box._stream import ExecStream
from ageval_boxes.docker_box._transport import ExecTransport
from pytest_ageval.box import TIMEOUT_EXIT, BoundedStream, ExecResult, system_script
from pytest_ageval.errors import BoxError

#: Seconds between TERM and KILL when the time of a command is up.
GRACE = 0.5
#: Seconds that one sweep, which kills for at most five, may take.
SWEEP_SECONDS = 20.0
#: A container's init, and what keeps it open.
OWN_PROCESSES = 2
#: Processes beyond the box's limit that a sweep may need.
SPARE = 64

_ROOM = 'rm -rf -- "$1" && { [ -d "$2" ] || { mkdir -p -- "$2" && chown "$3" "$2"; }; }'


class Commands:
    """Commands of `user` in `container`; `variables` are in the environment of each."""

    def __init__(self, engine: Engine, container: str, user: str, variables: Mapping[str, str]) -> None:
        self.engine = engine
        self.container = container
        self._user = user
        self._variables = dict(variables)
        self._box = secrets.token_hex(8)
        self._numbers = itertools.count(1)
        #: Processes that the kernel has ended for want of memory, when it was last asked.
        self.ooms = 0
        self._ending: set[asyncio.Task[list[str]]] = set()

    def give(self, variables: Mapping[str, str]) -> None:
        """Commands that start from now on have these."""
        self._variables = dict(variables)

    def of(self, container: str) -> Commands:
        """Commands in a compose service's container, with its own user and environment."""
        return Commands(self.engine, container, "", {})

    async def _create(
        self,
        argv: Sequence[str],
        cwd: str | None,
        env: Mapping[str, str] | None,
        user: str | None,
        *,
        stdin: bool,
    ) -> tuple[str, str]:
        """Create an exec; returns its id and the cookie of its processes."""
        cookie = f"{self._box}:{next(self._numbers)};"
        variables = {**self._variables, **(env or {}), COOKIE: cookie}
        words = list(argv) if cwd is None else _sweep.wrapped(argv, cwd, self._mark(cookie))
        made = await call(
            self.engine.client.api.exec_create,
            self.container,
            words,
            stdin=stdin,
            environment=[f"{name}={value}" for name, value in variables.items()],
            user=user or self._user,
        )
        return str(made["Id"]), cookie

    @staticmethod
    def _mark(cookie: str) -> str:
        return f"ageval: no such directory {cookie}"

    async def run(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        user: str | None = None,
        stdin: bytes | None = None,
    ) -> ExecResult:
        """Run `argv` to its end; when its time is up, or we are cancelled, end all that it started."""
        exec_id, cookie = await self._create(argv, cwd, env, user, stdin=stdin is not None)
        stdout, stderr = BoundedStream(), BoundedStream()
        stream = await ExecStream.start(self.engine, exec_id)
        feeding = asyncio.create_task(_feed(stream, stdin)) if stdin is not None else None
        pump = asyncio.create_task(stream.pump(stdout.feed, stderr.feed))
        timed_out = False
        try:
            await asyncio.wait({pump}, timeout=timeout)
            timed_out = not pump.done()
            if timed_out:
                await self.end(cookie, GRACE)
                await asyncio.wait({pump}, timeout=5)
            code = TIMEOUT_EXIT if timed_out else await self._code(exec_id)
        except asyncio.CancelledError:
            ending = asyncio.create_task(self.end(cookie, 0))
            self._ending.add(ending)
            ending.add_done_callback(self._ended)
            await asyncio.wait({ending}, timeout=5)
            raise
        finally:
            for task in (feeding, pump):
                if task is not None:
                    task.cancel()
            stream.close()
        (out, cut), (err, cut_too) = stdout.text(), stderr.text()
        if code == 125 and cwd is not None and err.strip() == self._mark(cookie):
            raise BoxError("environment_exec_invalid", f"the directory {cwd} does not exist")
        if code == 137:
            await self._blame_memory(argv)
        return ExecResult(code, out, err, cut or cut_too, timed_out)

    def _ended(self, task: asyncio.Task[list[str]]) -> None:
        self._ending.discard(task)
        if not task.cancelled():
            task.exception()  # seen: `stop` removes what could not be ended

    async def _code(self, exec_id: str) -> int:
        """The exit code of an exec whose streams have ended."""
        for attempt in range(200):
            found = await self.exit_code(exec_id)
            if found is not None:
                return found
            await asyncio.sleep(min(0.005 * 2**attempt, 0.5))
        raise BoxError("environment_exec_failed", "the engine does not say how the command ended")

    async def exit_code(self, exec_id: str) -> int | None:
        """The exit code of an exec; None while it runs."""
        found = await call(self.engine.client.api.exec_inspect, exec_id)
        return None if found["Running"] or found["ExitCode"] is None else int(found["ExitCode"])

    async def _blame_memory(self, argv: Sequence[str]) -> None:
        """BoxError if the kernel killed something for want of memory since it was last asked."""
        before = self.ooms
        try:
            output = await self._as_root(_sweep.oom_arguments())
        except BoxError as error:
            if error.title != "environment_gone":
                raise
            return
        self.ooms = max(self.ooms, _sweep.parse(output).ooms)
        if self.ooms > before:
            raise BoxError(
                "environment_oom_killed",
                f"{argv[0]} was killed because the box used up its memory (parameters.memory_mb)",
            )

    async def idle(self) -> bool:
        """Nothing runs but the container's init and what keeps it open. False also where the engine's ps
        is another one than that of Linux."""
        try:
            found = await call(self.engine.client.api.top, self.container, ps_args="-eo pid")
        except BoxError:
            return False
        return len(found["Processes"] or ()) == OWN_PROCESSES

    async def attach(
        self,
        argv: Sequence[str],
        *,
        cwd: str,
        env: Mapping[str, str] | None,
        user: str | None,
        keep: bool,
    ) -> ExecTransport:
        """Start a long-lived process; with `keep`, what detaches itself from it outlives it."""
        exec_id, cookie = await self._create(argv, cwd, env, user, stdin=True)
        stream = await ExecStream.start(self.engine, exec_id)

        async def exit_code() -> int | None:
            return await self.exit_code(exec_id)

        async def end(grace: float) -> None:
            await self.end(cookie, grace, keep=keep)

        return ExecTransport(stream, exit_code, end)

    async def end(self, cookie: str, grace: float, *, keep: bool = False) -> list[str]:
        """End the processes of `cookie`, or all with ""; verify; say which. BoxError if some are left.

        With `keep`, what has detached itself is spared. A container that is gone has no processes.
        """
        try:
            output = await self._as_root(_sweep.arguments(cookie, grace, keep=keep))
            if not output.endswith("E\n"):
                # Ended by another sweep, of everything; or the box holds as many processes as it may.
                async with self._more_processes():
                    output = await self._as_root(_sweep.arguments(cookie, grace, keep=keep))
        except BoxError as error:
            if error.title == "environment_gone":
                return []
            raise
        if not output.endswith("E\n"):
            raise BoxError("environment_processes_left", "the box's processes could not be looked at")
        seen = _sweep.parse(output)
        self.ooms = max(self.ooms, seen.ooms)
        if seen.left:
            raise BoxError("environment_processes_left", f"{seen.left} could not be killed in the box")
        return seen.ended

    @contextlib.asynccontextmanager
    async def _more_processes(self) -> AsyncIterator[None]:
        """Room for a few processes of ours beyond the box's limit."""
        api = self.engine.client.api
        found = await call(api.inspect_container, self.container)
        limit = found["HostConfig"].get("PidsLimit") or 0

        def change(number: int) -> None:
            # The SDK's update_container has no such argument.
            url = api._url("/containers/{0}/update", self.container)
            api._result(api._post_json(url, data={"PidsLimit": number}), True)

        if limit <= 0:
            yield
            return
        await call(change, limit + SPARE)
        try:
            yield
        finally:
            await call(change, limit)

    async def _as_root(self, argv: Sequence[str]) -> str:
        """stdout of a command of root, or, in a service's container, of its own user."""
        made = await call(
            self.engine.client.api.exec_create,
            self.container,
            list(argv),
            user="0:0" if self._user else "",
        )
        stream = await ExecStream.start(self.engine, str(made["Id"]))
        stdout, stderr = BoundedStream(), BoundedStream()
        try:
            await asyncio.wait_for(stream.pump(stdout.feed, stderr.feed), SWEEP_SECONDS)
        except TimeoutError as error:
            raise BoxError("environment_processes_left", "the box does not answer") from error
        finally:
            stream.close()
        return stdout.text()[0]

    async def make_room(self, path: PurePosixPath, owner: tuple[int, int]) -> None:
        """Remove `path` and make the directory that is to hold it."""
        argv = system_script(_ROOM, str(path), str(path.parent), f"{owner[0]}:{owner[1]}")
        done = await self.run(argv, cwd=None, user="0:0", timeout=60)
        if not done.ok:
            raise BoxError("environment_upload_failed", done.stderr.strip() or f"{path} cannot be replaced")

    async def close(self) -> None:
        """Wait for what is being ended."""
        if self._ending:
            await asyncio.wait(set(self._ending), timeout=2)


async def _feed(stream: ExecStream, data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):  # a command may end without having read it all
        await stream.write(data)
    stream.close_stdin()


def check_command(argv: Sequence[str], env: Mapping[str, str] | None, user: str | None) -> None:
    """Raises BoxError ``environment_exec_invalid`` for what is no command, no variable or no user."""
    if isinstance(argv, str) or not argv or not argv[0] or any("\0" in word for word in argv):
        raise BoxError("environment_exec_invalid", f"{argv!r} is not a command with its arguments")
    for name, value in (env or {}).items():
        if not name or "=" in name or "\0" in name + value:
            raise BoxError("environment_exec_invalid", f"{name!r} is no environment variable")
    if user is not None and not USER.fullmatch(user):
        raise BoxError("environment_exec_invalid", f"{user!r} is no user")


def any_path(path: str) -> PurePosixPath:
    """`path` if it is absolute and without ``..``. Raises BoxError ``environment_path_invalid``."""
    found = PurePosixPath(path)
    if "\0" in path or ".." in found.parts or not found.is_absolute() or len(found.parts) < 2:
        raise BoxError("environment_path_invalid", f"{path!r} is not an absolute path without '..'")
    return found
